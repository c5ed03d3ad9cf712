"""How close to a planned schedule two noisy cores keep: sleeping for a time, or until one.

    python benchmarks/pacing.py

A client goes through iterations of acts and, in every layer, fetches rows from a second process,
which gathers them for a time first. Every act has a planned end. Printed: by how much an iteration
was longer than planned, and how late acts ended, in milliseconds of the machine's clock. What came
of it is docs/decisions/0017-nominal-time.md.
"""

import asyncio
import multiprocessing
import struct
import time
from statistics import median

LAYERS, ITERATIONS = 40, 4
ACTS_S = (0.0004, 0.0012, 0.0006, 0.0009)
GATHER_S, FETCH_BYTES, BYTES_PER_S = 0.0003, 60_000, 60e6
FETCH_S = GATHER_S + FETCH_BYTES / BYTES_PER_S
PORT = 9911
WORDS = struct.Struct("!d?d")  # dilation, until, planned time of asking


async def pause(seconds: float, until_s: float, until: bool) -> None:
    await asyncio.sleep(max(0.0, until_s - time.monotonic()) if until else seconds)


def serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                told = await reader.readexactly(WORDS.size)
                dilation, until, asked_s = WORDS.unpack(told)
                await pause(GATHER_S * dilation, asked_s + GATHER_S * dilation, until)
                writer.write(bytes(FETCH_BYTES))
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", PORT)
        async with server:
            await server.serve_forever()

    asyncio.run(main())


def burn() -> None:
    while True:
        sum(range(10_000))


async def iterate(dilation: float, until: bool) -> tuple[list[float], list[float]]:
    """Excess of every iteration over its plan, and lateness of every act in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT, limit=1 << 22)
    excess, late_s = [], []
    for _ in range(ITERATIONS):
        start_s = planned_s = time.monotonic()
        for _ in range(LAYERS):
            for act_s in ACTS_S:
                planned_s += act_s * dilation
                await pause(act_s * dilation, planned_s, until)
                late_s.append(time.monotonic() - planned_s)
            asked_s = time.monotonic()
            writer.write(WORDS.pack(dilation, until, planned_s))
            await reader.readexactly(FETCH_BYTES)
            planned_s += FETCH_S * dilation
            left_s = max(0.0, asked_s + FETCH_S * dilation - time.monotonic())
            await pause(left_s, planned_s, until)
        plan_s = LAYERS * (sum(ACTS_S) + FETCH_S) * dilation
        excess.append((time.monotonic() - start_s) / plan_s - 1)
    writer.close()
    return excess, late_s


def main() -> None:
    server = multiprocessing.Process(target=serve, daemon=True)
    server.start()
    time.sleep(0.5)
    print("| busy processes | sleep | dilation | longer, median | worst | late p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|---|")
    for busy in (0, 2):
        burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(busy)]
        for burner in burners:
            burner.start()
        for until in (False, True):
            for dilation in (1, 3, 10):
                excess, late_s = asyncio.run(iterate(dilation, until))
                late_s.sort()
                p50, p99 = (late_s[int(len(late_s) * share)] * 1e3 for share in (0.5, 0.99))
                print(
                    f"| {busy} | {'until' if until else 'for'} | {dilation} | "
                    f"{median(excess):.1%} | {max(excess):.1%} | {p50:.2f} | {p99:.2f} |",
                    flush=True,
                )
        for burner in burners:
            burner.kill()


if __name__ == "__main__":
    main()
