"""Two ways to run all roles: in processes, or in threads, where faults can be planted."""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest

from smartgen.emu.backend import EmuBackend
from smartgen.emu.clock import PacedLoop, run
from smartgen.emu.processes.decode import DecodeProcess
from smartgen.emu.processes.prefill import PrefillProcess
from smartgen.emu.settings import Settings
from smartgen.experiment import Experiment, Outcome


def in_processes(experiment: Experiment, **told: Any) -> Outcome:
    return EmuBackend(settings=Settings(**told)).run(experiment)


class Threads:
    """Prefill processes are threads of this process, the decoding process its main thread.

    faults: what prefill processes ended with. lost: prefill processes that the decoding process
    has lost, and why.
    """

    def __init__(self) -> None:
        self.faults: list[BaseException] = []
        self.lost: list[tuple[int, str]] = []
        self.prefill: dict[int, PrefillProcess] = {}

    def run(self, experiment: Experiment, **told: Any) -> Outcome:
        settings = Settings(**told)
        listening: Queue[tuple[int, str, int]] = Queue()
        threads = [
            threading.Thread(target=self._prefill, args=(experiment, settings, number, listening))
            for number in range(experiment.cluster.prefill_nodes)
        ]
        outcome: list[Outcome] = []
        for thread in threads:
            thread.start()
        try:
            places = sorted(listening.get(timeout=30) for _ in threads)
            addresses = [(host, port) for _, host, port in places]

            async def main() -> None:
                process = DecodeProcess(experiment, settings, lambda *what: self.lost.append(what))
                outcome.append(await process.run(addresses, lambda _: None, lambda _: None))

            run(main(), PacedLoop)
        finally:
            for thread in threads:
                thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
        return outcome[0]

    def _prefill(
        self, experiment: Experiment, settings: Settings, number: int, listening: Queue[Any]
    ) -> None:
        async def main() -> None:
            process = self.prefill[number] = PrefillProcess(experiment, settings, number)
            await process.run(
                ("127.0.0.1", 0), lambda host, port: listening.put((number, host, port))
            )

        try:
            run(main(), PacedLoop)
        except BaseException as fault:
            self.faults.append(fault)


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture(scope="session")
def processes() -> Callable[..., Outcome]:
    return in_processes
