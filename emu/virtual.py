"""Runs an experiment with real bytes in one process, under a clock that jumps."""

from dataclasses import dataclass

from smartgen.emu.clock import run
from smartgen.emu.nodes import EmuDecodeNode, EmuPrefillNode
from smartgen.emu.runtime import EmuRuntime
from smartgen.errors import SmartGenError, positive
from smartgen.experiment import Experiment, Outcome, Watch
from smartgen.nodes.world import World
from smartgen.selection import BlockSelection


@dataclass(frozen=True, kw_only=True)
class VirtualBackend:
    """The emulator: both pools in memory, every byte of KV moved and checked.

    memory_gib: refuse an experiment whose pools need more.
    """

    memory_gib: float
    name: str = "virtual"

    def __post_init__(self) -> None:
        positive("backend.memory_gib", self.memory_gib)

    def run(self, experiment: Experiment, watch: Watch | None = None) -> Outcome:
        """Emulate; returns what every node recorded."""
        self._check(experiment)
        outcome: list[Outcome] = []

        async def main() -> None:
            world = World(experiment, EmuRuntime(), EmuPrefillNode, EmuDecodeNode)
            if watch is not None:
                watch(world.progress)
            await world.run()
            outcome.append(world.outcome())

        run(main())
        return outcome[0]

    def _check(self, experiment: Experiment) -> None:
        check(experiment, self.name)
        tokens = sum(2 * r.prompt_tokens + r.output_tokens for r in experiment.requests)
        geometry = experiment.geometry
        need_gib = tokens * geometry.num_layers * geometry.entry_bytes / 2**30
        if need_gib > self.memory_gib:
            raise SmartGenError(
                f"backend=virtual would need {need_gib:.1f} GiB for its pools; "
                f"backend.memory_gib={self.memory_gib} allows less: use a smaller model or "
                "workload (model=tiny workload=tiny)"
            )


def check(experiment: Experiment, name: str) -> None:
    """Refuse what no emulation can do."""
    if not isinstance(experiment.selection, BlockSelection):
        raise SmartGenError(f"backend={name} needs selection=blocks: it moves tokens, not shares")
    if experiment.policy.reuse:
        raise SmartGenError(f"backend={name} does not emulate policy.reuse=true; use backend=sim")
