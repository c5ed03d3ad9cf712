"""smartgen reproduce: the paper's evaluation, claimed against simulated, in one folder.

Runs are kept in results/reproduce, so the same command continues where it was interrupted.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from smartgen.reproduce.figures import FIGURES, Figure
from smartgen.reproduce.marks import marks_of
from smartgen.reproduce.positions import positions
from smartgen.reproduce.results import Row, rows_of, score, write_claims
from smartgen.reproduce.runs import drawn, points_of, run_all

RUNS = Path("results/reproduce")


def run(arguments: Sequence[str], output: Path | None) -> str:
    """Rebuild everything into a folder, results/reference unless another is named."""
    if arguments:
        raise SmartGenError(f"reproduce knows -o FOLDER, not {' '.join(arguments)}")
    target = output or Path("results/reference")
    begun_s, screen = time.monotonic(), Screen(sys.stderr)
    nominal = {name: points_of(name) for figure in FIGURES for name in figure.experiments}
    points = {figure.name: _points(figure, nominal) for figure in FIGURES}
    folders = run_all(sorted({p for of in points.values() for p in of}), RUNS, screen)
    found = _facts(folders)
    checked = checks()
    analysed = analyse(read_sets(), screen)
    told = {check.claim: check.value for check in checked if check.claim}
    told |= positions(read_run(folders[point]) for point in points["figure_5"])
    rows = rows_of(found, told, analysed.sets)
    target.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        screen.show(f"drawing {figure.name}")
        runs = [read_run(folders[point]) for point in points[figure.name]]
        draw(figure.kind, runs, target / figure.name, marks_of(points[figure.name], found))
    charts.draw_claims(rows, target / "claims")
    charts.draw_sensitivity(
        [f"{claim.id}: {claim.claim}" for claim in analysed.held_out],
        [constant.name for constant, _, _ in analysed.ends],
        analysed.changes(0),
        analysed.changes(1),
        target / "sensitivity",
    )
    write_claims(rows, target / "claims.csv")
    report.write_tables(target, analysed)
    compared = beyond.adaptive(folders)
    beyond.write(target, compared)
    more = {"Adaptive schemes against the fixed 10 %": beyond.section(compared)}
    report.write(target, rows, checked, analysed, more)
    report.write_manifest(target, sorted(folders))
    screen.clear()
    return f"{_told(rows)}\nreport:  {target / 'REPORT.md'} ({time.monotonic() - begun_s:.0f} s)\n"


def _points(figure: Figure, nominal: Mapping[str, Sequence[Point]]) -> list[Point]:
    points = [point for name in figure.experiments for point in nominal[name]]
    return points + drawn(points) if figure.is_banded else points


def _facts(folders: Mapping[Point, Path]) -> dict[Point, Facts]:
    asked = {point for measure in MEASURES.values() for point in measure.points}
    return {point: facts_of_run(read_run(folders[point])) for point in sorted(asked)}


def _told(rows: Sequence[Row]) -> str:
    text = ""
    for row in rows:
        claim, error = row.claim, row.error
        off = "" if error is None else f"{100 * error:+.1f} %"
        line = f"{claim.id:6} {claim.claimed:>6} {row.simulated:8.3f} {off:>9}  {row.verdict:12}"
        text += f"{line} {claim.set:14} {claim.claim}\n"
    for name, sets in (("that contradict no other", report.COUNTED), ("held out", ("held_out",))):
        of = score(rows, sets)
        within = [of.within(limit + 1e-9) for limit in (0.1, 0.15, 0.2)]
        text += f"\nnumeric claims {name}: {len(of.errors)}, within 10 % {within[0]}, "
        text += f"15 % {within[1]}, 20 % {within[2]}, median error {100 * of.median:.1f} %"
    holding = [row for row in rows if row.error is None]
    held = sum(not row.is_missed for row in holding)
    return f"{text}\nbounds and orders: {held} of {len(holding)} hold\n"
