"""The job that a driver runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.layout import INCARNATIONS
from longboat_runtime.rounds.events import SpecChanged
from longboat_runtime.samples import Repetition, Sampling


def spec_changed(spec: RLJobSpec) -> SpecChanged:
    """Picks the fields of an edited spec that a running job follows through its event log."""
    return SpecChanged(spec.rounds.steps, spec.checkpoint.every_steps, spec.checkpoint.keep)


@dataclass(frozen=True, slots=True)
class Job:
    """One start of a driver.

    `identity` is the RLJob's uid or, without Kubernetes, its name. It goes into sample seeds, unless the training started as another job.
    `root` is the checkpoint directory, `incarnation` the number of this start. `name` is the RLJob's, for people.
    """

    identity: str
    spec: RLJobSpec
    root: Path
    incarnation: int
    name: str = ""

    @property
    def home(self) -> Path:
        """The directory to which only this incarnation adds files."""
        return self.root / INCARNATIONS / str(self.incarnation)

    @property
    def sampling(self) -> Sampling:
        """Sampling options of training samples."""
        spec = self.spec.rollout.sampling
        loop = spec.repetition
        repetition = Repetition(loop.pattern_tokens, loop.count) if loop else None
        return Sampling(
            spec.max_tokens,
            spec.temperature,
            spec.top_p,
            tuple(spec.stop),
            tuple(spec.stop_token_ids),
            spec.include_stop,
            repetition,
        )

    @property
    def full_batch(self) -> int:
        """The number of samples in a step that lost none."""
        return self.spec.rounds.prompts_per_round * self.spec.algorithm.group_size
