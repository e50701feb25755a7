"""Publishes by broadcasts from the trainer's senders to the workers of engines, with a group for each rollout pod and sender."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ray.exceptions import RayError

from longboat_crds.rollout import PublicationMode
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.rollout.member import Member
from longboat_runtime.rollout.weight_rounds import WeightRound
from longboat_runtime.weights.gate import FetchFailed
from longboat_runtime.weights.payload import SentBucket
from longboat_runtime.weights.source import WeightSource

log = logging.getLogger(__name__)

# The most buckets on their way at one time: one that is received and loaded, and the next, which another sender sends meanwhile.
IN_FLIGHT = 2
# How long a sender waits for a pod in a broadcast, and both ends for each other while a group is made, in seconds.
SENDER_SECONDS = 45.0
# How long a worker waits for a bucket: its sender may first have to leave another pod behind.
WORKER_SECONDS = 2.5 * SENDER_SECONDS
# One more than the most publications in a row in which nothing is broadcast to a pod whose broadcasts fail.
MOST_SKIPPED = 64

_numbers = itertools.count(1)


def version_problem(senders: Sequence[Mapping[str, str]], workers: Sequence[Mapping[str, str]]) -> str | None:
    """Returns how the versions (`weights.groups.versions`) of senders and workers differ; None if they may have a group (pure)."""
    expected = senders[0]
    for end in (*senders, *workers):
        for name, version in expected.items():
            if end.get(name) != version:
                return f"{name} is {version} in the trainer and {end.get(name)} in engines: use one image for both"
    return None


def skipped_publications(failures: int) -> int:
    """Returns how many publications a pod gets through the host's memory before it is broadcast to again, after `failures` in a row (pure).

    None after the first failure, which may be chance; then 1, 3, 7 and so on, since each failure costs all pods up to a deadline.
    """
    return min(1 << max(failures - 1, 0), MOST_SKIPPED) - 1


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The groups of a rollout pod, one with each sender, all named `key`. They are for exactly these engines and this trainer."""

    key: str
    members: tuple[Member, ...]
    source: WeightSource

    def serves(self, members: Sequence[Member], source: WeightSource) -> bool:
        """Whether the groups are those of these engines and the source's senders."""
        return self.members == tuple(members) and self.source.trainer == source.trainer

    async def leave(self) -> None:
        """Ends the groups on both sides, where there still is one."""
        leaving = [self.source.leave_groups(self.key)]
        leaving += [member.actor.call_workers.remote("leave_weight_groups", self.key) for member in self.members]
        await asyncio.gather(*leaving, return_exceptions=True)


class PodGroups:
    """The groups of all rollout pods: made when a pod's engines first take part in a publication, ended when one of them ends.

    There are none unless the mode is Direct.
    """

    def __init__(self, mode: PublicationMode) -> None:
        self._enabled = mode is PublicationMode.DIRECT
        self._groups: dict[str, PodGroup] = {}
        self._refused: dict[str, str] = {}
        self._failures: Counter[str] = Counter()
        self._skipping: Counter[str] = Counter()

    async def join(self, pods: Mapping[str, Sequence[Member]], source: WeightSource) -> dict[str, PodGroup]:
        """Returns the groups of the pods that can have some; engines of the others get buckets through the host's memory."""
        if not self._enabled or not source.trainer:
            return {}
        try:
            async with asyncio.timeout(SENDER_SECONDS):
                senders = await source.versions()
        except (TimeoutError, RayError) as error:
            log.warning("weights go through the host's memory: the trainer's senders don't answer: %s", error)
            return {}
        eligible = {pod: members for pod, members in pods.items() if not self._skipping[pod]}
        self._skipping -= Counter([*pods])
        joined = await asyncio.gather(
            *(self._joined(pod, members, source, senders) for pod, members in eligible.items())
        )
        return {pod: group for pod, group in zip(eligible, joined, strict=True) if group is not None}

    def passed(self, pod: str) -> None:
        """Notes that all engines of a pod got a publication by broadcasts."""
        del self._failures[pod]

    def failed(self, pod: str) -> None:
        """Notes that a pod's group couldn't be made, or that broadcasts to it failed; see `skipped_publications`."""
        self._failures[pod] += 1
        self._skipping[pod] = skipped_publications(self._failures[pod])

    def discard(self, member: Member) -> PodGroup | None:
        """Forgets the groups that an engine is in and returns them; the caller ends them."""
        pod = member.slot.node.pod
        group = self._groups.get(pod)
        if group is None or member not in group.members:
            return None
        return self._groups.pop(pod)

    async def _joined(
        self, pod: str, members: Sequence[Member], source: WeightSource, senders: Sequence[Mapping[str, str]]
    ) -> PodGroup | None:
        group = self._groups.get(pod)
        if group is not None and group.serves(members, source):
            return group
        if group is not None:
            del self._groups[pod]
            with suppress(TimeoutError):  # an engine or sender that stands still answers nothing
                async with asyncio.timeout(SENDER_SECONDS):
                    await group.leave()
        made = PodGroup(f"{pod}/{next(_numbers)}", tuple(members), source)
        try:
            async with asyncio.timeout(SENDER_SECONDS):
                if problem := version_problem(senders, await self._versions(made)):
                    self._refuse(pod, problem)
                    return None
                await self._make(made)
        except (TimeoutError, RayError, EngineDead, RuntimeError) as error:
            log.warning(
                "pod %s gets weights through the host's memory: its group can't be made: %s", pod, error or "no answer"
            )
            self.failed(pod)
            with suppress(TimeoutError):
                async with asyncio.timeout(SENDER_SECONDS):
                    await made.source.leave_groups(made.key)
            return None
        self._groups[pod] = made
        return made

    async def _versions(self, group: PodGroup) -> list[Mapping[str, str]]:
        answers = (member.actor.call_workers.remote("weight_versions") for member in group.members)
        return [*itertools.chain.from_iterable(await asyncio.gather(*answers))]

    def _refuse(self, pod: str, problem: str) -> None:
        if self._refused.get(pod) != problem:
            self._refused[pod] = problem
            log.warning("pod %s gets weights through the host's memory: %s", pod, problem)

    async def _make(self, group: PodGroup) -> None:
        """Has senders and workers join the groups. Raises RuntimeError if one of them can't."""
        size = 1 + sum(member.config.tensor_parallel for member in group.members)
        addresses = await group.source.open_groups(group.key)
        joining, first = [group.source.join_groups(group.key, addresses, size, SENDER_SECONDS)], 1
        for member in group.members:
            arguments = (group.key, addresses, first, size, WORKER_SECONDS)
            joining.append(_joined_workers(member, arguments))
            first += member.config.tensor_parallel
        await asyncio.gather(*joining)


