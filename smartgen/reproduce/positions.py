"""Claims on which positions are selected (Figure 5), from its runs' law of selection."""

from collections.abc import Iterable

import numpy as np

from smartgen.metrics.store import Run
from smartgen.plot.importance import shares_by_position

LAST = 0.25
"""The last positions that the paper calls important, as a share of the prompt (C012)."""


def positions(runs: Iterable[Run]) -> dict[str, float]:
    """C013: the least share, in %, that selects any of the last positions, at any length.

    C014: the share that selects the median position of a layer that looks far back, at most.
    """
    least, middle = [], []
    for run in runs:
        pairs = shares_by_position(run)
        recent, far = (pair[1] for pair in pairs if pair is not None)
        least.append(np.nanmin(recent[-round(LAST * len(recent)) :]))
        middle.append(np.nanmedian(far))
    return {"C013": 100 * float(min(least)), "C014": 100 * float(max(middle))}
