"""Sockets of TCP: listening, dialling, and how they are tuned."""

import socket

from smartgen.emu.transports import rendezvous
from smartgen.errors import SmartGenError

_SOCKET_BYTES = 4 << 20
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
    """No delays, large buffers, and an end to a connection whose other end does not answer."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAD_AFTER_S)
