"""The emulator: the engine on asyncio, moving real bytes."""
