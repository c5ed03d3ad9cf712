"""Claimed against simulated: a row a claim, from runs and from what the analysis adds."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smartgen.claims.claims import Claim, Score, all_claims
from smartgen.claims.measures import MEASURES, Found

HEADER = ("id", "figure", "claim", "claimed", "unit", "simulated", "error", "set", "verdict")
IMPLIED = ("C035", "C042", "C054", "C056", "C058")
"""Held-out claims whose simulated values follow exactly from those of others."""

SPREAD = ("sets_5", "sets_95")


@dataclass(frozen=True, slots=True)
class Row:
    """A claim and its simulated value.

    sets: between which 90 % of the drawn sets put it; holding: in which share of them an
    order holds.
    """

    claim: Claim
    simulated: float
    sets: tuple[float, float] | None = None
    holding: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error; null for what holds or does not."""
        return self.claim.error(self.simulated)

    @property
    def verdict(self) -> str:
        """As the claim has it."""
        return self.claim.verdict(self.simulated)

    @property
    def is_missed(self) -> bool:
        """Off by more than 15 %, or not holding."""
        return self.verdict in ("miss", "within 20 %")


def rows_of(
    found: Found,
    checked: Mapping[str, float],
    spread: Sequence[Mapping[str, float]] = (),
) -> list[Row]:
    """A row a claim. checked: values that follow from no run. spread: values under other sets."""
    rows = []
    for claim in all_claims():
        if not claim.is_result:
            continue
        simulated = MEASURES[claim.id].value(found) if claim.id in MEASURES else checked[claim.id]
        of_sets = [values[claim.id] for values in spread if claim.id in values]
        sets = holding = None
        if of_sets and claim.kind == "ordinal":
            holding = sum(of_sets) / len(of_sets)
        elif of_sets:
            low, high = np.percentile(of_sets, (5, 95)).tolist()
            sets = (low, high)
        rows.append(Row(claim, float(simulated), sets, holding))
    return rows


def score(rows: Iterable[Row], sets: Sequence[str], without: Sequence[str] = ()) -> Score:
    """Of the numeric claims in some sets, without some."""
    chosen = [row for row in rows if row.claim.set in sets and row.claim.id not in without]
    errors = (row.error for row in chosen)
    return Score(tuple(error for error in errors if error is not None))


def write_claims(rows: Iterable[Row], path: Path) -> None:
    """claims.csv, six significant digits."""
    table = []
    for row in rows:
        claim, error = row.claim, row.error
        told = [claim.id, claim.figure, claim.claim, claim.claimed, claim.unit]
        told += [digits(row.simulated), "" if error is None else digits(error)]
        told += [claim.set, row.verdict, *(map(digits, row.sets) if row.sets else ("", ""))]
        table.append(told)
    write_table(path, (*HEADER, *SPREAD), table)


def digits(value: float) -> str:
    """Six significant digits; what rounding leaves of zero is zero."""
    return f"{value:.6g}" if math.isnan(value) or abs(value) > 1e-9 else "0"


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    partial.replace(path)
