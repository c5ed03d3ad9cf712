"""What engine and policy cost in real time for each layer, as a share of a layer on an L20.

    python benchmarks/engine.py

Nodes and transport are what hardware replaces; engine and policy stay. Measured, in CPU time of one
core: the pipeline of a decoding iteration on nodes whose acts do nothing; a plan and what
speculation asks for in each layer; control words; and the decoding process of an emulation as it
is, by part, from a profile. Writes engine.md.
"""

import asyncio
import cProfile
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from hydra import compose, initialize_config_module

from smartgen.compose import experiment_of
from smartgen.emu.backend import EmuBackend
from smartgen.emu.clock import run
from smartgen.emu.processes.words import Doorbell, Frame, Grant, decode, encode
from smartgen.emu.runtime import EmuRuntime
from smartgen.emu.settings import Settings
from smartgen.engine.idleness import Idleness
from smartgen.engine.messages import Fetch, Idle, Rows
from smartgen.engine.pipeline import Pipeline
from smartgen.experiment import Experiment
from smartgen.metrics.records import Recorder
from smartgen.nodes.report import Parcel
from smartgen.policy import speculate

ROOT = Path(__file__).parents[1]
REPEATS, ITERATIONS = 9, 20
EMULATED = (
    "cluster.prefill_nodes=2",
    "cluster.gpus_per_host=1",
    "workload.requests=2",
    "workload.prompt_tokens=1500",
    "workload.output_tokens=6",
    "network.gbps=10",
)
EMU = ("emu.byte_scale=64", "emu.dilation=5")
PARTS = {
    "engine and policy": ("/smartgen/engine/", "/smartgen/policy/"),
    "books of nodes, Wire, selection": ("/smartgen/nodes/", "/smartgen/cost/", "/smartgen/sel"),
    "indices, rows, checks (GPU's work)": ("/emu/nodes", "/emu/step", "/emu/pool", "/smartgen/kv/"),
    "processes and transport": ("/emu/processes/", "/emu/transports/"),
    "event loop": ("/asyncio/", "/emu/clock", "/emu/runtime", "selectors"),
}
"""Parts of the decoding process by the files that its time is spent in."""


def experiment(*overrides: str) -> Experiment:
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        return experiment_of(compose("config", list(overrides)))


async def nothing(*_: Any) -> None:
    pass


class Step:
    """Acts that do nothing and are over at once; futures and coroutines as those of nodes are."""

    lacks_first_layer, remote = False, True

    def __init__(self, num_requests: int, fetches: bool) -> None:
        self.incomplete = list(range(num_requests))
        self._split = SimpleNamespace(remote=fetches)
        self._over = asyncio.get_running_loop().create_future()
        self._over.set_result(None)

    landed = fetched = nothing

    def act(self, *_: Any) -> Any:
        return self._over

    project = attend = select = feed_forward = load = act

    def in_flight(self, layer: int) -> bool:
        return False

    def split(self, layer: int) -> Any:
        return self._split

    def fetch(self, split: Any) -> list[tuple[int, Fetch]]:
        return [(0, Fetch(1, 0, ()))]


class Channel:
    """Takes everything and says nothing."""

    def send(self, message: Any) -> None:
        pass

    def listen(self, hear: Any) -> None:
        pass


def pipeline_us(served: Experiment, num_requests: int, fetches: bool, looks_ahead: bool) -> float:
    """CPU microseconds of a layer, with speculation announced in each."""
    plan = served.planner().plans_of(served.requests[:1])[0]
    batch = {
        number: SimpleNamespace(plan=plan, peer=0, first_iteration=1)
        for number in range(num_requests)
    }
    layers, found = served.geometry.num_layers, []

    async def main() -> None:
        channel = Channel()
        idleness = Idleness(served.policy, [channel], lambda _: False, Recorder())
        pipeline = Pipeline(
            EmuRuntime(),
            layers,
            looks_ahead,
            "parallel",
            idleness.announce,
            lambda _, fetch: channel.send(fetch),
        )
        step: Any = Step(num_requests, fetches)
        start_s = time.process_time()
        for iteration in range(10, 10 + ITERATIONS):
            idleness.begin(step, batch, iteration)
            await pipeline.run(step)
        found.append((time.process_time() - start_s) / ITERATIONS / layers * 1e6)

    run(main())
    return found[0]


def timed_us(call: Callable[[], Any], times: int = 200) -> float:
    start_s = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - start_s) / times * 1e6


def words(served: Experiment) -> dict[str, Any]:
    index = np.arange(8 * 94, dtype=np.int64).tobytes()
    rows = Rows(1, 1, 94.0, (94,) * 8, index, np.arange(8).tobytes())
    parcel = Parcel((1,), (1,), "proactive", "prefill0", 3, 500, (3750.0,), 4096.0, 1e5, 500)
    blocks = np.arange(500, dtype=np.int64).tobytes()
    return {
        "Fetch, 8 rows of 94 entries": Fetch(1, 3, (rows,)),
        "Idle, 6 requests": Idle(3, (1,) * 6, (4,) * 6, (100,) * 6),
        "Doorbell, 500 blocks": Doorbell(
            7, (0, 1, 3, 4), "host0", "push", 1e6, 1, False, parcel, blocks
        ),
        "Grant": Grant(7),
    }


