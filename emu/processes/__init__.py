"""The emulator's roles as processes: connected by control messages and by queue pairs."""
