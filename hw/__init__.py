"""Hardware: GPUs and RDMA NICs. So far only the preflight that says what is missing."""

from smartgen.hw.backend import HwBackend

__all__ = ["HwBackend"]
