"""What the simulator says of the same arms: on the engines' own step times, and on lengths that are drawn, logged or the baseline's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.rounds import drawn
from bench.rounds.arms import BASELINE, OVERLAPPING
from bench.rounds.block import trained_tokens
from bench.rounds.compare import Blocks
from bench.rounds.recorded import Recorded
from bench.rounds.tasks import Task
from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds.audit.first_launches import complete
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.measurements import StepTimes
from longboat_runtime.rounds.policies import open_policy
from longboat_runtime.samples import PromptId
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import FirstLaunchDistribution, LengthDistribution
from longboat_runtime.simulate.simulation import SimulatedRun, Source, simulate
from longboat_runtime.simulate.site import Site


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions for one arm, over all its seeds. Seconds are for each trained sample."""

    rollout: float
    step: float
    generated_to_kept: float
    long_share: float


class Predictor:
    """Predicts the arms of one task. `overhead` is what a synchronous round takes beyond the simulated one.

    Step times are those of all its blocks in which nothing is trained meanwhile; an arm that overlaps has its own.

    The overhead (messages, the store, graders that compete for CPUs) and the seconds of a step apart from rollout are measured on the
    baseline, so its own prediction is a fit. Where an arm overlaps, its trainer is as much slower as it was.

    Drawn lengths are known. Learned ones are those of the arm's own log, where it has them. Others, or all to see what could be known
    beforehand, are drawn from the baseline's block of the same seed, with redraws for a prompt that is launched again.
    """

    def __init__(self, blocks: Blocks, task: Task, settings: dict[str, Any]) -> None:
        self._blocks, self._task, self._settings = blocks, task, settings
        self.observed = self._step_times([arm for arm, _ in blocks if arm not in OVERLAPPING])
        self.site = Site(StepCurve.from_observed(self.observed), engines=task.engines)
        seeds = [seed for arm, seed in blocks if arm == BASELINE]
        real = [blocks[BASELINE, seed] for seed in seeds]
        simulated = [self._simulate(BASELINE, seed).rollout_per_round for seed in seeds]
        self.overhead = float(np.mean([seconds for block in real for seconds in block["rollout"]]) - np.mean(simulated))
        self._rest = float(
            np.mean([seconds for b in real for seconds in b["step"]])
            - np.mean([seconds for b in real for seconds in b["rollout"]])
        )
        self.site = replace(self.site, latency=max(0.0, self.overhead) / 2, update=self._rest)

    def predict(self, arm: str, *, beforehand: bool = False) -> Predicted:
        """Predicts the arm, as means over its seeds.

        With `beforehand`, learned lengths are drawn from the baseline's blocks even where the arm's own log has them. The
        baseline's prediction is then still made from the lengths that it saw.
        """
        outcomes = [self._simulate(arm, seed, beforehand=beforehand) for name, seed in self._blocks if name == arm]
        return Predicted(
            rollout=float(np.mean([outcome.rollout_per_sample for outcome in outcomes])),
            step=float(np.mean([outcome.seconds_per_sample for outcome in outcomes])),
            generated_to_kept=float(np.mean([outcome.generated_to_kept for outcome in outcomes])),
            long_share=float(np.mean([outcome.long_share for outcome in outcomes])),
        )

    def _step_times(self, arms: Collection[str]) -> dict[int, StepTimes]:
        blocks = [block for (arm, _), block in self._blocks.items() if arm in arms]
        observed = merged(
            {int(batch): StepTimes(*times) for batch, times in block["curve"].items()} for block in blocks
        )
        return {batch: times for batch, times in observed.items() if times.steps > 0}

    def _site_of(self, arm: str) -> Site:
        if arm not in OVERLAPPING:
            return self.site
        longer = self._updates(arm) - self._updates(BASELINE)
        return replace(self.site, curve=StepCurve.from_observed(self._step_times([arm])), update=self._rest + longer)

    def _updates(self, arm: str) -> float:
        """Returns the mean seconds of a step's training and publication; 0 where runs didn't record them yet."""
        updates = [
            seconds for (name, _), block in self._blocks.items() if name == arm for seconds in block.get("update", ())
        ]
        return float(np.mean(updates)) if updates else 0.0

    def _simulate(self, arm: str, seed: int, *, beforehand: bool = False) -> SimulatedRun:
        prompts = self._settings["prompts"][self._task.name]
        spec = self._task.spec(
            arm, Path("/"), steps=self._settings["steps"][self._task.name], prompts=prompts, seed=seed
        )
        distribution = self._distribution(seed)
        if self._task.learns and not beforehand:
            distribution = Recorded.from_block(self._blocks[arm, seed], distribution)
        size = self._task.group_size
        steps = spec.rounds.steps
        return simulate(open_policy(spec), size, self._site_of(arm), distribution, steps, source=self._source())

    def _distribution(self, seed: int) -> LengthDistribution:
        if not self._task.learns:
            return drawn.distribution(seed)
        trained = trained_tokens(self._blocks[BASELINE, seed])
        lengths = [PromptLengths("", tuple(tokens), (), (), tuple(tokens)) for tokens in trained.values()]
        numbers = {prompt: number for number, prompt in enumerate(trained)}
        longest = max(max(tokens) for tokens in trained.values())
        return FirstLaunchDistribution.from_launches(complete(lengths, longest), self._task.group_size, numbers, seed)

    def _source(self) -> Source:
        """Makes a source of the prompts in the order the dataset gave them; made-up ones follow where no block went that far."""
        order = max((block["drawn"] for block in self._blocks.values()), key=len)
        prompts = [PromptId(*prompt) for prompt in order]

        def draw(before: int, count: int, domain: str) -> list[PromptId]:
            del domain
            further = [PromptId(-1, number) for number in range(len(prompts), before + count)]
            return [*prompts, *further][before : before + count]

        return draw
