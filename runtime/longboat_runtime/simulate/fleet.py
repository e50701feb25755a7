"""The engines of a simulated job, and the production router in front of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from longboat_runtime.rollout.load import Load, total
from longboat_runtime.rollout.router import Router
from longboat_runtime.samples import SampleId
from longboat_runtime.simulate.engine import Response, SimulatedEngine
from longboat_runtime.simulate.episode import Episode
from longboat_runtime.simulate.paged_engine import PagedEngine
from longboat_runtime.simulate.site import Site


class SimulatedFleet:
    """Engines of `site`; if it has shapes, there are none before `start`.

    `episodes` are those of the samples that are submitted. While weights are published, or no engine or slot is free for them, samples are
    held back. A sample has its slot, and the engine that it was routed to, until it is taken back or finished, also while it is away
    between turns.
    """

    def __init__(self, site: Site, episodes: Mapping[SampleId, Episode]) -> None:
        self._site, self._episodes = site, episodes
        self.engines: dict[str, SimulatedEngine | PagedEngine] = {}
        self._router = Router()
        self._pods: list[list[str]] = []
        self._publishing = False
        self._held: list[SampleId] = []
        self._away: set[SampleId] = set()
        self.playing: set[SampleId] = set()
        self._load = Load(0)
        self.tensor_parallel = 0
        if site.curve is not None:
            for name in site.names:
                self.engines[name] = SimulatedEngine(name, site.max_sequences, site.curve)
                self._router.add(name)
        elif site.shapes is not None:
            self._pods = [[] for _ in range(site.shapes.pods)]

    @property
    def pods(self) -> Sequence[int]:
        """Numbers of the pods; none without shapes."""
        return range(len(self._pods))

    @property
    def tokens_most(self) -> float:
        """Returns the most tokens that an engine of a curve held at a time."""
        curved = (engine for engine in self.engines.values() if isinstance(engine, SimulatedEngine))
        return max((engine.tokens_most for engine in curved), default=0.0)

    def next_end(self) -> tuple[str, float]:
        """Returns the engine that has to be asked next, and when; the time is infinite if none has to be."""
        ends = ((name, engine.next_end()) for name, engine in self.engines.items())
        return min(ends, key=lambda item: item[1], default=("", inf))

    def ended(self, name: str, now: float) -> list[Response]:
        """Takes out and returns the turns that have ended in this engine by now. Each sample has to leave, continue or be finished."""
        return self.engines[name].ended(now)

    def submit(self, samples: Sequence[SampleId], now: float) -> None:
        """Sends samples to engines, in this order, when there are some that serve and a slot for each."""
        self._held += samples
        self._send_held(now)

    def leave(self, sample: SampleId) -> None:
        """Notes that a sample is away from now on: it needs no engine before it is back."""
        self._away.add(sample)

    def back(self, sample: SampleId) -> bool:
        """Notes that a sample is back; returns False if it wasn't away, since it was taken back meanwhile."""
        was_away = sample in self._away
        self._away.discard(sample)
        return was_away

    def continues(self, sample: SampleId, now: float) -> None:
        """Has a sample draw its next turn in the engine that it was routed to; one that is held back does so later."""
        for name in self._router.engines_of([sample]):
            self._draw(name, sample, now)

    def finish(self, sample: SampleId, now: float) -> None:
        """Forgets a sample that needs no engine and no slot any more."""
        for name in self._router.engines_of([sample]):
            self._router.finished(name, sample)
        self._free([sample], now)

    def take_back(self, samples: Sequence[SampleId], now: float) -> list[tuple[str, Response]]:
        """Stops those of the samples that engines have, are away or held back; returns their engines and what there is of their turns.

        Those whose turn ends anyway are left out.
        """
        waiting = {*self._held}.intersection(samples)
        taken = self._take_out(samples, now)
        taken += [("", Response(sample, 0, ())) for sample in samples if sample in waiting]
        self._free([response.sample for _, response in taken], now)
        return taken

    def _take_out(self, samples: Sequence[SampleId], now: float) -> list[tuple[str, Response]]:
        """Takes samples out of engines; returns these and what there is of their turns, without those whose turn ends anyway."""
        taken = []
        for name, running in self._router.engines_of(samples).items():
            for sample in running:
                away = Response(sample, 0, ()) if sample in self._away else None
                if response := away or self.engines[name].stop(now, sample):
                    self._router.finished(name, sample)
                    taken.append((name, response))
        return taken

    def _free(self, samples: Sequence[SampleId], now: float) -> None:
        """Frees the slots of samples."""
        gone = {*samples}
        self._away -= gone
        self.playing -= gone
        if self._held:
            self._held = [sample for sample in self._held if sample not in gone]
            self._send_held(now)

    def pause(self, now: float) -> None:
        """Pauses all engines, which load weights, and holds samples back until `serve`."""
        self._publishing = True
        for engine in self.engines.values():
            engine.pause(now)

    def serve(self, version: int, now: float) -> None:
        """Continues with the weights that engines have loaded; sends what was held back."""
        self._publishing = False
        for engine in self.engines.values():
            engine.serve(now, version)
        self._send_held(now)

    def end(self, pods: Sequence[int], now: float) -> list[tuple[str, Response]]:
        """Ends the engines of these pods; returns what there is of the samples in them, each with its engine's name."""
        ending = [name for pod in pods for name in self._pods[pod]]
        running = [sample for name in ending for sample in self._router.running(name)]
        for name in ending:
            self._router.drain(name)
        responses = self._take_out(running, now)
        for name in ending:
            # Turns that end with the step under way.
            responses += [(name, response) for response in self._last(name)]
            self._router.remove(name)
        self._load += self._take(ending, now)
        for name in ending:
            del self.engines[name]
        return responses

    def start(self, pods: Sequence[int], size: int, version: int | None, now: float) -> None:
        """Starts engines of `size` devices in these pods, with the weights of `version`, if there are any."""
        self.tensor_parallel = size
        for name in self._start(pods, size):
            engine = self.engines[name]
            if version is not None:
                engine.serve(now, version)
            if self._publishing:
                engine.pause(now)
        if not self._publishing:
            self._send_held(now)

    def take_load(self, now: float) -> Load:
        """Returns what all engines felt since the last call, those that have ended meanwhile included."""
        load = self._load + self._take([*self.engines], now)
        self._load = Load(self.tensor_parallel)
        return load

    def _take(self, names: Sequence[str], now: float) -> Load:
        engines = (self.engines[name] for name in names)
        return total(engine.take_load(now) for engine in engines if isinstance(engine, PagedEngine))

    def _last(self, name: str) -> list[Response]:
        engine = self.engines[name]
        return engine.ended(engine.next_end()) if self._router.running(name) else []

    def _start(self, pods: Sequence[int], size: int) -> list[str]:
        shapes = self._site.shapes
        assert shapes is not None
        for pod in pods:
            self._pods[pod] = []
            for first in range(0, shapes.devices, size):
                name = f"pod-{pod}/" + "-".join(str(device) for device in range(first, first + size))
                self._pods[pod].append(name)
                self.engines[name] = PagedEngine(
                    name,
                    self._site.max_sequences,
                    shapes.model(size),
                    size,
                    prompt_tokens=self._site.prompt_tokens,
                    batched_tokens=shapes.batched_tokens,
                )
                self._router.add(name)
        return [name for pod in pods for name in self._pods[pod]]

    def _send_held(self, now: float) -> None:
        """Sends what was held back to engines, if some serve, in order and as far as there are slots."""
        if not self._held or self._publishing or not self._router.open:
            return
        slots = inf if self._site.slots is None else self._site.slots
        ready, waiting = list[SampleId](), list[SampleId]()
        for sample in self._held:
            if sample in self.playing or len(self.playing) < slots:
                self.playing.add(sample)
                ready.append(sample)
            else:
                waiting.append(sample)
        self._held = waiting
        for name, routed in self._router.route(ready).items():
            for sample in routed:
                if sample not in self._away:
                    self._draw(name, sample, now)

    def _draw(self, name: str, sample: SampleId, now: float) -> None:
        tokens, context, returns = self._episodes[sample].needs
        self.engines[name].submit(now, sample, tokens, context, returns=returns)


class RoundLoads:
    """Sums what engines felt by round, as the driver does: it belongs to the newest round, and to none once that is finished."""

    def __init__(self) -> None:
        self._round: int | None = None
        self._of_round: dict[int, Load] = {}

    def begin(self, number: int, load: Load) -> None:
        """Begins a round; `load` is of the time since the last call of `begin` or `finish`."""
        if self._round in self._of_round:
            self._of_round[self._round] += load
        self._round, self._of_round[number] = number, Load(0)

    def finish(self, number: int, load: Load) -> Load | None:
        """Forgets a round, which is over, and returns all its load; None if it isn't known. `load` is as for `begin`."""
        if self._round in self._of_round:
            self._of_round[self._round] += load
        return self._of_round.pop(number, None)
