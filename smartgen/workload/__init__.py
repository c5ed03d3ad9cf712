"""What is asked of the system: requests with lengths, arrivals and, if wanted, an abort."""

from smartgen.workload.request import Request, closed_batch, timetable

__all__ = ["Request", "closed_batch", "timetable"]
