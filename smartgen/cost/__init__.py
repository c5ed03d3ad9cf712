"""How long it takes: cards to seconds, a link without a clock, and the closed recursion. Pure."""

from smartgen.cost.cards import Gpu, HackCost, Host, Network
from smartgen.cost.cost import Cost, LocalStep
from smartgen.cost.wire import Flow, Wire

__all__ = ["Cost", "Flow", "Gpu", "HackCost", "Host", "LocalStep", "Network", "Wire"]
