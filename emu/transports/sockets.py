"""Sockets over TCP and within the machine: listening, dialling, and how they are tuned."""

import socket

from smartgen.emu.transports import rendezvous
from smartgen.errors import SmartGenError

_DEAD_AFTER_S = 60  # without any answer to what was sent


def listen(host: str) -> socket.socket:
    """Listen at a port of its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        raise SmartGenError(
            f"host={host!r} must be an address of this machine: {error.strerror}"
        ) from error


def dial(peer: bytes, timeout_s: float) -> socket.socket:
    """Connect to the address of a queue pair that listens; TimeoutError or ConnectionError."""
    try:
        name, host, port, token = peer.decode().split()
        to, said = (host, int(port)), bytes.fromhex(token)
    except ValueError:
        name = ""
    if name != "tcp":
        raise ConnectionError(f"peer={peer!r} must be the address of a listening tcp queue pair")
    try:
        return rendezvous.present(socket.create_connection(to, timeout_s), said)
    except (TimeoutError, ConnectionError):
        raise
    except OSError as error:
        raise ConnectionError(f"{host} {port} cannot be reached: {error.strerror}") from error


def tune(connected: socket.socket) -> None:
    """No delays, and an end to a connection whose other end does not answer.

    The sizes of buffers are left to the kernel, which grows them; fixed ones were not faster.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAD_AFTER_S)


def listen_local(name: str) -> socket.socket:
    """Listen at a name that is in no file system."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}")
    listener.listen()
    return listener


def dial_local(peer: bytes, timeout_s: float) -> socket.socket:
    """Connect to the address of a queue pair of shared memory; TimeoutError or ConnectionError."""
    try:
        transport, name, token = peer.decode().split()
        said = bytes.fromhex(token)
    except ValueError:
        transport = ""
    if transport != "shm":
        raise ConnectionError(f"peer={peer!r} must be the address of a listening shm queue pair")
    dialled = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        dialled.settimeout(timeout_s)
        dialled.connect(f"\0{name}")
    except OSError:
        dialled.close()
        raise
    return rendezvous.present(dialled, said)
