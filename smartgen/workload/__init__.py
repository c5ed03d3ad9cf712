"""What is asked of the system: requests with lengths, arrivals and, if wanted, an abort."""

from smartgen.workload.closed import Closed
from smartgen.workload.request import Request, arrivals_of, closed_batch, departures_of

__all__ = ["Closed", "Request", "arrivals_of", "closed_batch", "departures_of"]
