"""What processes say to each other besides the engine's messages; all of it typed and checked.

A frame is four bytes of length (big endian) and as many of msgpack: its number, when it was sent
(nominal seconds) and its body, tagged by its type's name. Nothing that comes in is unpickled.
"""

from typing import TypeAlias, TypeGuard, get_args

import msgspec

from smartgen.engine.messages import Message
from smartgen.nodes.report import Parcel

PROTOCOL = 1
"""Version of frames, words and handshake."""

MOST_FRAME_BYTES = 1 << 29
"""A longer frame is none of ours at all: not even a report is so long."""
MOST_HELLO_BYTES = 1 << 20
"""A longer frame is none of ours before both ends have agreed."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process, first: what must be the same at both ends, and where to write.

    queue_pairs are the addresses of this end, pushes' and replies'. The arena has room for so many
    tokens.
    """

    protocol: int
    facts: dict[str, str]
    queue_pairs: tuple[bytes, bytes]
    arena_key: int
    arena_tokens: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process: agreed; the other ends of the queue pairs.

    machine tells whether both share a clock.
    """

    queue_pairs: tuple[bytes, bytes]
    machine: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process: not with you, and why."""

    reason: str


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: what does your clock say? Also a sign of life."""

    number: int = 0


class Pong(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process: this (seconds of time.monotonic)."""

    number: int
    clock_s: float


class Start(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: time 0 is when your clock says this."""

    epoch_s: float


class Address(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: a slot's pages in the arena, runs of first row and length."""

    slot: int
    extents: tuple[tuple[int, int], ...]


class Doorbell(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process: I have something to send; everything that a Flow says.

    blocks are int64, checksums uint32, one a block, if wanted.
    """

    flow_id: int
    key: tuple[int, ...]
    link: str
    queue_pair: str
    size: float
    pieces: int
    urgent: bool
    parcel: Parcel
    blocks: bytes
    fetch_id: int | None = None
    checksums: bytes = b""


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: the link is yours, send it."""

    flow_id: int


class Landed(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: it is here, as an acknowledgement of RC would say."""

    flow_id: int


class Withdrawn(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process: it cannot be sent; do not wait for it."""

    flow_id: int


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Decoding to prefill process: it is over; report, and go."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """Prefill to decoding process, last: what its recorder has, and how late its timers were.

    digests: a hash of every request's pages, as they were when they were given back.
    """

    recorder: bytes
    lateness_s: bytes
    digests: dict[int, bytes]


Word: TypeAlias = (
    Message
    | Hello
    | Welcome
    | Refused
    | Ping
    | Pong
    | Start
    | Address
    | Doorbell
    | Grant
    | Landed
    | Withdrawn
    | Finish
    | Report
)


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """A word, numbered from 1 by its sender."""

    number: int
    sent_s: float
    word: Word


def is_of_engine(word: Word) -> TypeGuard[Message]:
    """Whether it is one of the engine's own messages."""
    return isinstance(word, get_args(Message))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """A frame with its length in front."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes | bytearray | memoryview) -> Frame:
    """A frame from its bytes without the length; ValueError if it is none."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no frame: {error}") from error
