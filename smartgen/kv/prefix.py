"""Which prefixes of earlier prompts a node holds: names of blocks, least recently used out."""

from collections.abc import Sequence


class PrefixCache:
    """Holds named blocks of block_tokens tokens each, as many as fit; null means all.

    A block is of use only behind those before it, and its name stands for all of them.
    """

    def __init__(self, capacity_tokens: int | None) -> None:
        self._capacity_tokens = capacity_tokens
        self._held: dict[int, int] = {}  # name to tokens, least recently used first
        self.held_tokens = 0

    def hit_tokens(self, names: Sequence[int], block_tokens: int, num_tokens: int) -> int:
        """How many first tokens of a prompt of num_tokens are held."""
        found = 0
        for name in names:
            if name not in self._held:
                break
            found += block_tokens
        return min(found, num_tokens)

    def add(self, names: Sequence[int], block_tokens: int, num_tokens: int) -> None:
        """Keep a prompt's full blocks, as most recently used; a partial last one is of no use."""
        if self._capacity_tokens == 0:
            return
        for name in reversed(names[: num_tokens // block_tokens]):
            # the first blocks are the most recently used: they serve every longer prompt
            self.held_tokens -= self._held.pop(name, 0)
            self._held[name] = block_tokens
            self.held_tokens += block_tokens
        while self._capacity_tokens is not None and self.held_tokens > self._capacity_tokens:
            oldest = next(iter(self._held))
            self.held_tokens -= self._held.pop(oldest)
