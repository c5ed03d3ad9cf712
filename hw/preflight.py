"""What this machine lacks for backend=hw: everything at once, in words a user can act on."""

import importlib.util
from pathlib import Path

PACKAGES = {
    "torch": "the Python package torch (pip install 'smartgen-kv[hw]')",
    "triton": "the Python package triton (pip install 'smartgen-kv[hw]')",
    "pyverbs": "the Python package pyverbs (apt install python3-pyverbs)",
}
RDMA_DEVICES = Path("/sys/class/infiniband")
GPU_DEVICES = Path("/proc/driver/nvidia/gpus")


def missing() -> list[str]:
    """Names of what is missing, in the order in which it is looked for; empty if nothing is."""
    lacks = [words for name, words in PACKAGES.items() if importlib.util.find_spec(name) is None]
    if not _entries(GPU_DEVICES):
        lacks.append("an NVIDIA GPU with its driver")
    if not _entries(RDMA_DEVICES):
        lacks.append("an RDMA device")
    return lacks


def _entries(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
