"""The other process of a test of transports: TRANSPORT, and write or take.

It prints its address and the key of its region, and reads those of the other end.
"""

import sys
from hashlib import sha256
from select import select

import numpy as np

from smartgen.emu.transports import open_device
from smartgen.emu.transports.protocol import (
    Completion,
    Device,
    Limits,
    Opcode,
    QueuePair,
    Region,
    Segments,
)

SLOTS, ROWS, ROW, GUARD = 48, 64, 1000, 4096
SLOT = ROWS * ROW
SIZE = 2 * GUARD + SLOTS * SLOT
RECEIVES = 8
"""What a taker posts and never renews."""


def tell(line: str) -> None:
    """Say it to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def one(queue_pair: QueuePair) -> list[Completion]:
    """Wait for completions."""
    while not (done := list(queue_pair.poll())):
        writes = [queue_pair] if queue_pair.wants_write else []
        select([queue_pair], writes, [])
    return done


def write(device: Device, queue_pair: QueuePair, key: int) -> None:
    """Fill slot i with bytes i + 1, last row first, and say so by immediate i; for ever."""
    local = device.register(SLOT)
    rows = np.arange(ROWS, dtype=np.int64)[::-1] * ROW
    lengths = np.full(ROWS, ROW)
    for slot in range(SLOTS):
        local.memory[:] = slot + 1
        source = Segments(local, np.ascontiguousarray(rows), lengths)
        queue_pair.post_writes(slot, source, key, GUARD + slot * SLOT + rows, slot)
        one(queue_pair)
    sys.stdin.read()


def take(region: Region, queue_pair: QueuePair) -> None:
    """Wait for a SEND of no bytes, then tell the digest of all memory."""
    while not any(completion.opcode is Opcode.RECV for completion in one(queue_pair)):
        pass
    tell(sha256(region.memory).hexdigest())
    sys.stdin.read()


def main(name: str, what: str) -> None:
    """Act as the other end."""
    device = open_device(name, Limits())
    queue_pair = device.queue_pair(dials=what == "write")
    region = device.register(SIZE)
    if what == "take":
        for receive in range(RECEIVES):
            queue_pair.post_recv(receive, None)
    tell(f"{queue_pair.address.hex()}-{region.key}")
    address, _, key = sys.stdin.readline().partition("-")
    queue_pair.connect(bytes.fromhex(address), 30)
    if what == "write":
        write(device, queue_pair, int(key))
    else:
        take(region, queue_pair)
    device.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
