"""smartgen reproduce: the paper's evaluation, claimed against simulated, in one folder.

Runs are kept in results/reproduce, so the same command continues where it was interrupted.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from smartgen.claims.claims import LIMITS
from smartgen.claims.command import read_sets
from smartgen.claims.facts import Facts, Point, facts_of_run
from smartgen.claims.measures import MEASURES
from smartgen.errors import SmartGenError
from smartgen.metrics.store import read_run
from smartgen.plot import draw
from smartgen.progress import Screen
from smartgen.reproduce import beyond, charts, report
from smartgen.reproduce.analysis import analyse
from smartgen.reproduce.checks import checks
from smartgen.reproduce.figures import COMPARED, FIGURES, Figure
from smartgen.reproduce.marks import marks_of
from smartgen.reproduce.positions import positions
from smartgen.reproduce.results import Row, rows_of, score, write_claims
from smartgen.reproduce.runs import banded, points_of, run_all

RUNS = Path("results/reproduce")
REFERENCE = Path("results/reference")


def run(arguments: Sequence[str], output: Path | None) -> str:
    """Rebuild everything into a folder, results/reference unless another is named."""
    if arguments:
        raise SmartGenError(f"reproduce knows -o FOLDER, not {' '.join(arguments)}")
    target = output or REFERENCE
    _make(target)
    begun_s, screen = time.monotonic(), Screen(sys.stderr)
    made = _run(screen)
    checked, analysed = checks(), analyse(read_sets(), screen)
    told = {check.claim: check.value for check in checked if check.claim}
    told |= positions(read_run(made.folders[point]) for point in made.points["figure_5"])
    rows = rows_of(made.found, told, analysed.sets)
    _draw(made, target, screen)
    compared = beyond.adaptive(made.folders)
    charts.draw_claims(rows, target / "claims")
    charts.draw_sensitivity(analysed, target / "sensitivity")
    charts.draw_adaptive(compared, target / "adaptive")
    write_claims(rows, target / "claims.csv")
    report.write_tables(target, analysed)
    beyond.write(target, compared)
    more = {"Adaptive schemes against the fixed 10 %": beyond.section(compared)}
    report.write(target, rows, checked, analysed, more)
    report.write_manifest(target, sorted(made.folders))
    screen.clear()
    return f"{_told(rows)}\nreport:  {target / 'REPORT.md'} ({time.monotonic() - begun_s:.0f} s)\n"


@dataclass(frozen=True)
class _Made:
    """All runs: the points of each figure, the folder of each point, what claims ask of them."""

    points: Mapping[str, Sequence[Point]]
    folders: Mapping[Point, Path]
    found: Mapping[Point, Facts]


def _run(screen: Screen) -> _Made:
    nominal = {name: points_of(name) for figure in FIGURES for name in figure.experiments}
    points = {figure.name: _points(figure, nominal) for figure in FIGURES}
    asked = {point for of in points.values() for point in of}
    asked |= {*banded(points_of(COMPARED[0])), *points_of(COMPARED[1])}
    folders = run_all(sorted(asked), RUNS, screen)
    told = {point for measure in MEASURES.values() for point in measure.points}
    found = {point: facts_of_run(read_run(folders[point])) for point in sorted(told)}
    return _Made(points, folders, found)


def _points(figure: Figure, nominal: Mapping[str, Sequence[Point]]) -> list[Point]:
    points = [point for name in figure.experiments for point in nominal[name]]
    return banded(points) if figure.is_banded else points


def _make(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SmartGenError(f"{target} cannot be written: {error.strerror}") from error


def _draw(made: _Made, target: Path, screen: Screen) -> None:
    for figure in FIGURES:
        screen.show(f"drawing {figure.name}")
        points = made.points[figure.name]
        runs = [read_run(made.folders[point]) for point in points]
        draw(figure.kind, runs, target / figure.name, marks_of(points, made.found))


def _told(rows: Sequence[Row]) -> str:
    text = ""
    for row in rows:
        claim, error = row.claim, row.error
        off = "" if error is None else f"{100 * error:+.1f} %"
        line = f"{claim.id:6} {claim.claimed:>6} {row.simulated:8.3f} {off:>9}  {row.verdict:12}"
        text += f"{line} {claim.set:14} {claim.claim}\n"
    for name, sets in (("that contradict no other", report.COUNTED), ("held out", ("held_out",))):
        of = score(rows, sets)
        within = [of.within(limit) for limit in LIMITS]
        text += f"\nnumeric claims {name}: {len(of.errors)}, within 10 % {within[0]}, "
        text += f"15 % {within[1]}, 20 % {within[2]}, median error {100 * of.median:.1f} %"
    holding = [row for row in rows if row.error is None]
    held = sum(not row.is_missed for row in holding)
    return f"{text}\nbounds and orders: {held} of {len(holding)} hold\n"
