"""``smartgen prefill NUMBER HOST:PORT [KEY=VALUE ...]``: one prefill process, by itself.

The decoding process is then ``smartgen backend=emu emu.peers=[HOST:PORT,...] [KEY=VALUE ...]``,
with the same keys and values; what differs is refused by name.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from smartgen.emu.backend import EmuBackend
from smartgen.emu.clock import PacedLoop
from smartgen.emu.clock import run as run_loop
from smartgen.emu.processes.prefill import PrefillProcess
from smartgen.emu.settings import address_of
from smartgen.errors import SmartGenError


def run(arguments: Sequence[str], output: Path | None) -> str:
    """Serve one decoding process to its end; returns a line about it."""
    from smartgen.claims.compose import configs_of
    from smartgen.compose import backend_of, experiment_of

    number, address, overrides = _parted(arguments, output)
    host, port = address_of("the address of a prefill process", address)
    [config] = configs_of([["backend=emu", *overrides]])
    experiment, backend = experiment_of(config), backend_of(config)
    if not isinstance(backend, EmuBackend):
        raise SmartGenError("a prefill process needs backend=emu, which need not be said")
    nodes = experiment.cluster.prefill_nodes
    if not (number.isdecimal() and int(number) < nodes):
        raise SmartGenError(
            f"prefill {number!r} must be a number from 0 to {nodes - 1}: "
            f"cluster.prefill_nodes={nodes}"
        )
    backend.check(experiment)

    async def main() -> None:
        settings = replace(backend.settings, listen=host)
        process = PrefillProcess(experiment, settings, int(number))
        await process.run((host, port), _say)

    def _say(at_host: str, at_port: int) -> None:
        sys.stderr.write(f"prefill{number} listens at {at_host}:{at_port}\n")
        sys.stderr.flush()

    run_loop(main(), PacedLoop)
    return f"prefill{number} has served to the end\n"


def _parted(arguments: Sequence[str], output: Path | None) -> tuple[str, str, list[str]]:
    """Number, address, and keys with their values."""
    if output is not None or len(arguments) < 2:
        raise SmartGenError(
            "prefill needs its number and an address, then keys and values: "
            "smartgen prefill 0 127.0.0.1:7000 [KEY=VALUE ...]"
        )
    number, address, *overrides = arguments
    for override in overrides:
        if override.startswith(("-", "emu.peers=")):
            raise SmartGenError(f"prefill takes KEY=VALUE after its address, but not {override}")
    return number, address, overrides
