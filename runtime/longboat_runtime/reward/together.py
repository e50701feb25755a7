"""Grades of rewards that are given all responses to a prompt at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from longboat_graders.messages import FunctionOutcome
from longboat_runtime.samples import SampleId

# Grades these samples in one call of each function; outcomes by function name. Raises KeyError with samples that the store has lost.
GradeAll = Callable[[tuple[SampleId, ...]], Coroutine[Any, Any, dict[str, FunctionOutcome]]]


class Together:
    """The samples of one group that wait for such a call. It begins with the sample that completes the group."""

    def __init__(self) -> None:
        self.waiting: dict[SampleId, asyncio.Future[dict[str, FunctionOutcome]]] = {}
        self._call: asyncio.Task[None] | None = None

    async def outcomes(
        self, sample: SampleId, siblings: tuple[SampleId, ...], grade_all: GradeAll
    ) -> dict[str, FunctionOutcome]:
        """Returns the sample's outcomes by function name, once somebody has come with `siblings`, the whole group.

        If a lost sample is generated again, the whole group is graded again; grades already returned stay. Cancelling this cancels the
        group's call: the sample comes again with its siblings, or the group is given up. Raises KeyError if the store has lost the sample.
        """
        future: asyncio.Future[dict[str, FunctionOutcome]] = asyncio.get_running_loop().create_future()
        self.waiting[sample] = future
        if siblings and (self._call is None or self._call.done()):
            self._call = asyncio.create_task(self._grade(siblings, grade_all))
        try:
            return await future
        except asyncio.CancelledError:
            if self._call is not None:
                self._call.cancel()
                self._call = None
            raise
        finally:
            if self.waiting.get(sample) is future:
                del self.waiting[sample]

    async def _grade(self, siblings: tuple[SampleId, ...], grade_all: GradeAll) -> None:
        try:
            outcomes = await self._graded(siblings, grade_all)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            for future in self.waiting.values():
                if not future.done():
                    future.set_exception(error)
            return
        for sample, own in outcomes.items():
            waiting = self.waiting.get(sample)
            if waiting is not None and not waiting.done():
                waiting.set_result(own)

    async def _graded(
        self, siblings: tuple[SampleId, ...], grade_all: GradeAll
    ) -> dict[SampleId, dict[str, FunctionOutcome]]:
        """Grades the group and returns the outcomes of its samples; none if a waiting one is lost: it comes back once it is generated again.

        Lost samples that already have grades are left out.
        """
        while siblings:
            try:
                outcomes = await grade_all(siblings)
            except KeyError as missing:
                if not set(missing.args).intersection(siblings):
                    raise  # a bug
                lost = [sample for sample in missing.args if sample in self.waiting]
                for sample in lost:
                    self.waiting[sample].set_exception(KeyError(sample))
                if lost:
                    return {}
                siblings = tuple(sample for sample in siblings if sample not in missing.args)
                continue
            shares = {name: outcome.by_sample(len(siblings)) for name, outcome in outcomes.items()}
            return {sample: {name: own[index] for name, own in shares.items()} for index, sample in enumerate(siblings)}
        return {}
