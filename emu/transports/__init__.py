"""Transports: one protocol with RDMA's semantics, over TCP and over shared memory."""

import math

from smartgen.emu.transports.protocol import Device, Limits
from smartgen.emu.transports.tcp import TcpDevice
from smartgen.errors import one_of

__all__ = ["open_device"]


def open_device(
    name: str, limits: Limits, host: str = "127.0.0.1", patience_s: float = math.inf
) -> Device:
    """A device of the transport with this name, tcp or shm.

    host is the address at which tcp listens. patience_s is how long a SEND or an immediate waits
    for a receive before it fails; no limit by default.
    """
    one_of("transport", name, ("tcp",))
    return TcpDevice(limits, host, patience_s)
