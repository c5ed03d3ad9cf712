"""Two ends find each other: one listens and knows a token, the other dials and presents it."""

import selectors
import socket
import time
from contextlib import ExitStack
from hmac import compare_digest
from secrets import token_bytes

_MAGIC = b"smartgen"
_SIZE = len(_MAGIC) + 16
_MOST_STRANGERS = 64


def new_token() -> bytes:
    """What a dialling end must present: so many bytes that nobody guesses them."""
    return token_bytes(_SIZE - len(_MAGIC))


def accept(listener: socket.socket, token: bytes, timeout_s: float) -> socket.socket:
    """The first connection that presents the token, non-blocking; others are dropped.

    TimeoutError if there is none in time. The listener stays open: it is the caller's.
    """
    until_s = time.monotonic() + timeout_s
    listener.setblocking(False)
    with ExitStack() as strangers, selectors.DefaultSelector() as waits:
        waits.register(listener, selectors.EVENT_READ)
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in waits.select(left_s):
                if key.fileobj is listener:
                    _greet(listener, waits, strangers)
                elif (known := _known(key, waits, token)) is not None:
                    strangers.pop_all()
                    _drop(waits, listener, known)
                    return known
        raise TimeoutError(f"nobody has connected with the token within {timeout_s} s")


def _greet(listener: socket.socket, waits: selectors.BaseSelector, strangers: ExitStack) -> None:
    try:
        stranger, _ = listener.accept()
    except OSError:  # it has gone again
        return
    if len(waits.get_map()) > _MOST_STRANGERS:
        stranger.close()
        return
    strangers.enter_context(stranger)
    stranger.setblocking(False)
    waits.register(stranger, selectors.EVENT_READ, bytearray())


def _known(
    key: selectors.SelectorKey, waits: selectors.BaseSelector, token: bytes
) -> socket.socket | None:
    stranger, said = key.fileobj, key.data
    assert isinstance(stranger, socket.socket)
    try:
        heard = stranger.recv(_SIZE - len(said))
    except OSError:
        heard = b""
    said += heard
    if heard and len(said) < _SIZE:
        return None
    if compare_digest(bytes(said), _MAGIC + token):
        return stranger
    waits.unregister(stranger)
    stranger.close()
    return None


def _drop(waits: selectors.BaseSelector, *kept: socket.socket) -> None:
    for key in list(waits.get_map().values()):
        if key.fileobj not in kept:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def present(dialled: socket.socket, token: bytes) -> socket.socket:
    """Present the token on a fresh connection; it is non-blocking from now on.

    Whether the other end takes it is not waited for: if it does not, the connection ends.
    """
    try:
        dialled.sendall(_MAGIC + token)
    except OSError:
        dialled.close()
        raise
    dialled.setblocking(False)
    return dialled
