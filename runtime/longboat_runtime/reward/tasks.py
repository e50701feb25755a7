"""Tells which responses solve their rows: by which reward, and from which score on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import structlog
from pydantic.alias_generators import to_camel

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind, RewardRole
from longboat_crds.rewards import RewardSpec
from longboat_runtime.reward.combine import Graded
from longboat_runtime.samples import UNSCORED
from longboat_runtime.scores import exceeds, reaches

log = structlog.get_logger()

# What solves a row if nothing else is said: the full score for scores between 0 and 1.
FULL_SCORE = 1.0
# Stands for the weighted sum of all rewards: an empty name, which no reward can have.
SUM = ""
_DECLARED = {RewardKind.REASONING_GYM: FULL_SCORE, RewardKind.SANDBOX: FULL_SCORE}


def is_shaping(reward: RewardSpec, rewards: Sequence[RewardSpec]) -> bool:
    """Whether a reward of a job with these `rewards` only adds to the sum: it says so, or another has role Task and it has none. Pure."""
    if reward.declared_role is None:
        return any(other.declared_role is RewardRole.TASK for other in rewards)
    return reward.declared_role is RewardRole.SHAPING


def task_rewards(rewards: Sequence[RewardSpec]) -> list[RewardSpec]:
    """Lists the rewards that tell whether a response solves its row, of which at most one applies to a row.

    They are those that aren't Shaping (`is_shaping`). If two of these apply to the same row and none has role Task there are none, and the
    weighted sum of all rewards tells it. Raises SpecProblem if two rewards with role Task apply to the same row, and for `solvedAt` and
    `canary` of a reward that tells nothing. Pure.
    """
    chosen = [reward for reward in rewards if not is_shaping(reward, rewards)]
    named = any(reward.declared_role is RewardRole.TASK for reward in rewards)
    for index, reward in enumerate(rewards):
        fields = [name for name in ("solved_at", "canary") if getattr(reward, name) is not None]
        if fields and reward not in chosen:
            raise SpecProblem(
                Reason.SPEC_INVALID,
                f"spec.rewards[{index}].{to_camel(fields[0])}",
                f"Another reward has role Task, so {reward.name} doesn't tell whether a response is right. Leave it out, or set the role of "
                f"{reward.name} to Task.",
            )
    for first, second in combinations(chosen, 2):
        if first.domains and second.domains and not set(first.domains) & set(second.domains):
            continue
        if not named:
            if declared := next((reward for reward in rewards if reward.solved_at is not None), None):
                raise SpecProblem(
                    Reason.SPEC_INVALID,
                    f"spec.rewards[{rewards.index(declared)}].solvedAt",
                    f"{first.name} and {second.name} apply to the same rows and neither has role Task, so their weighted sum tells whether a "
                    f"response is right. Set the role of {declared.name} to Task, or leave solvedAt out.",
                )
            return []
        raise SpecProblem(
            Reason.SPEC_INVALID,
            f"spec.rewards[{rewards.index(second)}].role",
            f"{first.name} and {second.name} both have role Task and apply to the same rows, so neither tells whether a response is right. "
            "Give one of them role Shaping, or give them domains that have none in common.",
        )
    return chosen


class TaskRewards:
    """Judges responses by the job's task rewards.

    A task reward that declares no score for a solved row has FULL_SCORE, until it gives more than that. From then on nobody knows what its
    scores mean, and its responses are neither solved nor unsolved.
    """

    def __init__(self, rewards: Sequence[RewardSpec]) -> None:
        self._rewards = {reward.name: reward for reward in task_rewards(rewards)}
        declared = {
            name: _DECLARED.get(reward.kind) if reward.solved_at is None else reward.solved_at
            for name, reward in self._rewards.items()
        }
        self._solved_at = {name: bound for name, bound in declared.items() if bound is not None}
        self.unclear: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The task rewards; empty if the weighted sum tells whether a row is solved."""
        return list(self._rewards)

    def log(self) -> None:
        """Logs which rewards accuracy, pass@k and zero variance are about."""
        if self._rewards:
            bounds = {name: self._solved_at.get(name, FULL_SCORE) for name in self._rewards}
            log.info("accuracy, pass@k and zero variance are about these rewards", solved_at=bounds)
        else:
            log.warning(
                "no reward alone tells whether a response is right, so accuracy, pass@k and zero variance are about the weighted sum: give "
                "the one that tells it role Task"
            )

    def task_of(self, names: Iterable[str]) -> str | None:
        """Returns the task reward among those that scored a sample; None if there is none."""
        return next((name for name in names if name in self._rewards), None)

    def observe(self, graded: Graded) -> None:
        """Takes notice of a grade's scores: whether one exceeds FULL_SCORE where no score of a solved row is declared."""
        name, score = self._task_score(graded)
        if (
            name is None
            or score is None
            or name in self._solved_at
            or name in self.unclear
            or not exceeds(score, FULL_SCORE)
        ):
            return
        self.unclear.add(name)
        if name == SUM:
            cure = "the weighted sum of rewards exceeds 1: give the reward that tells whether a response is right role Task"
        else:
            cure = f"reward {name} exceeds 1: set its solvedAt to the score of a right response"
        log.warning("accuracy and pass@k are withheld from now on", cause=cure, score=score)

    def solved(self, graded: Graded) -> bool | None:
        """Whether the response solves its row; None if that can't be told. A response whose task reward timed out doesn't solve it."""
        name, score = self._task_score(graded)
        return None if name is None else self._solves(name, score)

    def _solves(self, name: str, score: float | None) -> bool | None:
        if name in self.unclear:
            return None
        return score is not None and reaches(score, self._solved_at.get(name, FULL_SCORE))

    def _task_score(self, graded: Graded) -> tuple[str | None, float | None]:
        """Returns the task reward that scored the sample, or SUM, and the score; None for no reward, and for no score."""
        if graded.kind is None or graded.kind in UNSCORED:
            return None, None
        if not self._rewards:
            return SUM, None if None in graded.parts.values() else graded.score
        name = self.task_of(graded.parts)
        return name, None if name is None else graded.parts[name]

    def shares(self, prefix: str, graded: Iterable[Graded]) -> dict[str, float]:
        """Computes `PREFIX/NAME/mean` for each task reward: the share of solved responses among those that it tells of."""
        outcomes: dict[str, list[bool]] = {}
        for grade in graded:
            name, score = self._task_score(grade)
            if name and (solved := self._solves(name, score)) is not None:
                outcomes.setdefault(name, []).append(solved)
        return {f"{prefix}/{name}/mean": sum(solved) / len(solved) for name, solved in sorted(outcomes.items())}

    def to_snapshot(self) -> list[str]:
        """Returns JSON values that `restore` takes."""
        return sorted(self.unclear)

    def restore(self, snapshot: Any) -> None:
        """Takes over what `to_snapshot` returned, but for rewards that declare a score now. Raises TypeError if it isn't that."""
        self.unclear = {str(name) for name in snapshot} - self._solved_at.keys()