async def _joined_workers(member: Member, arguments: tuple[object, ...]) -> None:
    errors = await member.actor.call_workers.remote("join_weight_groups", *arguments)
    if problem := "; ".join(error for error in errors if error):
        raise RuntimeError(problem)


class DirectRound(WeightRound):
    """A round of the engines of pods that have groups: each bucket is broadcast once to each pod.

    A pod gets no more if one of its engines leaves early or a sender leaves the pod behind: all of its engines then have to get the weights
    through the host's memory.
    """

    in_flight = IN_FLIGHT

    def __init__(self, source: WeightSource, groups: Iterable[PodGroup]) -> None:
        self._groups = {group.key: group for group in groups}
        self._key_of = {member.name: key for key, group in self._groups.items() for member in group.members}
        super().__init__(source, self._key_of)
        self._sent: dict[int, asyncio.Task[None]] = {}
        self._newest: dict[int, asyncio.Task[None]] = {}
        self.failed: dict[str, str] = {}

    async def bucket(self, receiver: str, number: int) -> SentBucket:
        """Waits until a bucket may be sent, and has it sent; returns what the receiver needs to know to receive it."""
        async with self._changed:
            await self._changed.wait_for(lambda: number in self._releasable or self._problem_of(receiver))
        if problem := self._problem_of(receiver):
            raise FetchFailed(problem)
        bucket = self.source.sent(number)
        if number not in self._sent:
            self._sent[number] = asyncio.create_task(self._send(number, self._newest.get(bucket.sender)))
            self._newest[bucket.sender] = self._sent[number]
        return bucket

    async def checksum(self) -> str:
        await asyncio.gather(*self._sent.values())
        if len(self.failed) == len(self._groups):  # its sender may have died after the receiver had the last bucket
            raise FetchFailed(next(iter(self.failed.values())))
        return self.source.checksum

    async def leave(self, receiver: str) -> None:
        if self._loaded.get(receiver, len(self.source)) < len(self.source):
            await self._fail([self._key_of[receiver]], f"engine {receiver} of its pod has left the broadcast")
        await super().leave(receiver)

    async def _send(self, number: int, before: asyncio.Task[None] | None) -> None:
        """Has a bucket sent once its sender has sent the one before: a group's broadcasts have to have the same order at both ends."""
        if before is not None:
            await before
        keys = [key for key in self._groups if key not in self.failed]
        try:
            failed = await self.source.send(number, keys)
        except Exception as error:  # noqa: BLE001 - receivers get it
            await self._fail(keys, f"a bucket can't be sent: {error}")
        else:
            await self._fail(failed, "its pod was left behind in a broadcast")

    async def _fail(self, keys: Iterable[str], problem: str) -> None:
        async with self._changed:
            for key in keys:
                self.failed.setdefault(key, problem)
            for receiver in [receiver for receiver in self._loaded if self._problem_of(receiver)]:
                del self._loaded[receiver]  # it may not leave before its own deadline
            self._changed.notify_all()

    def _problem_of(self, receiver: str) -> str | None:
        return self.failed.get(self._key_of[receiver])

    def _drop(self) -> None:
        self._changed.notify_all()
