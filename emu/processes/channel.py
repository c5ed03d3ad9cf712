"""The engine's channel over a connection: its messages among the words that processes say."""

from collections.abc import Callable

from smartgen.emu.processes.connection import Connection
from smartgen.engine.messages import Message


class ProcessChannel:
    """One end; whoever hears the connection hands the engine's messages in.

    What comes before anybody listens waits: a peer may be lost before the run has begun.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._hear: Callable[[Message], None] | None = None
        self._early: list[Message] = []

    def send(self, message: Message) -> None:
        """Send; never waits."""
        self._connection.send(message)

    def listen(self, hear: Callable[[Message], None]) -> None:
        """Have every message heard."""
        self._hear = hear
        while self._early:
            hear(self._early.pop(0))

    def deliver(self, message: Message) -> None:
        """A message has come."""
        if self._hear is not None:
            self._hear(message)
        else:
            self._early.append(message)
