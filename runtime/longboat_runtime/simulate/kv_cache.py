"""The KV cache of one engine in blocks, as vLLM's block pool (0.32) manages it, counted rather than listed. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable

from longboat_runtime.samples import PromptId, SampleId


class KvCache:
    """`total` blocks of `block_size` tokens.

    A full block stays in the prefix cache when nobody uses it any more, until it is taken for something else: blank blocks are taken
    first, then those that were given back longest ago, of one sequence the last first. Samples of a prompt share the full blocks of all
    but the last of its first `shared` tokens. A sequence that is admitted again finds what is left of its full blocks.
    """

    def __init__(self, total: int, block_size: int, shared: int) -> None:
        self.total, self.free = total, total
        self._size = block_size
        # The last token of a prompt is always computed, since its logits are needed.
        self._shared = max(0, shared - 1) // block_size
        self._blank = total
        self._users: Counter[PromptId] = Counter()
        self._cached: OrderedDict[Hashable, int] = OrderedDict()
        self._forgotten = 0

    def blocks(self, tokens: int) -> int:
        """Returns how many blocks hold so many tokens."""
        return -(-tokens // self._size)

    def cached_tokens(self, sample: SampleId, tokens: int) -> int:
        """Counts how many of the `tokens` of a waiting sequence needn't be computed."""
        return sum(self._cached_blocks(sample, tokens)) * self._size

    def admit(self, sample: SampleId, tokens: int) -> bool:
        """Takes blocks for all `tokens` of a sequence, unless there are too few."""
        prompt, (shared, own) = sample.prompt, self._cached_blocks(sample, tokens)
        used = prompt in self._users
        needed = self.blocks(tokens) - (shared if used else 0)
        if needed > self.free:
            return False
        if not used:
            self.free -= shared
            self._cached.pop(prompt, None)
        # Blocks can't be found again once the blocks before them are gone.
        self._blank += self._cached.pop(sample, 0) - own
        self.free -= own
        self._users[prompt] += 1
        self.take(self.blocks(tokens) - shared - own)
        return True

    def _cached_blocks(self, sample: SampleId, tokens: int) -> tuple[int, int]:
        """Returns the blocks of the prompt, and those behind them that are the sequence's own: only what follows without a gap is found."""
        prompt = sample.prompt
        shared = self._shared if prompt in self._users else self._cached.get(prompt, 0)
        if shared < self._shared:
            return shared, 0
        return shared, min(self._cached.get(sample, 0), (tokens - 1) // self._size - shared)

    def take(self, blocks: int) -> None:
        """Takes so many of the free blocks."""
        self.free -= blocks
        blank = min(blocks, self._blank)
        self._blank -= blank
        blocks -= blank
        while blocks:
            owner = next(iter(self._cached))
            evicted = min(blocks, self._cached[owner])
            blocks -= evicted
            self._cached[owner] -= evicted
            if not self._cached[owner]:
                del self._cached[owner]

    def release(self, sample: SampleId, tokens: int, *, continues: bool) -> None:
        """Gives back the blocks of a sequence of `tokens`, which may be admitted again if it `continues`."""
        full, own = tokens // self._size - self._shared, self.blocks(tokens) - self._shared
        self.free += own
        self._blank += own - full
        if full:
            self._forgotten += 1
            self._cached[sample if continues else self._forgotten] = full
        prompt = sample.prompt
        self._users[prompt] -= 1
        if not self._users[prompt]:
            del self._users[prompt]
            self.free += self._shared
            if self._shared:
                self._cached[prompt] = self._shared

    def reset(self) -> None:
        """Empties the cache, which nobody may use: its keys and values are of other weights."""
        self.free = self._blank = self.total
        self._users.clear()
        self._cached.clear()
