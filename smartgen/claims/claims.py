"""The paper's claims as values: what is claimed, in which set, and what a result makes of it."""

import csv
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from smartgen.errors import one_of

SETS = ("fit", "held_out", "parameter_free", "contradiction", "setting", "not_simulated")
NUMBERS = ("ratio", "absolute")
"""Kinds that are compared by their relative error."""

LIMITS = (0.1, 0.15, 0.2)
"""Errors at which verdicts and scores are cut."""

EVEN = 1e-9
"""A claim that is off by 15 % is within 15 %, whatever the last bit says."""

BOUNDS = ("below", "above", "at_most", "ordinal")
"""Kinds that hold or do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim. claimed is text as the paper has it; figure says where it stands.

    kind: a ratio or absolute number; a bound (below, above, at_most); or ordinal, an order that
    holds or not. reason: why a contradiction is one, or how the claim is read.
    """

    id: str
    figure: str
    claim: str
    kind: str
    claimed: str
    unit: str
    set: str
    reason: str

    def __post_init__(self) -> None:
        one_of(f"{self.id}.kind", self.kind, (*NUMBERS, *BOUNDS))
        one_of(f"{self.id}.set", self.set, SETS)

    @property
    def is_result(self) -> bool:
        """Whether the simulator has something to say about it."""
        return self.set not in ("setting", "not_simulated")

    @property
    def is_number(self) -> bool:
        """Whether there is a relative error."""
        return self.kind in NUMBERS and self.is_result

    @property
    def value(self) -> float:
        """The claimed number; 1 for an order, whose simulated value is 1 if it holds, else 0."""
        return 1.0 if self.kind == "ordinal" else float(self.claimed)

    @property
    def rounding(self) -> float:
        """Half of the last digit that is stated, relative to the value: 0.033 for 1.5."""
        digits = len(self.claimed.partition(".")[2])
        return 0.5 * 10.0**-digits / abs(self.value)

    def error(self, simulated: float) -> float | None:
        """Relative error; null for what holds or does not."""
        return simulated / self.value - 1 if self.is_number else None

    def verdict(self, simulated: float) -> str:
        """Within 10 %, within 20 %, or a miss; for bounds, holds or a miss."""
        error = self.error(simulated)
        if error is None:
            return "holds" if self._holds(simulated) else "miss"
        if math.isnan(error):
            return "miss"
        near = [limit for limit in LIMITS if abs(error) <= limit + EVEN]
        return f"within {near[0]:.0%}".replace("%", " %") if near else "miss"

    def _holds(self, simulated: float) -> bool:
        match self.kind:
            case "below":
                return simulated < self.value
            case "at_most":
                return simulated <= self.value
            case "above":
                return simulated > self.value
        return simulated == 1.0


@lru_cache(maxsize=1)
def all_claims() -> tuple[Claim, ...]:
    """Every claim of claims.csv, in its order."""
    path = Path(__file__).with_name("claims.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(Claim(**row) for row in csv.DictReader(file))


@dataclass(frozen=True)
class Score:
    """How many numeric claims are met within 10, 15 and 20 %, and how many there are."""

    errors: tuple[float, ...]

    def within(self, limit: float) -> int:
        """How many errors are at most that."""
        return sum(abs(error) <= limit + EVEN for error in self.errors)

    @cached_property
    def median(self) -> float:
        """The median of the errors' sizes; NaN without any."""
        sizes = sorted(map(abs, self.errors))
        middle = len(sizes) // 2
        if not sizes:
            return math.nan
        return sizes[middle] if len(sizes) % 2 else (sizes[middle - 1] + sizes[middle]) / 2
