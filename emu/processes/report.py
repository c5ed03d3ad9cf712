"""What a run tells of itself: how real it was, and whether both ends came to the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smartgen.emu.settings import Settings


def same_digests(here: Mapping[int, bytes], there: Mapping[int, bytes]) -> int:
    """How many requests were the same at both ends; RuntimeError if one was not."""
    both = here.keys() & there.keys()
    for request_id in both:
        if here[request_id] != there[request_id]:
            raise RuntimeError(f"request {request_id} is not in the pool what was sent")
    return len(both)


def facts_of_run(
    settings: Settings, lateness_s: np.ndarray[Any, np.dtype[np.float64]], late_s: Sequence[float]
) -> Mapping[str, Any]:
    """How it was emulated, and how well the machine kept up, in nominal seconds."""
    some = lateness_s if len(lateness_s) else np.zeros(1)
    p50, p99 = np.percentile(some, [50, 99])
    return {
        "transport": settings.transport,
        "shaping": settings.shaping,
        "remote_lane": settings.lane,
        "max_recv_sge": settings.max_recv_sge,
        "dilation": settings.dilation,
        "byte_scale": settings.byte_scale,
        "timer_late_s": {"p50": float(p50), "p99": float(p99), "max": float(some.max())},
        "late_landings": len([s for s in late_s if s > 0]),
        "latest_landing_s": max(late_s, default=0.0),
    }
