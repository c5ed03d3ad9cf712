"""What crosses between a prefill node and the decoding node: frozen values, serialised each time.

Bulk data never travels here: blocks are one-sided WRITEs and fetched rows land where the fetch
says. A message names a request by number and epoch, so that a late one is recognised.
"""

from typing import TypeAlias

import msgspec


class Assign(msgspec.Struct, frozen=True, tag=True):
    """Decoding node to prefill node: prefill this request and push num_planned blocks of it."""

    request_id: int
    epoch: int
    slot: int
    prompt_tokens: int
    cached_tokens: int
    held_tokens: int
    output_tokens: int
    num_planned: int


class Handover(msgspec.Struct, frozen=True, tag=True):
    """Prefill node to decoding node: the first token is made, decoding may take over."""

    request_id: int
    epoch: int
    first_token: int


class Idle(msgspec.Struct, frozen=True, tag=True):
    """Decoding node to prefill node: attention of this layer starts, the network is idle.

    steps[i] is how many iterations requests[i] has been decoding, counted from 1; quotas[i] is how
    many blocks of it may be pushed now.
    """

    layer: int
    requests: tuple[int, ...]
    steps: tuple[int, ...]
    quotas: tuple[int, ...]


class Rows(msgspec.Struct, frozen=True):
    """Remote entries of one request in one layer: how many, which, and into which slot.

    entries counts them over all KV heads (a fraction where rows differ). index holds the token
    positions of each row one after the other as int64 bytes, lengths how many each row has; both
    are empty where only counts are modelled. targets says where each row goes in registered memory
    of the decoding node, int64 bytes again; empty where nothing is registered.
    """

    request_id: int
    slot: int
    entries: float
    lengths: tuple[int, ...] = ()
    index: bytes = b""
    targets: bytes = b""


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Decoding node to prefill node: gather these rows of a layer and send them back."""

    fetch_id: int
    layer: int
    rows: tuple[Rows, ...]


class Release(msgspec.Struct, frozen=True, tag=True):
    """Decoding node to prefill node: everything is here, or nobody wants it; say Drained."""

    request_id: int
    epoch: int


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Decoding node to prefill node: stop writing for this request, then say Drained."""

    request_id: int
    epoch: int


class Drained(msgspec.Struct, frozen=True, tag=True):
    """Prefill node to decoding node: no write for this request is in flight any more."""

    request_id: int
    epoch: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Prefill node to decoding node: the request's prefill or a push failed; drained already."""

    request_id: int
    epoch: int
    reason: str


class PeerLost(msgspec.Struct, frozen=True, tag=True):
    """From the transport: the other side is gone and its queue pair is flushed."""

    node: str


Message: TypeAlias = (
    Assign | Handover | Idle | Fetch | Release | Abort | Drained | Failed | PeerLost
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Serialise a message (msgpack, tagged by its type's name)."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Rebuild a message; msgspec.ValidationError on anything that is not one."""
    return _decoder.decode(data)
