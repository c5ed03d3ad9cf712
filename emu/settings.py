"""What the emulator can be told besides the experiment: how real it is, and how slow."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from smartgen.emu.transports.protocol import Limits
from smartgen.errors import SmartGenError, count, one_of, positive, truth, within
from smartgen.kv import Geometry

TRANSPORTS = ("tcp", "shm")
LANES = ("scatter", "row_writes", "staging")
SHAPINGS = ("wire", "tbf", "none")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How processes emulate.

    dilation: real seconds for each second of the cards: of compute, links and deadlines alike.
    byte_scale: so many bytes of the model are moved as one, at a bandwidth that is as much lower.
    shaping: by a Wire in user space, by token buckets on virtual links between network namespaces,
    or not at all. remote_lane: how fetched rows get into place; auto asks the transport.
    checksum: of every block, compared as it lands. check: compare every attended row.
    deadline_s: a peer that says nothing for so long is taken to be lost.
    listen: the address that prefill processes are reached at. peers: where they are, if they were
    started one by one; the decoding role then runs in this process.
    """

    transport: str = "tcp"
    dilation: float = 1.0
    byte_scale: int = 1
    shaping: str = "wire"
    max_recv_sge: int = 20
    remote_lane: str = "auto"
    checksum: bool = False
    check: bool = True
    deadline_s: float = 5.0
    memory_gib: float = 8.0
    listen: str = "127.0.0.1"
    peers: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        one_of("emu.transport", self.transport, TRANSPORTS)
        one_of("emu.shaping", self.shaping, SHAPINGS)
        one_of("emu.remote_lane", self.remote_lane, ("auto", *LANES))
        positive("emu.memory_gib", self.memory_gib)
        within("emu.dilation", self.dilation, 1e-3, 1e4)
        within("emu.deadline_s", self.deadline_s, 1e-2, 1e4)
        for name in ("byte_scale", "max_recv_sge"):
            count(f"emu.{name}", getattr(self, name))
        for name in ("checksum", "check"):
            truth(f"emu.{name}", getattr(self, name))
        if not isinstance(self.listen, str) or self.listen in ("", "0.0.0.0", "::"):
            raise SmartGenError(
                f"emu.listen={self.listen!r} must be an address that peers can dial, like 127.0.0.1"
            )
        if isinstance(self.peers, str) or not isinstance(self.peers, Sequence):
            raise SmartGenError(
                f"emu.peers={self.peers!r} must be a list of HOST:PORT, like [127.0.0.1:7000]"
            )
        for peer in self.peers:
            address_of("emu.peers", peer)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse what does not go with each other."""
        if self.remote_lane == "scatter" and self.max_recv_sge < 2:
            raise SmartGenError(
                f"emu.remote_lane='scatter' needs emu.max_recv_sge of 2 or more, not "
                f"{self.max_recv_sge}; use row_writes or staging"
            )
        if self.shaping == "tbf" and self.transport != "tcp":
            raise SmartGenError(
                f"emu.shaping='tbf' needs emu.transport=tcp, not {self.transport}: memory is not "
                "shared between hosts"
            )
        if self.shaping == "tbf" and self.peers:
            raise SmartGenError(
                "emu.shaping='tbf' must be wire or none with emu.peers: their hosts are made before"
            )

    @property
    def limits(self) -> Limits:
        """What queue pairs can hold."""
        return Limits(max_recv_sge=self.max_recv_sge, max_send_sge=max(2, self.max_recv_sge))

    @property
    def lane(self) -> str:
        """How fetched rows get into place."""
        if self.remote_lane != "auto":
            return self.remote_lane
        return "scatter" if self.max_recv_sge >= 2 else "row_writes"

    def moved(self, geometry: Geometry) -> Geometry:
        """The cache as it is moved: rows are byte_scale times shorter."""
        if geometry.row_bytes % self.byte_scale:
            raise SmartGenError(
                f"emu.byte_scale={self.byte_scale} must divide the bytes of a row, "
                f"{geometry.row_bytes}"
            )
        return replace(geometry, row_values=geometry.row_bytes // self.byte_scale, dtype_bytes=1)


def address_of(name: str, text: object) -> tuple[str, int]:
    """Host and port of HOST:PORT; refuses anything else by name."""
    if isinstance(text, str):
        host, colon, port = text.rpartition(":")
        if colon and host and port.isascii() and port.isdecimal() and int(port) < 2**16:
            return host.strip("[]"), int(port)
    raise SmartGenError(f"{name}={text!r} must be HOST:PORT, like 127.0.0.1:7000")
