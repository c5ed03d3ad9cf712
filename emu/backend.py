"""Runs an experiment in real processes that move real bytes, on the machine's clock."""

from dataclasses import dataclass

from smartgen.emu.clock import PacedLoop, run
from smartgen.emu.namespaces import why_not
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.launcher import Launch
from smartgen.emu.processes.layouts import decode_layout, prefill_layout
from smartgen.emu.settings import Settings, address_of
from smartgen.emu.virtual import check
from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome, Watch


@dataclass(frozen=True, kw_only=True)
class EmuBackend:
    """The emulator: every role a process, every byte of KV moved and compared.

    Processes are started together, or, where settings name peers, prefill processes were started
    before and this process decodes.
    """

    settings: Settings
    name: str = "emu"

    def run(self, experiment: Experiment, watch: Watch | None = None) -> Outcome:
        """Emulate; returns what every process recorded."""
        self.check(experiment)
        if self.settings.peers:
            return self._decode(experiment, watch)
        return Launch(experiment, self.settings).run(watch)

    def _decode(self, experiment: Experiment, watch: Watch | None) -> Outcome:
        outcome: list[Outcome] = []
        addresses = [address_of("emu.peers", peer) for peer in self.settings.peers]

        async def main() -> None:
            process = DecodeProcess(experiment, self.settings, lambda number, reason: None)
            done = await process.run(addresses, lambda _: None, watch or (lambda _: None))
            outcome.append(done)

        run(main(), PacedLoop)
        return outcome[0]

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot be emulated, by name."""
        settings, cluster = self.settings, experiment.cluster
        check(experiment, "emu")
        if cluster.decode_nodes != 1:
            raise SmartGenError(
                f"cluster.decode_nodes={cluster.decode_nodes} must be 1 for backend=emu; "
                "backend=virtual and backend=sim know several"
            )
        if settings.peers and len(settings.peers) != cluster.prefill_nodes:
            raise SmartGenError(
                f"emu.peers names {len(settings.peers)} prefill processes; "
                f"cluster.prefill_nodes={cluster.prefill_nodes} needs as many"
            )
        if settings.peers and cluster.lost_s:
            raise SmartGenError("cluster.lost_s must be [] with emu.peers: kill a peer yourself")
        why = why_not() if settings.shaping == "tbf" else None
        if why is not None:
            raise SmartGenError(f"emu.shaping='tbf' cannot be had: {why}; use emu.shaping=wire")
        if settings.shaping != "wire" and experiment.network.variation is not None:
            raise SmartGenError(
                f"emu.shaping={settings.shaping!r} knows no network.variation; use emu.shaping=wire"
            )
        layout = decode_layout(experiment, settings)
        need_gib = (layout.num_bytes + prefill_layout(experiment, settings).num_bytes) / 2**30
        if need_gib > settings.memory_gib:
            raise SmartGenError(
                f"backend=emu would need {need_gib:.3g} GiB for its pools; "
                f"emu.memory_gib={settings.memory_gib} allows less: use a smaller model "
                "or workload (model=tiny workload=tiny), or move fewer bytes (emu.byte_scale=64)"
            )
