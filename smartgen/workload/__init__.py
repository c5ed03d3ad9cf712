"""What is asked of the system: requests with lengths, arrivals and, if wanted, an abort."""

from smartgen.workload.azure import AzureTrace
from smartgen.workload.closed import Closed
from smartgen.workload.lengths import Lengths
from smartgen.workload.mooncake import MooncakeTrace, write_trace
from smartgen.workload.open import Open
from smartgen.workload.request import Request, arrivals_of, closed_batch, departures_of

Workload = Closed | Open | MooncakeTrace | AzureTrace
"""Each has a name, ``closed``, ``grows``, ``over_long``, ``abort_s``, the requests that are
``asked`` for, ``name_of`` one of them, and an ``echo`` of what is served."""

__all__ = [
    "AzureTrace",
    "Closed",
    "Lengths",
    "MooncakeTrace",
    "Open",
    "Request",
    "Workload",
    "arrivals_of",
    "closed_batch",
    "departures_of",
    "write_trace",
]
