"""Constants that no table measures: what is guessed of each before the fit, and its range."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.errors import SmartGenError

if TYPE_CHECKING:
    from smartgen.experiment import Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One number of the cards; keys are all that take its value.

    prior and spread: a guess before the fit, lognormal, spread being the factor of one standard
    deviation. low and high: the range over which sensitivity is shown.
    """

    keys: tuple[str, ...]
    unit: str
    is_fitted: bool
    prior: float
    spread: float | None
    low: float
    high: float
    source: str

    @property
    def name(self) -> str:
        """The first of its keys."""
        return self.keys[0]

    def surprise(self, log_value: float) -> float:
        """How many standard deviations a value lies from the guess."""
        assert self.spread is not None
        return (log_value - math.log(self.prior)) / math.log(self.spread)


@lru_cache(maxsize=1)
def all_constants() -> tuple[Constant, ...]:
    """Every constant of constants.csv."""
    path = Path(__file__).with_name("constants.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Constant(
                keys=tuple(row["keys"].split()),
                unit=row["unit"],
                is_fitted=row["is_fitted"] == "true",
                prior=float(row["prior"]),
                spread=float(row["spread"]) if row["spread"] else None,
                low=float(row["low"]),
                high=float(row["high"]),
                source=row["source"],
            )
            for row in csv.DictReader(file)
        )


def fitted_constants() -> Sequence[Constant]:
    """Those that the fit may move."""
    return [constant for constant in all_constants() if constant.is_fitted]


def with_constants(experiment: "Experiment", values: Mapping[str, float]) -> "Experiment":
    """The same experiment with other values, by the first key of each constant.

    Cards of other machines, networks and selectors keep what is their own.
    """
    unknown = values.keys() - {constant.name for constant in all_constants()}
    if unknown:
        raise SmartGenError(f"{', '.join(sorted(unknown))} must be among those of constants.csv")
    by_part: dict[str, dict[str, Any]] = {}
    for constant in all_constants():
        if constant.name in values:
            for key in constant.keys:
                part, _, field = key.partition(".")
                by_part.setdefault(part, {})[field] = values[constant.name]
    changed = {
        part: _changed(getattr(experiment, part), fields) for part, fields in by_part.items()
    }
    return replace(experiment, **changed)


def _changed(part: Any, fields: Mapping[str, Any]) -> Any:
    name = getattr(part, "name", "")
    if name in _UNTOUCHED:
        return part
    direct: dict[str, Any] = {}
    for field, value in fields.items():
        if field in _MACHINE and name not in _TESTBED:
            continue
        head, _, rest = field.partition(".")
        if not rest:
            direct[head] = value
            continue
        inner = direct.get(head, getattr(part, head))
        if isinstance(inner, Mapping):
            direct[head] = {**inner, rest: value}
        else:
            direct[head] = replace(inner, **{rest: value})
    return replace(part, **direct)


_UNTOUCHED = ("all", "hata", "quest", "unlimited", "physical 25G")
"""Selectors and networks whose constants are measured, or are not those of the fit."""

_TESTBED = ("L20", "L20 host")
_MACHINE = (
    "load_gbytes_per_s",
    "dense_load_gbytes_per_s",
    "weights_efficiency",
    "attend_efficiency",
)
"""Constants that other cards measure, or derive from their own machine."""


def value_of(experiment: "Experiment", constant: Constant) -> float:
    """What a constant is in an experiment."""
    part: Any = experiment
    for name in constant.name.split("."):
        part = part[name] if isinstance(part, Mapping) else getattr(part, name)
    return float(part)