def emulated_us(served: Experiment) -> tuple[dict[str, float], float, int]:
    """CPU microseconds of the decoding process a layer, by part; iterations; entries fetched."""
    command = [sys.executable, "-m", "smartgen", "prefill"]
    ports = (7301, 7302)
    peers = [
        subprocess.Popen(
            [*command, str(number), f"127.0.0.1:{port}", *EMULATED, *EMU],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, port in enumerate(ports)
    ]
    profile = cProfile.Profile(time.thread_time)
    told = Settings(
        byte_scale=64, dilation=5.0, peers=[f"127.0.0.1:{port}" for port in ports], deadline_s=10.0
    )
    try:
        profile.enable()
        outcome = EmuBackend(settings=told).run(served)
        profile.disable()
    finally:
        for peer in peers:
            try:
                peer.wait(10)
            except subprocess.TimeoutExpired:
                peer.kill()
                peer.wait()
    spent: dict[str, float] = dict.fromkeys([*PARTS, "the rest (numpy, sockets, start)"], 0.0)
    for (file, _, _), row in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        owner = next((p for p, names in PARTS.items() if any(n in file for n in names)), None)
        spent[owner or "the rest (numpy, sockets, start)"] += row[2]
    iterations = outcome.recorders[0].iterations
    layers = len(iterations) * served.geometry.num_layers
    entries = sum(row.remote_entries for row in iterations)
    return {part: s / layers * 1e6 for part, s in spent.items()}, len(iterations), round(entries)


def layer_us(served: Experiment, batch: int) -> float:
    """A layer of a decoding iteration by the cards, nothing remote, 7,500 cached tokens each."""
    reached = np.full(served.geometry.num_layers, 7500.0 * batch)
    sizes = served.selector.mean_ratio * reached * served.geometry.entry_bytes
    return sum(served.cost.local_step(sizes, reached, batch)) / served.geometry.num_layers * 1e6


def main() -> None:
    served, small = experiment(), experiment(*EMULATED)
    by_cards = {batch: layer_us(served, batch) for batch in (1, 6)}
    cases = [(ahead, fetches, n) for ahead in (True, False) for fetches in (0, 1) for n in (1, 6)]
    found: dict[Any, list[float]] = {case: [] for case in cases}
    for _ in range(REPEATS):
        for ahead, fetches, n in cases:
            found[ahead, fetches, n].append(pipeline_us(served, n, bool(fetches), ahead))
    lines = [
        f"Medians of {REPEATS} interleaved repeats, CPU time of one core of {os.cpu_count()} "
        f"(load {os.getloadavg()[0]:.1f}), Python {platform.python_version()}.",
        "",
        "A layer of Qwen3-14B on an L20 by the cards, nothing remote: "
        f"{by_cards[1]:.0f} us (batch 1), {by_cards[6]:.0f} us (batch 6, 7,500 tokens each).",
        "",
        "| pipeline, speculation announced in each layer | batch | us a layer | range | share |",
        "|---|---|---|---|---|",
    ]
    for ahead, fetches, n in cases:
        us = found[ahead, fetches, n]
        name = f"{'looks ahead' if ahead else 'in turn'}, {'a fetch' if fetches else 'no fetch'}"
        share = median(us) / by_cards[n]
        lines.append(
            f"| {name} | {n} | {median(us):.1f} | {min(us):.1f} to {max(us):.1f} | {share:.1%} |"
        )
    planner, request = served.planner(), served.requests[0]
    planner.plans_of([request])
    plan = planner.plans_of([request])[0]
    layers = served.geometry.num_layers
    fresh = median(timed_us(lambda: served.planner().plans_of([request]), 3) for _ in range(5))
    asked = median(timed_us(lambda: speculate(plan, plan.num_planned, 100)) for _ in range(5))
    prefill_us = served.cost.prefill_s(request.prompt_tokens, request.cached_tokens) / layers * 1e6
    lines += [
        "",
        "| policy | us | share |",
        "|---|---|---|",
        f"| a plan of {layers * served.blocks_per_layer:,} blocks, a layer of its prefill "
        f"({prefill_us:.0f} us) | {fresh / layers:.1f} | {fresh / layers / prefill_us:.2%} |",
        f"| the next 100 blocks to push | {asked:.1f} | {asked / by_cards[1]:.2%} |",
        "",
        "| control word | bytes | encode, us | decode, us |",
        "|---|---|---|---|",
    ]
    for name, word in words(served).items():
        data = encode(Frame(1, 0.0, word))
        there = median(timed_us(lambda w=word: encode(Frame(1, 0.0, w))) for _ in range(5))  # type: ignore[misc]
        back = median(timed_us(lambda d=data: decode(d[4:])) for _ in range(5))  # type: ignore[misc]
        lines.append(f"| {name} | {len(data)} | {there:.1f} | {back:.1f} |")
    spent, iterations, entries = emulated_us(small)
    total = sum(spent.values())
    lines += [
        "",
        f"The decoding process of an emulation (tcp, two requests of 1,500 tokens, {iterations} "
        f"iterations, {entries:,} entries fetched), under a profile, which makes Python about "
        "twice as slow:",
        "",
        "| part | us a layer | of all |",
        "|---|---|---|",
        *(f"| {part} | {us:.0f} | {us / total:.0%} |" for part, us in spent.items()),
    ]
    lines += [
        "",
        "Hardware replaces nodes, transport and what stands for the GPU; engine and policy stay. "
        "Most of the pipeline's time is asyncio's: about 20 us for each pair of acts side by side.",
    ]
    text = "\n".join(lines)
    page = "# What engine and policy cost\n\nBy `python benchmarks/engine.py`.\n\n" + text + "\n"
    (ROOT / "benchmarks" / "engine.md").write_text(page, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    asyncio.set_event_loop(None)
    main()
