"""Every run of the evaluation, over all cores; what was finished before is kept."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartgen.claims.facts import Point
from smartgen.errors import SmartGenError
from smartgen.progress import Screen
from smartgen.workers import over_cores

if TYPE_CHECKING:
    from omegaconf import DictConfig

SEEDS = (1, 2, 3)
LENGTH_CV = 0.1
"""Batches of drawn lengths: a guess, small enough that all of a batch are prefilled together."""

_CHUNK = 8  # runs that a worker takes at a time: enough to make up for handing them over


def points_of(experiment: str) -> list[Point]:
    """Every point of an experiment's sweep."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    from smartgen import sweep

    sweep.register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_module("smartgen.conf", version_base="1.3"):
        config = compose("config", [f"experiment={experiment}"], return_hydra_config=True)
        values = sweep.choices(config)
    swept = [options for key, options in values.items() if key != "experiment"]
    return [Point(experiment, overrides) for overrides in product(*swept)]


def banded(points: Sequence[Point]) -> list[Point]:
    """The points, and the same with drawn lengths."""
    return [*points, *drawn(points)]


def drawn(points: Iterable[Point]) -> list[Point]:
    """The same points with drawn lengths, once a seed."""
    return [
        Point(p.experiment, (*p.overrides, f"workload.length_cv={LENGTH_CV}", f"seed={seed}"))
        for p in points
        for seed in SEEDS
    ]


def folder_of(root: Path, point: Point) -> Path:
    """Where a point's run is kept."""
    from smartgen.sweep import point_name

    keys = [override.partition("=")[0] for override in point.overrides]
    return root / point.experiment / point_name(point.overrides, keys)


def run_all(points: Sequence[Point], root: Path, screen: Screen) -> dict[Point, Path]:
    """Run what this configuration and source have not run yet; a folder a point."""
    chunks = [points[i : i + _CHUNK] for i in range(0, len(points), _CHUNK)]
    done = ran = 0
    made = over_cores(partial(_run_chunk, root), chunks, f"parts of {len(points)} runs")
    for _, (new, finished) in made:
        done, ran = done + finished, ran + new
        screen.show(f"{done} of {len(points)} runs")
    screen.say(f"{len(points)} runs: {ran} made, {len(points) - ran} kept")
    return {point: folder_of(root, point) for point in points}


def _run_chunk(root: Path, chunk: Sequence[Point]) -> tuple[int, int]:
    from smartgen.claims.compose import configs_of

    configs = configs_of(point.arguments for point in chunk)
    new = sum(_run(point, c, root) for point, c in zip(chunk, configs, strict=True))
    return new, len(chunk)


def _run(point: Point, config: "DictConfig", root: Path) -> bool:
    """Run one point unless it is kept; whether it was run."""
    from smartgen.compose import backend_of, experiment_of, plain_of
    from smartgen.metrics.store import write_run
    from smartgen.provenance import provenance
    from smartgen.sweep import is_done

    folder, plain = folder_of(root, point), plain_of(config)
    told: Mapping[str, Any] = {**provenance(plain), "point": 0}
    if is_done(folder, told["fingerprint"]):
        return False
    try:
        backend, experiment = backend_of(config), experiment_of(config)
        write_run(folder, plain, told, backend.name, experiment, backend.run(experiment))
    except SmartGenError as error:
        raise SmartGenError(f"{' '.join(point.arguments)}: {error}") from error
    return True
