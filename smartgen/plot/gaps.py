"""The gap before each token: how long decoding takes to settle after the handover."""

from collections.abc import Sequence
from pathlib import Path

from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps
from smartgen.plot.ctl import well_known
from smartgen.plot.style import COLUMN_INCHES, canvas, legend_above, log_axis, looks, marked


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: the token's number across, the gap before it in ms up, a mean over requests.

    The y axis is logarithmic, so that the second token's gap, many times the others, fits.
    """
    from matplotlib.ticker import MaxNLocator

    with canvas(path, COLUMN_INCHES, 2.0) as figure:
        axes = figure.subplots()
        for number, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
            gaps_ms = mean_gaps(run.tokens)[: well_known(run)] * 1e3
            tokens = range(2, 2 + len(gaps_ms))
            axes.plot(tokens, gaps_ms, markevery=marked(number, len(gaps_ms)), **look.line())
        log_axis(axes)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("token")
        axes.set_ylabel("TBT (ms, log)")
        legend_above(figure)
