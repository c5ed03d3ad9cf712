"""One guard: an archive unpacked without links must not install without its backends."""

from pathlib import Path

from setuptools import setup

for name in ("sim", "emu", "hw", "conf"):
    if not (Path(__file__).parent / "smartgen" / name / "__init__.py").is_file():
        raise SystemExit(
            f"smartgen: smartgen/{name} must be a link to ../{name}; "
            "unpack with a tool that keeps symlinks"
        )

setup()
