"""The life of a request, as coroutines over protocols. Waits, and never measures how long."""

from smartgen.engine.decode_role import DecodeRole
from smartgen.engine.prefill_role import PrefillRole
from smartgen.engine.router import Router

__all__ = ["DecodeRole", "PrefillRole", "Router"]
