"""The gap before each token: how long decoding takes to settle after the handover."""

from collections.abc import Sequence
from pathlib import Path

from smartgen.metrics.store import Run
from smartgen.metrics.tokens import mean_gaps
from smartgen.plot.ctl import well_known
from smartgen.plot.style import COLUMN_INCHES, canvas, legend_above, log_axis, looks, marked

_MANY = 200  # tokens


def draw(runs: Sequence[Run], path: Path) -> None:
    """A line a run: the token's number across, the gap before it in ms up, a mean over requests.

    The y axis is logarithmic, so that the second token's gap, many times the others, fits; with
    more than 200 tokens so is the x axis, since it is at the start that gaps change.
    """
    from matplotlib.ticker import MaxNLocator

    with canvas(path, COLUMN_INCHES, 2.0) as figure:
        axes = figure.subplots()
        series = [mean_gaps(run.tokens)[: well_known(run)] * 1e3 for run in runs]
        longest = max(map(len, series))
        for number, (gaps_ms, look) in enumerate(zip(series, looks(runs), strict=True)):
            tokens = range(2, 2 + len(gaps_ms))
            every = marked(number, len(gaps_ms)) if longest <= _MANY else (0.02 * number, 0.1)
            axes.plot(tokens, gaps_ms, markevery=every, **look.line())
        log_axis(axes)
        if longest > _MANY:
            log_axis(axes, "x")
        else:
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("token (log)" if longest > _MANY else "token")
        axes.set_ylabel("TBT (ms, log)")
        legend_above(figure)
