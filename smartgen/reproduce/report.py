"""REPORT.md and the tables beside it."""

import csv
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from smartgen.claims.claims import EVEN, LIMITS
from smartgen.claims.command import read_costs, read_sets
from smartgen.claims.constants import all_constants
from smartgen.claims.facts import Point
from smartgen.provenance import program_version, source_digest
from smartgen.reproduce.analysis import Analysed, Values
from smartgen.reproduce.checks import Check
from smartgen.reproduce.figures import FIGURES
from smartgen.reproduce.results import IMPLIED, Row, digits, score, write_table

COUNTED = ("fit", "held_out", "parameter_free")
"""Sets of the second denominator: all that contradict no other."""


def write(
    target: Path,
    rows: Sequence[Row],
    checks: Sequence[Check],
    analysed: Analysed,
    more: Mapping[str, str],
) -> None:
    """REPORT.md. more: further sections, text by title."""
    sections = {
        "Claimed against simulated": _scores(rows) + "\n" + _claims(rows),
        "Misses, and why": _misses(rows),
        "What follows from sizes and measured rates alone": _checks(checks),
        "Constants": _constants(),
        "What each mechanism buys": _switches(analysed),
        "What held-out claims are sensitive to": _sensitivity(analysed),
        **more,
        "Figures": _figures(),
    }
    text = _INTRODUCTION + "".join(f"\n## {title}\n\n{body}\n" for title, body in sections.items())
    partial = target / ".REPORT.md.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(target / "REPORT.md")


