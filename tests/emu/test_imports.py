"""Only what computes with a model imports torch; nobody else pays for it."""

import subprocess
import sys

HEAVY = ("torch", "transformers", "greenlet")


def test_simulating_and_emulating_import_no_model_library():
    program = (
        "import sys, smartgen.cli, smartgen.sim, smartgen.emu.nodes, smartgen.nodes.world;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"
