"""Which positions of a prompt are selected, in a layer of either kind (as Figure 5)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smartgen.errors import SmartGenError
from smartgen.metrics.store import Run
from smartgen.plot.style import GUIDE, PAGE_INCHES, Look, canvas, legend_above, looks
from smartgen.selection import BlockSelection
from smartgen.selection.statistics import Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REQUESTS = 16
"""Requests that are drawn for each run, with all their heads."""

_PUBLISHED = (8, 14)
"""The layers that the paper shows: one that looks back little, one that looks back far."""

_MARKS = (
    (30, "30 % of heads and requests (stated: more, in the last 25 %)"),
    (50, "50 % (stated: most positions less)"),
)
_MARK_DASHES: tuple[Any, ...] = ((0, (4, 1.5)), (0, (1, 1)))
_KINDS = ("a high recency plateau", "a low one")
_BINS = 100

Curve = npt.NDArray[np.float64]


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: the share of heads and requests that select each relative position.

    On the left the layer with a high recency plateau that is nearest to layer 8, on the right one
    with a low plateau, nearest to 14. A run's tables do not keep what each head selects. It is
    drawn anew from the law in the run's configuration, for requests of the run's median length,
    other ones for each length. That positions matter alike at all lengths is how the law is made;
    lines of several lengths show how far samples of 16 requests differ.
    """
    shares = [shares_by_position(run) for run in runs]
    with canvas(path, PAGE_INCHES, 2.2) as figure:
        found = looks(runs)
        for number, axes in enumerate(figure.subplots(1, 2, sharey=True)):
            _draw_lines(axes, _KINDS[number], found, [pair[number] for pair in shares])
            height, told = _MARKS[number]
            axes.axhline(
                height, color=GUIDE, linewidth=0.9, linestyle=_MARK_DASHES[number], label=told
            )
            axes.axvspan(75, 100, color="#eeeeee", zorder=0, linewidth=0)
            axes.set_xlabel("position in the prompt (%)")
            axes.set_xlim(0, 100)
            axes.set_xticks(range(0, 101, 25))
        figure.axes[0].set_ylabel("heads and requests\nthat select it (%)")
        figure.axes[0].set_ylim(0, None)
        legend_above(figure)


def _draw_lines(
    axes: "Axes", kind: str, found: Sequence[Look], curves: Sequence[tuple[int, Curve] | None]
) -> None:
    titles = []
    for look, pair in zip(found, curves, strict=True):
        if pair is None:
            continue
        layer, share = pair
        titles.append(layer)
        at = (np.arange(len(share)) + 0.5) / len(share) * 100
        axes.plot(
            at,
            100 * share,
            color=look.color,
            linestyle=look.dashes,
            linewidth=0.9,
            label=look.label,
        )
    numbers = ", ".join(str(layer) for layer in dict.fromkeys(titles)) or "none"
    axes.set_title(f"layer {numbers} ({kind})", fontsize=8)


def shares_by_position(run: Run) -> list[tuple[int, Curve] | None]:
    """For a layer of each kind its number and its share of selecting heads and requests."""
    from omegaconf import OmegaConf

    from smartgen.compose import experiment_of

    experiment = experiment_of(OmegaConf.create(run.config))
    law = experiment.selection
    if not isinstance(law, BlockSelection):
        raise SmartGenError(
            f"plot='importance' needs selection=blocks; {run.folder.name} knows no positions"
        )
    lengths = sorted(request.prompt_tokens for request in experiment.requests)
    length = lengths[len(lengths) // 2]
    sample = Sample(
        law=law,
        geometry=experiment.geometry,
        selector=experiment.selector,
        num_tokens=length,
        seed=experiment.seed,
        requests=REQUESTS,
        heads=experiment.geometry.num_kv_heads,
        first_request=length,
    )
    share = sample.selected_share()
    high = law.is_high(len(share), experiment.seed)
    first = experiment.selector.dense_layers
    return [
        _nearest(share, first, high, _PUBLISHED[0]),
        _nearest(share, first, ~high, _PUBLISHED[1]),
    ]


def _nearest(
    share: Curve, first: int, kind: npt.NDArray[np.bool_], wanted: int
) -> tuple[int, Curve] | None:
    """The sparse layer of a kind nearest to the wanted one, and its shares in bins."""
    layers = [int(layer) for layer in np.flatnonzero(kind) if layer >= first]
    if not layers:
        return None
    layer = min(layers, key=lambda number: abs(number - wanted))
    parts = np.array_split(share[layer], min(_BINS, share.shape[1]))
    return layer, np.array([_mean(part) for part in parts])


def _mean(values: Curve) -> float:
    """The mean of what is known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
