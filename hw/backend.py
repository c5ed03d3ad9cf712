"""The hardware backend's door: it refuses to start on a machine that cannot run it."""

from dataclasses import dataclass

from smartgen.errors import SmartGenError
from smartgen.experiment import Experiment, Outcome, Watch
from smartgen.hw.preflight import missing


@dataclass(frozen=True)
class HwBackend:
    """GPU kernels and RDMA; not built yet, which is what it says where nothing is missing."""

    name: str = "hw"

    def __post_init__(self) -> None:
        lacks = missing()
        if lacks:
            raise SmartGenError(f"backend=hw needs {', '.join(lacks)}")

    def run(self, experiment: Experiment, watch: Watch | None = None) -> Outcome:
        """Refuse: transfers over verbs and GPU lanes are not part of this version."""
        raise SmartGenError(
            "backend=hw is not part of this version; use backend=sim or backend=emu"
        )
