"""Chooses the engine that makes a sample. Pure.

The rule: samples of one prompt go to one engine, so that the prompt is computed once (prefix cache); a new prompt goes to the
engine with the fewest samples. A prompt moves to another engine when its own has `IMBALANCE` samples more than the emptiest one:
a cache hit saves one pass over the prompt, a longer queue delays the whole round. Equal loads go by name, so that the same
requests to the same engines are always routed alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from longboat_runtime.samples import PromptId, SampleId

# An engine with this many samples more than the emptiest one no longer gets the rest of its prompts' groups.
IMBALANCE = 16


class Router:
    """Keeps each engine's running samples. Engines are known by name; a drained one gets nothing new."""

    def __init__(self) -> None:
        self._running: dict[str, set[SampleId]] = {}
        self._drained: set[str] = set()
        self._home: dict[PromptId, str] = {}
        self._of_prompt: Counter[PromptId] = Counter()

    def add(self, engine: str) -> None:
        """Lets `engine` get samples from now on."""
        self._running.setdefault(engine, set())
        self._drained.discard(engine)

    def drain(self, engine: str) -> None:
        """Sends nothing new to `engine`; what runs there stays."""
        self._drained.add(engine)

    def remove(self, engine: str) -> list[SampleId]:
        """Forgets `engine`; returns the samples that ran there, sorted."""
        running = self.running(engine)
        for sample in running:
            self.finished(engine, sample)
        self._running.pop(engine, None)
        self._drained.discard(engine)
        return running

    @property
    def open(self) -> list[str]:
        """Engines that get samples, by name."""
        return sorted(self._running.keys() - self._drained)

    def running(self, engine: str) -> list[SampleId]:
        """Returns the samples that run in `engine`, sorted."""
        return sorted(self._running.get(engine, ()))

    def count(self, engine: str) -> int:
        """Returns how many samples run in `engine`."""
        return len(self._running.get(engine, ()))

    def route(self, samples: Sequence[SampleId]) -> dict[str, list[SampleId]]:
        """Gives each sample an engine and counts it as running there; keeps the order. Raises LookupError if none is open."""
        engines = self.open
        if not engines:
            raise LookupError("no engine is open")
        routed: dict[str, list[SampleId]] = {}
        for sample in samples:
            engine = self._choose(sample.prompt, engines)
            self._home[sample.prompt] = engine
            self._of_prompt[sample.prompt] += 1
            self._running[engine].add(sample)
            routed.setdefault(engine, []).append(sample)
        return routed

    def finished(self, engine: str, sample: SampleId) -> bool:
        """Notes that the sample no longer runs; returns False if it wasn't running in that engine (a late or duplicate report)."""
        running = self._running.get(engine, set())
        if sample not in running:
            return False
        running.remove(sample)
        self._of_prompt[sample.prompt] -= 1
        if not self._of_prompt[sample.prompt]:
            del self._of_prompt[sample.prompt], self._home[sample.prompt]
        return True

    def engines_of(self, samples: Collection[SampleId]) -> dict[str, list[SampleId]]:
        """Returns those of the samples that run, by engine; engines with none of them are left out."""
        by_engine = {
            engine: [sample for sample in samples if sample in running] for engine, running in self._running.items()
        }
        return {engine: ids for engine, ids in by_engine.items() if ids}

    def _choose(self, prompt: PromptId, engines: Sequence[str]) -> str:
        emptiest = min(engines, key=lambda engine: (len(self._running[engine]), engine))
        home = self._home.get(prompt)
        if home is not None and home in engines and len(self._running[home]) - len(self._running[emptiest]) < IMBALANCE:
            return home
        return emptiest
