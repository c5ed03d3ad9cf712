"""The simulator: the engine on SimPy, at block resolution."""

from smartgen.sim.backend import SimBackend

__all__ = ["SimBackend"]
