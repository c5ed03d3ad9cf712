"""The emulator: the engine on asyncio, moving real bytes."""

from smartgen.emu.backend import EmuBackend

__all__ = ["EmuBackend"]
