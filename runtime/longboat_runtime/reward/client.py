"""A connection to the graders of this pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reward_kinds import RewardIsolation
from longboat_crds.rewards import RewardSpec
from longboat_graders.client import Client, ServerGone, no_longer_loads
from longboat_graders.frames import FrameError, to_json
from longboat_graders.messages import FunctionOutcome, GradersCapacity, IsolationInForce, OutcomeKind, RewardFunction
from longboat_graders.result import RESPONSE_FIELDS, RewardSample

# Where the reward pod's two containers meet.
SOCKET = Path("/run/longboat/graders.sock")
_SAMPLE_FIELDS = tuple(field.name for field in fields(RewardSample))


def _fields(sample: RewardSample, names: Sequence[str] = _SAMPLE_FIELDS) -> dict[str, Any]:
    fields = {name: getattr(sample, name) for name in names}
    if sample.turns is None:
        fields.pop("turns", None)  # graders of an earlier release don't know it
    return fields


def _group_fields(samples: Sequence[RewardSample]) -> dict[str, Any]:
    """Returns the fields of the row once, and those of each response."""
    responses = [_fields(sample, RESPONSE_FIELDS) for sample in samples]
    row = {name: value for name, value in _fields(samples[0]).items() if name not in RESPONSE_FIELDS}
    return {"row": row, "responses": responses}


def disagreement(first: Mapping[str, Mapping[str, str]], others: Mapping[str, Mapping[str, str]]) -> str | None:
    """Names the rewards, with their files and distributions, that aren't made of the same in both; None if all are. Pure.

    Both have what rewards are made of, by name (`Grader.sources`). A reward that only one of them has is no difference.
    """
    differing = {
        reward: sorted(
            name
            for name in first[reward].keys() | others[reward].keys()
            if first[reward].get(name) != others[reward].get(name)
        )
        for reward in sorted(first.keys() & others.keys())
    }
    texts = [f"another {', '.join(names)} of reward {reward}" for reward, names in differing.items() if names]
    return "; ".join(texts) or None


class GraderClient(Client):
    """Asks graders over their Unix socket, many requests at a time. A lost connection is reopened by the next request.

    `changed` is called when another number of grades runs at once than before.
    """

    def __init__(self, path: Path = SOCKET, changed: Callable[[], None] = lambda: None) -> None:
        super().__init__(path, "graders")
        self._changed = changed
        self._capacity: GradersCapacity | None = None
        # A lock held by a grade that has to run alone, the number of other grades, and an event that is set while there are none.
        self._alone, self._together, self._none = asyncio.Lock(), 0, asyncio.Event()
        self._none.set()
        # Rewards that are loaded again when graders have restarted.
        self._loaded: dict[str, tuple[RewardSpec, str]] = {}
        self._isolation: dict[str, IsolationInForce] = {}
        # Rewards, by name, whose functions take the token ids of responses.
        self.token_ids: set[str] = set()
        # What rewards are made of, by name, as they were loaded first; and which of them is another now, in words.
        self.sources: dict[str, Mapping[str, str]] = {}
        self.changed = ""

    @property
    def isolation(self) -> Mapping[str, IsolationInForce]:
        """Isolation of grades as last heard, by name of the reward. It may change while they are graded."""
        return MappingProxyType(self._isolation)

    @property
    def capacity(self) -> GradersCapacity | None:
        return self._capacity

    async def load(self, reward: RewardSpec, field: str, per_grade: str | None = None) -> SpecProblem | None:
        """Loads the function; `field` is the spec path of `reward`. Raises ServerGone.

        `per_grade` is why Auto is known to have fallen back to PerGrade for it, so that graders needn't find it out again.
        """
        await self.connect()
        if self._loaded.get(reward.name) != (reward, field):
            self._isolation.pop(reward.name, None)
        if per_grade is not None and reward.isolation is RewardIsolation.AUTO:
            self._isolation[reward.name] = IsolationInForce(RewardIsolation.PER_GRADE, per_grade)
        self.sources.pop(reward.name, None)
        problem = await self._load(reward, field)
        if problem is None:
            self._loaded[reward.name] = (reward, field)
        return problem

    async def grade(
        self,
        reward: str,
        sample: RewardSample | Sequence[RewardSample],
        seconds: float,
        seed: int,
        own_seconds: float | None = None,
        *,
        alone: bool = False,
    ) -> FunctionOutcome:
        """Calls one function on one sample, or on all responses to a prompt if it is given these.

        The outcome is LOST if the graders can't be reached, or go away before they answer.

        `seconds` is the grade's timeout (of each test case, where there are any), `own_seconds` the learned one, both in own seconds.
        Random numbers in it are drawn from `seed` (not negative). With `alone` this client has nothing else graded meanwhile. If the call
        is cancelled the graders end the grade.
        """
        if alone:
            async with self._alone:
                await self._none.wait()
                return await self._grade(reward, sample, seconds, seed, own_seconds)
        while self._alone.locked():
            async with self._alone:
                pass
        self._together += 1
        self._none.clear()
        try:
            return await self._grade(reward, sample, seconds, seed, own_seconds)
        finally:
            self._together -= 1
            if not self._together:
                self._none.set()

    async def _grade(
        self,
        reward: str,
        sample: RewardSample | Sequence[RewardSample],
        seconds: float,
        seed: int,
        own_seconds: float | None,
    ) -> FunctionOutcome:
        try:
            body = to_json(_fields(sample) if isinstance(sample, RewardSample) else _group_fields(sample))
            await self.connect()
            learned = {} if own_seconds is None else {"own": own_seconds}
            answer = await self.ask(
                {"op": "grade", "reward": reward, "timeout": seconds, "seed": seed, **learned}, body
            )
        except ServerGone as error:
            return FunctionOutcome(OutcomeKind.LOST, message=str(error), begun=error.begun)
        except FrameError as error:
            return FunctionOutcome(
                OutcomeKind.GRADER_ERROR, message=f"the sample can't be sent to the graders: {error}"
            )
        return FunctionOutcome.from_json(answer["outcome"])

    async def state(self) -> Mapping[str, Any]:
        """Returns the graders' state; raises ServerGone.

        It has `processes`, `running`, `landlock` (version, 0 for none), `unenforced` (lines), `rewards` by name, and `at_once` and
        `cpu_seconds`, which are those of `GradersCapacity`. For a reward it says `isolation` and `reason`, `footprint` (see
        `forks.footprint`), and `replaced`: for what reasons its processes were replaced after a grade, and how often for each.
        """
        return await super().state()

    async def load_again(self) -> None:
        for reward, field in self._loaded.values():
            problem = await self._load(reward, field)
            if self.changed:
                raise ServerGone(self.changed)
            if problem is not None:
                raise no_longer_loads("graders", reward.name, problem)

    async def _load(self, reward: RewardSpec, field: str) -> SpecProblem | None:
        in_force = self._isolation.get(reward.name)
        answer = await self.ask(
            {
                "op": "load",
                "function": RewardFunction.from_spec(reward).to_json(),
                "field": field,
                "isolation": reward.isolation,
                "reason": in_force.reason if in_force is not None else "",
            }
        )
        if answer["problem"] is not None:
            return SpecProblem(*answer["problem"])
        self._learn(answer)
        if (sources := answer.get("sources")) is not None:  # graders of an earlier release don't tell
            loaded = {reward.name: sources}
            self.changed = self.changed or disagreement(self.sources, loaded) or ""
            self.sources = loaded | self.sources
        (self.token_ids.add if answer["token_ids"] else self.token_ids.discard)(reward.name)
        self._isolation[reward.name] = IsolationInForce(RewardIsolation(answer["isolation"]), answer["reason"])
        return None

    def heard(self, message: Mapping[str, Any]) -> None:
        if "at_once" in message:
            self._learn(message)
            return
        in_force = IsolationInForce(RewardIsolation(message["isolation"]), message["reason"])
        self._isolation[message["reward"]] = in_force

    def _learn(self, message: Mapping[str, Any]) -> None:
        before, self._capacity = self._capacity, GradersCapacity(message["at_once"], message["cpu_seconds"])
        if before is not None and before.at_once != self._capacity.at_once:
            self._changed()
