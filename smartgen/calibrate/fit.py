"""One law for every table: a measurement takes an overhead, and its work over a rate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]

LINEAR_FROM = 0.003
"""From this relative error on a row weighs by its error and not by its square, as in a median."""

_SPAN = 2.5
"""Work that spans less cannot tell an overhead from a rate."""


@dataclass(frozen=True, slots=True)
class Law:
    """time = overhead + work / rate, and its relative errors over the rows it was fitted to."""

    rate: float
    overhead_s: float
    median_error: float
    worst_error: float


def fit_law(work: Floats, time_s: Floats, with_overhead: bool = True) -> Law:
    """The law that is least wrong in the logarithm of time; rows far off hardly count.

    The overhead is left out where asked for, or where the rows cannot tell it from the rate.
    """
    can_tell = len(work) >= 4 and float(work.max()) >= _SPAN * float(work.min())
    usual = float(np.log(np.median(work / time_s)))
    start, low, high = [usual], [usual - 9.0], [usual + 9.0]
    if with_overhead and can_tell:
        least = float(np.log(time_s.min()))
        start.append(least - 2.3)
        low.append(least - 14.0)
        high.append(float(np.log(time_s.max())))

    def off(logs: Floats) -> Floats:
        overhead = np.exp(logs[1]) if len(logs) > 1 else 0.0
        return np.asarray(np.log((overhead + work / np.exp(logs[0])) / time_s))

    found = least_squares(
        off, start, bounds=(low, high), loss="soft_l1", f_scale=LINEAR_FROM, xtol=1e-12, ftol=1e-12
    )
    errors = np.abs(np.exp(off(found.x)) - 1)
    return Law(
        float(np.exp(found.x[0])),
        float(np.exp(found.x[1])) if len(found.x) > 1 else 0.0,
        float(np.median(errors)),
        float(errors.max()),
    )
