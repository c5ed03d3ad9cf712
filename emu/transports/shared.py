"""Memory that two processes share and that has no name: with its last user it is gone."""

import fcntl
import mmap
import os
from contextlib import suppress

import numpy as np

from smartgen.emu.transports.protocol import Memory
from smartgen.errors import SmartGenError

_PAGE = mmap.PAGESIZE
_SEALS = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL


class Shared:
    """Bytes, and a page of flags before them that both sides see.

    Its mapping lives as long as any view of memory; fd until close.
    """

    fd = -1

    def __init__(self, fd: int, num_bytes: int) -> None:
        mapped = mmap.mmap(fd, _PAGE + num_bytes)
        whole = np.frombuffer(mapped, np.uint8)
        self.flags: Memory = whole[:_PAGE]
        self.memory: Memory = whole[_PAGE:]
        self.fd = fd

    def close(self) -> None:
        """Give up the descriptor; the memory stays for those who have a view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


def create(num_bytes: int) -> Shared:
    """New zeroed memory, which nobody can shrink under somebody else's feet."""
    if not hasattr(os, "memfd_create"):
        raise SmartGenError("transport=shm needs memfd_create of Linux; transport=tcp does without")
    fd = os.memfd_create("smartgen", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, _PAGE + num_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return Shared(fd, num_bytes)
    except OSError as error:
        os.close(fd)
        raise SmartGenError(f"num_bytes={num_bytes} cannot be had: {error.strerror}") from error


def attach(fd: int, num_bytes: int) -> Shared | None:
    """What another process has created; null if it is not as large as said, or may shrink."""
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        if sealed and num_bytes >= 0 and os.fstat(fd).st_size == _PAGE + num_bytes:
            attached = Shared(fd, num_bytes)
            attached.fd = -1  # the caller's
            return attached
    except (OSError, ValueError):  # no memfd, or no address space left
        pass
    return None


class ShmRegion:
    """Shared memory of a device; the first flag says that it is registered no longer."""

    def __init__(self, key: int, num_bytes: int) -> None:
        self._key = key
        self.shared = create(num_bytes)

    @property
    def key(self) -> int:
        """The remote key."""
        return self._key

    @property
    def memory(self) -> Memory:
        """All of it, as bytes."""
        return self.shared.memory

    def revoke(self) -> None:
        """No longer registered."""
        self.shared.flags[0] = 1
        self.shared.close()


class Gate:
    """Whether the other end may write into memory of this one; the writer steps in and out.

    Closing waits until the writer is out, so that nothing is written after it. The two flags
    rely on stores becoming visible in order, as they do on x86-64 and, what with the system
    calls in between, elsewhere in practice.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self._flags = shared.flags.data

    @property
    def closed(self) -> bool:
        """Whether nothing may be written any more."""
        return self._flags[0] != 0

    def close(self) -> None:
        """From now on nobody may step in."""
        self._flags[0] = 1

    @property
    def busy(self) -> bool:
        """Whether the writer is in."""
        return self._flags[64] != 0

    def step_in(self) -> bool:
        """Whether the writer may write now; it then must step out."""
        self._flags[64] = 1
        if self.closed:
            self._flags[64] = 0
            return False
        return True

    def step_out(self) -> None:
        """The writer has written."""
        self._flags[64] = 0
