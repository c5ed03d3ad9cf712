"""smartgen fit: constants from the claims of the set "fit", and sets that fit about as well.

Each start and each chain is kept in results/fit as soon as it is done, so that the same command
continues where it was interrupted.
"""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smartgen.claims.claims import Score
from smartgen.claims.constants import fitted_constants
from smartgen.claims.fit import Optimum, Problem, as_good, descend, problem, start
from smartgen.claims.measures import MEASURES
from smartgen.claims.switches import SWITCHES
from smartgen.errors import SmartGenError
from smartgen.progress import Screen
from smartgen.provenance import source_digest
from smartgen.workers import over_cores

STARTS, CHAINS, DRAWS, BURNT, KEPT = 8, 4, 340, 100, 12
"""Starts of the descent; chains of draws at its end, their length, their beginning that is left
out, and how many of each are kept."""

SETS = Path(__file__).with_name("sets.csv")
"""The best set (its first row) and sets that fit about as well."""

REFITS = Path(__file__).with_name("refits.csv")
"""The best set without each mechanism that the recursion knows, in the order of SWITCHES."""


def run(arguments: Sequence[str], output: Path | None) -> str:
    """Fit, write the sets (to results/fit/sets.csv unless told otherwise); what came out."""
    if arguments:
        raise SmartGenError(f"fit knows -o FILE, not {' '.join(arguments)}")
    folder = Path("results/fit")
    folder.mkdir(parents=True, exist_ok=True)
    screen, of = Screen(sys.stderr), problem()
    found = kept(folder, "start", range(STARTS), lambda seed: _start(of, seed), screen)
    best = min(found, key=lambda one: float(one["cost"]))
    optimum = Optimum(np.array(best["logs"]), best["cost"], np.array(best["jacobian"]))
    chains = kept(folder, "chain", range(CHAINS), lambda seed: _chain(of, optimum, seed), screen)
    rows = [
        (optimum.logs.tolist(), float(optimum.cost)),
        *(row for c in chains for row in c["sets"]),
    ]
    path = output or folder / SETS.name
    write_sets(path, rows)
    switched = [number for number, switch in enumerate(SWITCHES) if switch.is_recursive]
    refits = kept(folder, "mechanism", switched, lambda seed: _refit(of, optimum, seed), screen)
    write_sets(path.with_name(REFITS.name), [(one["logs"], one["cost"]) for one in refits])
    told = _constants(of, rows, [float(one["cost"]) for one in found])
    return f"{told}\n{_claims(of, optimum)}\nsets:    {path}\n"


def kept(
    folder: Path,
    name: str,
    seeds: Iterable[int],
    act: Callable[[int], dict[str, Any]],
    screen: Screen,
) -> list[dict[str, Any]]:
    """What an act gives for each seed: read if this source gave it before, else made and kept."""
    digest = _digest()
    paths = {seed: folder / f"{name}-{seed}-{digest}.json" for seed in seeds}
    missing = [seed for seed, path in paths.items() if not path.is_file()]

    def one(seed: int) -> int:
        partial = paths[seed].with_suffix(".partial")
        partial.write_text(json.dumps(act(seed)), encoding="utf-8")
        partial.replace(paths[seed])
        return seed

    for number, (_, seed) in enumerate(over_cores(one, missing, f"{name}s"), start=1):
        cost = json.loads(paths[seed].read_text(encoding="utf-8"))["cost"]
        screen.say(f"[{number}/{len(missing)}] {name} {seed}: cost {cost:.3f}")
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths.values()]


def _digest() -> str:
    """Of the program and of what the fit reads."""
    import hashlib

    told = source_digest()
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), here / "claims.csv", here / "constants.csv"]):
        told += path.read_text(encoding="utf-8")
    conf = Path(__file__).parents[1] / "conf"
    for root, _, files in sorted(os.walk(conf, followlinks=True)):
        told += "".join(
            Path(root, f).read_text("utf-8") for f in sorted(files) if f.endswith("yaml")
        )
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _start(of: Problem, seed: int) -> dict[str, Any]:
    found = descend(of, start(of, seed))
    return {"logs": found.logs.tolist(), "cost": found.cost, "jacobian": found.jacobian.tolist()}


def _refit(of: Problem, best: Optimum, number: int) -> dict[str, Any]:
    """Fitted again without a mechanism, from the best set with it."""
    found = descend(replace(of, switch=SWITCHES[number]), best.logs)
    return {"logs": found.logs.tolist(), "cost": found.cost}


def _chain(of: Problem, best: Optimum, seed: int) -> dict[str, Any]:
    draws = list(as_good(of, best, DRAWS, seed))
    every = (DRAWS - BURNT) // KEPT
    thinned = [(logs.tolist(), cost) for logs, cost, _ in draws[BURNT + every - 1 :: every]]
    moved = sum(moved for *_, moved in draws) / len(draws)
    return {"sets": thinned, "cost": min(cost for _, cost in thinned), "moved": moved}


# -- sets.csv


def write_sets(path: Path, rows: Iterable[tuple[Sequence[float], float]]) -> None:
    """A row a set: its cost, then the fitted constants; whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cost", *(constant.name for constant in fitted_constants())])
        for logs, cost in rows:
            writer.writerow([f"{cost:.4f}", *(f"{np.exp(x):.6g}" for x in logs)])
    partial.replace(path)


def read_sets(path: Path = SETS) -> list[dict[str, float]]:
    """Constants by name, of the best set and of the others."""
    return [{key: v for key, v in row.items() if key != "cost"} for row in _read(path)]


def read_costs(path: Path = SETS) -> list[float]:
    """The costs of the same sets."""
    return [row["cost"] for row in _read(path)]


def read_refits() -> dict[str, tuple[float, dict[str, float]]]:
    """For each mechanism that was fitted without, by its meaning: cost and constants."""
    told = [switch.meaning for switch in SWITCHES if switch.is_recursive]
    rows = [(row.pop("cost"), row) for row in _read(REFITS)]
    return dict(zip(told, rows, strict=True))


def _read(path: Path) -> list[dict[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


# -- what is printed


def _constants(
    of: Problem, rows: Sequence[tuple[Sequence[float], float]], costs: Sequence[float]
) -> str:
    values = np.exp(np.array([logs for logs, _ in rows]))
    low, high = np.percentile(values[1:], (5, 95), axis=0)
    line = "{:44} {:>9} {:>9} {:>20}  {}\n"
    told = line.format("constant", "guess", "best", "5 to 95 % of draws", "unit")
    for number, constant in enumerate(of.constants):
        spread = f"{low[number]:.3g} to {high[number]:.3g}"
        best = f"{values[0, number]:.4g}"
        told += line.format(constant.name, constant.prior, best, spread, constant.unit)
    ends = ", ".join(f"{cost:.3f}" for cost in sorted(costs))
    return f"{told}\ncosts of {len(costs)} starts: {ends}\n"


def _claims(of: Problem, best: Optimum) -> str:
    found = of.facts(best.logs)
    errors, told = [], ""
    for claim in of.claims:
        simulated = MEASURES[claim.id].value(found)
        error = claim.error(simulated)
        assert error is not None
        errors.append(error)
        line = f"{claim.id:6} {claim.claimed:>5} {simulated:8.3f} {error:+7.1%}  {claim.claim}"
        told += line + "\n"
    score = Score(tuple(errors))
    return f"{told}{score.within(0.1)} of {len(errors)} fitted claims within 10 %\n"