_INTRODUCTION = """\
# The paper's evaluation, claimed against simulated

Made by `smartgen reproduce`; nothing here is edited by hand. Simulated values are from the
event-driven simulator. What is varied (sets, ranges, mechanisms) is computed by the recursion
where that knows the mechanism; a test holds it to the simulator to 1e-9.

Which claims constants were fitted to, and which not, was fixed before the fit
([docs/claims.md](../../docs/claims.md)). The equations and the workloads that the paper leaves
open were chosen by others with all claims in view: what is held out are constants, not structure.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(value: float | None) -> str:
    """Signed, one digit."""
    return "" if value is None else f"{100 * value:+.1f} %"


def _scores(rows: Sequence[Row]) -> str:
    groups = {
        "fitted": ("fit",),
        "held out": ("held_out",),
        _ALONE: ("held_out",),
        "parameter free": ("parameter_free",),
        "all that contradict no other": COUNTED,
        "contradictions": ("contradiction",),
        "all numeric claims": (*COUNTED, "contradiction"),
    }
    lines = []
    for name, sets in groups.items():
        of = score(rows, sets, IMPLIED if name == _ALONE else ())
        within = [f"{of.within(limit)}" for limit in LIMITS]
        lines.append((name, len(of.errors), *within, f"{100 * of.median:.1f} %"))
    header = ("numeric claims", "number", "within 10 %", "15 %", "20 %", "median error")
    holding = [row for row in rows if row.error is None]
    held = sum(not row.is_missed for row in holding)
    return table(header, lines) + f"\nBounds and orders: {held} of {len(holding)} hold.\n"


_ALONE = f"held out, less those implied by others ({', '.join(IMPLIED)})"


def _claims(rows: Sequence[Row]) -> str:
    def line(row: Row) -> Sequence[object]:
        claim = row.claim
        sets = f"{row.sets[0]:.3g} to {row.sets[1]:.3g}" if row.sets else ""
        simulated = f"{row.simulated:.3g}"
        if claim.kind == "ordinal":
            simulated = "yes" if row.simulated else "no"
            sets = "" if row.holding is None else f"yes in {100 * row.holding:.0f} %"
        told = (claim.id, claim.figure, claim.claim, f"{_SIGNS.get(claim.kind, '')}{claim.claimed}")
        return (*told, claim.unit, simulated, sets, percent(row.error), claim.set, row.verdict)

    header = ("id", "figure", "claim", "claimed", "unit", "simulated", "90 % of draws", "error")
    return table((*header, "set", "verdict"), map(line, rows))


_SIGNS = {"below": "< ", "above": "> ", "at_most": "<= "}


def _misses(rows: Sequence[Row]) -> str:
    """Off by more than 15 %, or not holding."""
    reasons = read_reasons()
    lines = []
    for row in rows:
        if row.is_missed:
            reason = reasons.get(row.claim.id) or row.claim.reason or "no reason known"
            off = percent(row.error) or "does not hold"
            lines.append(f"- **{row.claim.id}**, {row.claim.claim} ({off}): {reason}.")
    return "\n".join(lines) + "\n"


def read_reasons() -> dict[str, str]:
    """Why a claim is missed, by id."""
    path = Path(__file__).with_name("reasons.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row["reason"] for row in csv.DictReader(file)}


def _checks(checks: Sequence[Check]) -> str:
    lines = [(c.name, c.arithmetic, f"{c.value:.3g} {c.unit}", c.stated, c.claim) for c in checks]
    return table(("check", "arithmetic", "value", "stated", "claim"), lines)


def _constants() -> str:
    best, *others = read_sets()
    lines = []
    for constant in all_constants():
        name = constant.name
        ends = (constant.low, constant.high)
        spread = ""
        if constant.is_fitted:
            values = sorted(one[name] for one in others)
            low, high = values[len(values) // 20], values[-1 - len(values) // 20]
            spread = f"{low:.3g} to {high:.3g}"
        value = f"{best[name]:.3g}" if constant.is_fitted else ""
        lines.append(
            (
                name,
                constant.unit,
                f"{constant.prior:g}",
                value,
                spread,
                f"{ends[0]:g} to {ends[1]:g}",
            )
        )
    header = ("constant", "unit", "guess", "fitted", "90 % of draws", "range shown below")
    return table(header, lines)


def _switches(analysed: Analysed) -> str:
    claims = [c for c in analysed.claims if c.is_number and c.set in COUNTED]

    def counts(values: Values) -> list[str]:
        errors = [abs(claim.error(values[claim.id]) or 0.0) for claim in claims]
        return [str(sum(error <= limit + EVEN for error in errors)) for limit in LIMITS]

    def moved(values: Values) -> str:
        ratio: Callable[[str], float] = lambda i: abs(values[i] / analysed.base[i] - 1)  # noqa: E731
        most = sorted((claim.id for claim in claims), key=ratio, reverse=True)[:3]
        told = [f"{i} {analysed.base[i]:.3g} to {values[i]:.3g}" for i in most if ratio(i) > 0.02]
        return ", ".join(told)

    lines = [("as it is", "", *counts(analysed.base), f"{read_costs()[0]:.1f}", "", "")]
    for switch, values in analysed.switches:
        refit = analysed.refits.get(switch.meaning)
        again = (f"{refit[0]:.1f}", counts(refit[1])[1]) if refit else ("", "")
        lines.append((switch.name, switch.meaning, *counts(values), *again, moved(values)))
    note = (
        f"Of {len(claims)} numeric claims that follow from the closed law of selection and "
        "contradict no other, how many are met when one mechanism is off or set otherwise. Then "
        "the cost of the fit without it, constants fitted again to the same 18 claims, and how "
        "many of all are within 15 % with those. What only the simulator knows is not fitted.\n\n"
    )
    header = ("mechanism", "instead", "within 10 %", "15 %", "20 %", "cost", "15 %, fitted again")
    return note + table((*header, "what moves most"), lines)


def _sensitivity(analysed: Analysed) -> str:
    low, high = analysed.changes(0), analysed.changes(1)
    lines = []
    for number, claim in enumerate(analysed.held_out):
        reach = abs(high[number] - low[number])
        most = reach.argsort()[::-1][:3]
        told = [
            f"{analysed.ends[i][0].name}: {percent(low[number, i])} to {percent(high[number, i])}"
            for i in most
        ]
        lines.append((claim.id, claim.claim, *told))
    note = (
        "Change of the simulated value over each constant's range; `sensitivity.csv` has all.\n\n"
    )
    return note + table(("id", "claim", "most", "second", "third"), lines)


def _figures() -> str:
    note = (
        "Diamonds stand where a claim, which is a ratio or a difference, puts a run relative to "
        "another run as simulated. Bands are of three batches whose lengths are drawn (standard "
        "deviation 10 %), in which short requests wait for long ones: lines, of equal lengths, "
        "may lie outside.\n\n"
    )
    names = [("claims", "Simulated over claimed."), ("sensitivity", "Tornados of held-out claims.")]
    names += [(figure.name, figure.caption) for figure in FIGURES]
    shown = [f"**{name}**: {text}\n\n![{text}]({name}.png)\n" for name, text in names]
    return note + "\n".join(shown)


def write_tables(target: Path, analysed: Analysed) -> None:
    """sensitivity.csv and switches.csv: every claim under every change."""
    low, high = analysed.changes(0), analysed.changes(1)
    lines = [
        (claim.id, constant.name, digits(low[i, k]), digits(high[i, k]))
        for i, claim in enumerate(analysed.held_out)
        for k, (constant, _, _) in enumerate(analysed.ends)
    ]
    write_table(target / "sensitivity.csv", ("id", "constant", "low", "high"), lines)
    changed = [
        (switch.name, switch.meaning, claim.id, digits(values[claim.id]))
        for switch, values in analysed.switches
        for claim in analysed.claims
    ]
    write_table(target / "switches.csv", ("mechanism", "instead", "id", "simulated"), changed)


def write_manifest(target: Path, points: Sequence[Point]) -> None:
    """What it was made of: version, source, libraries, and how many runs of each experiment."""
    manifest = {
        "version": program_version(),
        "source_digest": source_digest(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "simpy", "matplotlib")},
        "runs": Counter(point.experiment for point in points),
    }
    text = json.dumps(manifest, indent=1) + "\n"
    (target / "manifest.json").write_text(text, encoding="utf-8")
