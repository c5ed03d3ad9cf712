"""How close the emulator comes to the simulator; records it in emulation.md and a figure.

    python benchmarks/emulation.py
    python benchmarks/emulation.py --transports tcp --dilations 10 --repeats 1

Everything is run by `smartgen experiment=emulation`, once through all ways of emulating, then again
for each further repeat. Finished points are kept: the same command continues where it was cut
short, and after Ctrl-C records what there is. Results lie in results/emulation, tables in
benchmarks/emulation.md, the figure is docs/emulation.png.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from smartgen.emu.settings import TRANSPORTS
from smartgen.metrics.emulation import VALUES, Pair, pairs
from smartgen.metrics.store import Run, read_run
from smartgen.plot import draw
from smartgen.plot.agreement import TITLES, repeated
from smartgen.provenance import source_digest
from smartgen.sweep import finished_points

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "emulation"
SWEEPS = ((), ("policy=smartgen", "policy.speculative_ratio=0.05,0.2"))
"""What is asked for beside the experiment: three schemes, then the other speculative ratios."""

BYTE_SCALE = 64
AIM_MEDIAN, AIM_WORST, AIM_DILATION = 0.05, 0.15, 10.0
WORST_ROWS = 12


@dataclass(frozen=True)
class Way:
    """Of emulating."""

    transport: str
    dilation: float

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.transport}-{self.dilation:g}"

    @property
    def overrides(self) -> list[str]:
        """On the command line."""
        how = {"transport": self.transport, "dilation": self.dilation, "byte_scale": BYTE_SCALE}
        return ["backend=emu", *(f"emu.{key}={value}" for key, value in how.items())]


# -- running


def run(folder: Path, *overrides: str) -> None:
    """Run the points of the experiment in a folder of their own; whatever is there is kept."""
    for sweep in SWEEPS:
        asked = ["experiment=emulation", *sweep, *overrides, "figures=[]", f"results_dir={folder}"]
        print(f"== smartgen {' '.join(asked)}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "smartgen", *asked]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            code = process.wait()
        finally:
            process.wait()  # if interrupted, so is it, and it ends its processes
        if code:
            print(f"it ended with {code}; the others go on", file=sys.stderr, flush=True)


def kept(folder: Path) -> list[Run]:
    """What is there of this source: an earlier one's results are another's."""
    sweeps = sorted((folder / "sweeps").glob("*"))
    points = [point for sweep in sweeps for point in finished_points(sweep)]
    fresh = [point for point in points if told(point)["source_digest"] == source_digest()]
    return [read_run(point) for point in fresh]


def told(point: Path) -> dict[str, Any]:
    """Where a result came from."""
    return dict(json.loads((point / "provenance.json").read_text(encoding="utf-8")))


# -- what came out


def errors(inside: Sequence[Pair], names: Sequence[str]) -> list[float]:
    """How far emulated is from simulated, as shares of the latter, of all runs and values."""
    found = [abs(pair.ratio(name) - 1) for pair in inside for name in names]
    return [each for each in found if not math.isnan(each)] or [math.nan]


def medians_off(inside: Sequence[Pair], names: Sequence[str]) -> list[float]:
    """The same of medians over repeats."""
    each = product(repeated(inside), names)
    found = [abs(median(pair.ratio(name) for pair in repeats) - 1) for repeats, name in each]
    return [off for off in found if not math.isnan(off)] or [math.nan]


def spreads(inside: Sequence[Pair], names: Sequence[str]) -> list[float]:
    """The noise: between the least and the most of repeats, as a share of what was simulated."""
    found = []
    for repeats, name in product(repeated(inside), names):
        ratios = [pair.ratio(name) for pair in repeats]
        if len(ratios) > 1 and not any(map(math.isnan, ratios)):
            found.append(max(ratios) - min(ratios))
    return found or [math.nan]


def place(pair: Pair) -> tuple[str, float]:
    """A scheme with its speculative ratio."""
    policy = pair.emulated.config["policy"]
    return policy["name"], policy["speculative_ratio"]


def gbps(pair: Pair) -> float:
    """The bandwidth."""
    return float(pair.emulated.config["network"]["gbps"])


def orders(inside: Sequence[Pair]) -> dict[tuple[float, str], bool]:
    """For each bandwidth and value: whether medians over repeats order schemes as simulated.

    SmartGen with its default ratio stands for its scheme: what ratios change is less than noise.
    """
    found = {}
    for rate, name in product(sorted({gbps(pair) for pair in inside}), TITLES):
        of_scheme: dict[str, list[Pair]] = {}
        for pair in inside:
            scheme, ratio = place(pair)
            if gbps(pair) == rate and (scheme != "smartgen" or ratio == 0.1):
                of_scheme.setdefault(scheme, []).append(pair)
        if not of_scheme.keys() >= {"full", "partial", "smartgen"}:
            continue  # of a part of a sweep
        emulated = _ranked(of_scheme, name, lambda pair: pair.emulated)
        simulated = _ranked(of_scheme, name, lambda pair: pair.simulated)
        found[rate, name] = emulated == simulated
    return found


def _ranked(of_scheme: dict[str, list[Pair]], name: str, pick: Callable[[Pair], Run]) -> list[str]:
    """Schemes by their medians of a value; one that has none comes last."""
    medians = {}
    for scheme, inside in of_scheme.items():
        values = [VALUES[name](pick(pair).metrics) for pair in inside]
        medians[scheme] = median(math.inf if value is None else value for value in values)
    return sorted(medians, key=lambda scheme: medians[scheme])


# -- telling


def percent(share: float) -> str:
    """With a digit, or a dash."""
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def summary(ways: dict[Way, list[Pair]]) -> list[str]:
    """A line a way of emulating."""
    head = ["dilation", "transport", "runs", "median error, %", "worst, %", "TTFT median, worst, %"]
    head += ["noise median, worst, %", "timers late p50, p99, ms", "orders as simulated"]
    rows = []
    for way, inside in ways.items():
        compared, first = errors(inside, tuple(TITLES)), errors(inside, ("ttft_s",))
        noise = spreads(inside, tuple(TITLES))
        late = [pair.told["timer_late_s"] for pair in inside]
        p50_ms, p99_ms = (median(each[name] for each in late) * 1e3 for name in ("p50", "p99"))
        kept = orders(inside)
        rows.append(
            [
                f"{way.dilation:g}",
                way.transport,
                str(len(inside)),
                percent(median(compared)),
                percent(max(compared)),
                f"{percent(median(first))}, {percent(max(first))}",
                f"{percent(median(noise))}, {percent(max(noise))}",
                f"{p50_ms:.2f}, {p99_ms:.2f}",
                f"{sum(kept.values())} of {len(kept)}",
            ]
        )
    return table(head, rows)


def by_metric(ways: dict[Way, list[Pair]]) -> list[str]:
    """Medians and worst errors of each value."""
    rows = [
        [f"{way.dilation:g}", way.transport]
        + [
            f"{percent(median(found))}, {percent(max(found))}"
            for found in (errors(inside, (name,)) for name in TITLES)
        ]
        for way, inside in ways.items()
    ]
    return table(["dilation", "transport", *TITLES.values()], rows)


def largest(ways: dict[Way, list[Pair]]) -> list[str]:
    """The points that are farthest off, by their medians over repeats; the noise stands beside."""
    found = []
    for way, inside in ways.items():
        for repeats, name in product(repeated(inside), TITLES):
            ratios = [pair.ratio(name) for pair in repeats]
            if not any(map(math.isnan, ratios)):
                found.append((abs(median(ratios) - 1), way, repeats[0], name, ratios))
    found.sort(key=lambda each: -each[0])
    rows = []
    for off, way, pair, name, ratios in found[:WORST_ROWS]:
        scheme, ratio = place(pair)
        rows.append(
            [
                way.name,
                f"{scheme} {ratio:g}" if scheme == "smartgen" else scheme,
                f"{gbps(pair):g}",
                TITLES[name],
                f"{VALUES[name](pair.simulated.metrics) or math.nan:.4f}",
                percent(off),
                f"{min(ratios):.3f} to {max(ratios):.3f}",
            ]
        )
    head = ["way", "scheme", "Gbps", "value", "simulated, s", "median off by, %", "ratios"]
    return table(head, rows)


def misordered(ways: dict[Way, list[Pair]]) -> list[str]:
    """Which orders are not as simulated."""
    return [
        f"- {way.name}, {rate:g} Gbps, {TITLES[name]}"
        for way, inside in ways.items()
        for (rate, name), same in orders(inside).items()
        if not same
    ]


def aim(ways: dict[Way, list[Pair]]) -> list[str]:
    """Whether the aim was reached where it was set."""
    lines = []
    for way, inside in ways.items():
        if way.dilation == AIM_DILATION:
            found = errors(inside, tuple(TITLES))
            met = median(found) <= AIM_MEDIAN and max(found) <= AIM_WORST
            kept_orders = orders(inside)
            same = bool(kept_orders) and all(kept_orders.values())
            steady = max(medians_off(inside, tuple(TITLES)))
            lines.append(
                f"- {way.transport}: median {percent(median(found))} %, worst "
                f"{percent(max(found))} % (of medians over repeats: {percent(steady)} %), orders "
                f"{'as' if same else 'not all as'} simulated: "
                f"{'met' if met and same else 'missed'}."
            )
    if not lines:
        return []
    told = f"Aim at dilation {AIM_DILATION:g}: median error at most {100 * AIM_MEDIAN:g} %, worst "
    return [f"{told}{100 * AIM_WORST:g} %, order of schemes as simulated.", "", *lines, ""]


def record(ways: dict[Way, list[Pair]], loads: Sequence[float]) -> str:
    """The page."""
    folders = [pair.emulated.folder for inside in ways.values() for pair in inside]
    commits = sorted({str(told(folder)["commit"]) for folder in folders})
    wrong = misordered(ways)
    lines = [
        "# The emulator beside the simulator",
        "",
        f"Recorded by `python benchmarks/emulation.py{_asked()}`",
        f"at {', '.join(commits)}, on {os.cpu_count()} cores, shared; load over a minute "
        f"{min(loads):.1f} to {max(loads):.1f}, what is measured included.",
        "",
        "`smartgen experiment=emulation`: Qwen3-14B on L20 cards, two prefill processes and a",
        "decoding one, two prompts of 1,500 tokens, six tokens each, discipline fifo; full,",
        "partial and smartgen at 5, 10 and 20 Gbps, smartgen at three speculative ratios;",
        f"one byte moved for {BYTE_SCALE}. An error is (emulated / simulated - 1), without its",
        "sign, of a run's mean TTST, TBT or CTL at the last token; medians and worst are over all",
        "runs and these three. Noise is the most less the least of repeats, as a share of what was",
        "simulated. Timers are late in the cards' time, medians over runs. Orders: for each",
        "bandwidth and value, whether full, partial and smartgen (ratio 0.1) come in the same",
        "order, by medians over repeats.",
        "",
        *aim(ways),
        *summary(ways),
        "",
        "Median and worst error of each value, in percent:",
        "",
        *by_metric(ways),
        "",
        "Orders that are not as simulated:" if wrong else "All compared orders are as simulated.",
        *(["", *wrong] if wrong else []),
        "",
        "Farthest off:",
        "",
        *largest(ways),
        "",
        "![Emulated over simulated](../docs/emulation.png)",
    ]
    return "\n".join(lines) + "\n"


def _asked() -> str:
    return "".join(f" {argument}" for argument in sys.argv[1:])


def main() -> None:
    """Run what is asked for and record it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--dilations", nargs="+", type=float, default=[1.0, 3.0, 10.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--record", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "emulation.png")
    asked = parser.parse_args()
    run(asked.results / "sim")
    runs = kept(asked.results / "sim")
    ways = [Way(*how) for how in product(asked.transports, asked.dilations)]
    emulated: dict[Way, list[Run]] = {way: [] for way in ways}
    loads = [os.getloadavg()[0]]
    try:
        for repeat, way in product(range(asked.repeats), ways):
            run(asked.results / f"repeat-{repeat}" / way.name, *way.overrides)
            loads.append(os.getloadavg()[0])
    except KeyboardInterrupt:
        print("interrupted; what is finished is recorded", file=sys.stderr)
    for repeat, way in product(range(asked.repeats), ways):
        emulated[way] += kept(asked.results / f"repeat-{repeat}" / way.name)
    found = {way: pairs([*runs, *emulated[way]]) for way in ways if emulated[way]}
    if not found:
        sys.exit("nothing was emulated; nothing is recorded")
    text = record(found, loads)
    asked.record.write_text(text, encoding="utf-8")
    draw("agreement", [*runs, *(each for way in ways for each in emulated[way])], asked.figure)
    print(text)


if __name__ == "__main__":
    main()
