"""Measures what hosts made of namespaces reach of the rate that was asked; records namespaces.md.

    python benchmarks/namespaces.py            (as root; about three minutes)

One or two hosts send to another through plain blocking sockets; every NIC has the same rate.
Reached are the bytes that the receiver has got, over the time from before the first is given to a
socket to after the last is received. Repeats take turns over all cases; medians, least and most.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from smartgen.emu.namespaces import BURST_S, Host, burst_bytes, namespaces, why_not

RATES = (5e6, 20e6, 80e6, 320e6)
SIZES = (64 << 10, 1 << 20)
SENDERS = (1, 2)
BURSTS_S = (0.001, 0.002, BURST_S, 0.008)
REPEATS = 5
LASTS_S = 1.0
"""How long the bytes of a measurement should take at the asked rate."""

Case = tuple[float, int, int, float]
"""Rate, size of a message, senders, depth in seconds."""

RECEIVER = """
import selectors, socket, sys, time
left = int(sys.argv[2])
with socket.create_server(("0.0.0.0", 5000)) as listener:
    print("listening", flush=True)
    senders = [listener.accept()[0] for _ in range(int(sys.argv[1]))]
buffer = bytearray(1 << 20)
with selectors.DefaultSelector() as ready:
    for sender in senders:
        ready.register(sender, selectors.EVENT_READ)
    while left:
        for key, _ in ready.select():
            left -= key.fileobj.recv_into(buffer)
print(time.monotonic())
"""

SENDER = """
import socket, sys, time
size, times = int(sys.argv[2]), int(sys.argv[3])
message = bytes(size)
with socket.create_connection((sys.argv[1], 5000)) as receiver:
    receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("connected", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for _ in range(times):
        receiver.sendall(message)
print(began)
"""


def start(host: Host, program: str, *arguments: object) -> subprocess.Popen[str]:
    """A program in a host, when it has said that it is ready."""
    command = [*host.prefix, sys.executable, "-c", program, *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def measure(rate: float, size: int, senders: int, burst_s: float = BURST_S) -> float:
    """Reached over asked rate, once."""
    names = [f"prefill{number}" for number in range(senders)]
    times = max(round(rate * LASTS_S / size / senders), 1)
    num_bytes = times * size * senders
    with namespaces(dict.fromkeys([*names, "decoding"], rate), burst_s) as hosts:
        decoding = hosts["decoding"]
        receiver = start(decoding, RECEIVER, senders, num_bytes)
        sending = [start(hosts[n], SENDER, decoding.address, size, times) for n in names]
        for child in sending:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        began = min(float(child.communicate()[0]) for child in sending)
        ended = float(receiver.communicate()[0])
    return num_bytes / (ended - began) / rate


def told(each: Sequence[float]) -> str:
    """The median, and from where to where they go."""
    return f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def main() -> None:
    """Measure and record."""
    if reason := why_not():
        sys.exit(f"no network namespaces here: {reason}")
    before = os.getloadavg()[0]
    rates = list(product(RATES, SIZES, SENDERS, [BURST_S]))
    depths = list(product(RATES[-2:], SIZES[-1:], SENDERS[:1], BURSTS_S))
    found: dict[Case, list[float]] = {case: [] for case in [*rates, *depths]}
    for repeat in range(REPEATS):
        for case, each in found.items():
            each.append(measure(*case))
        print(f"repeat {repeat + 1} of {REPEATS}", file=sys.stderr, flush=True)
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="utf-8").strip()
    largest = max(burst_bytes(rate) / rate / LASTS_S for rate in RATES)
    reached = [
        [
            f"{rate / 1e6:g}",
            f"{size >> 10}",
            *(told(found[rate, size, n, BURST_S]) for n in SENDERS),
        ]
        for rate, size in product(RATES, SIZES)
    ]
    deep = [[f"{case[0] / 1e6:g}", f"{case[3] * 1e3:g}", told(found[case])] for case in depths]
    lines = [
        "# Rates that hosts made of namespaces reach",
        "",
        "Recorded by `python benchmarks/namespaces.py`: payload through plain TCP sockets over the",
        f"rate that every NIC has in both directions; median of {REPEATS} (least to most). Of a",
        "rate 99.3 % can be payload (8,948 of 9,014 bytes a frame); what the buckets held comes on",
        f"top, at most {100 * largest:.1f} % in the first table.",
        f"{os.cpu_count()} cores, shared; load {before:.1f} before and {os.getloadavg()[0]:.1f}"
        f" after; congestion control {control}.",
        "",
        *table(["MB/s", "message, KiB", *(f"{n} sending" for n in SENDERS)], reached),
        "",
        f"One sending {SIZES[-1] >> 10} KiB messages through buckets of other depths:",
        "",
        *table(["MB/s", "depth, ms", "reached"], deep),
    ]
    path = Path(__file__).with_suffix(".md")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
