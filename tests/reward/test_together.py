"""All responses to a prompt are graded in one call, whatever is lost meanwhile."""

import asyncio
from collections.abc import Sequence

import pytest

from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.reward.together import Together
from longboat_runtime.samples import SampleId

GROUP = tuple(SampleId(0, 7, 0, index) for index in range(4))
Outcomes = dict[str, FunctionOutcome]


class Function:
    """Scores each sample by its place in the call. Samples in `lost` are missing once, `gate` holds calls up."""

    def __init__(self) -> None:
        self.calls: list[tuple[SampleId, ...]] = []
        self.lost: set[SampleId] = set()
        self.gate, self.called = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.kind = OutcomeKind.SCORED

    async def __call__(self, samples: tuple[SampleId, ...]) -> Outcomes:
        self.calls.append(samples)
        self.called.set()
        await self.gate.wait()
        if missing := self.lost.intersection(samples):
            self.lost -= missing
            raise KeyError(*missing)
        each = tuple(FunctionOutcome(OutcomeKind.SCORED, float(place)) for place in range(len(samples)))
        failed = self.kind is not OutcomeKind.SCORED
        return {"f": FunctionOutcome(self.kind, seconds=8.0, cpu_seconds=4.0, each=() if failed else each)}


def asked(
    together: Together, function: Function, samples: Sequence[SampleId], siblings: tuple[SampleId, ...] = ()
) -> list[asyncio.Task[Outcomes]]:
    """Asks for each of these, the last with siblings."""
    return [
        asyncio.create_task(together.outcomes(sample, siblings if sample == samples[-1] else (), function))
        for sample in samples
    ]


async def test_a_group_is_called_once_when_it_is_complete() -> None:
    together, function = Together(), Function()
    first = asked(together, function, GROUP[:3])
    await asyncio.sleep(0)
    assert not function.calls
    outcomes = await asyncio.gather(*first, *asked(together, function, GROUP[3:], GROUP))
    assert function.calls == [GROUP]
    assert [outcome["f"].score for outcome in outcomes] == [0.0, 1.0, 2.0, 3.0]
    assert {(outcome["f"].seconds, outcome["f"].cpu_seconds) for outcome in outcomes} == {(2.0, 1.0)}
    assert not together.waiting


async def test_two_that_see_a_complete_group_make_one_call() -> None:
    together, function = Together(), Function()
    tasks = asked(together, function, GROUP[:3], GROUP) + asked(together, function, GROUP[3:], GROUP)
    assert [outcome["f"].score for outcome in await asyncio.gather(*tasks)] == [0.0, 1.0, 2.0, 3.0]
    assert function.calls == [GROUP]


async def test_a_failed_call_is_every_samples_failure() -> None:
    together, function = Together(), Function()
    function.kind = OutcomeKind.TIMEOUT
    outcomes = await asyncio.gather(*asked(together, function, GROUP, GROUP))
    assert [outcome["f"].kind for outcome in outcomes] == [OutcomeKind.TIMEOUT] * 4


async def test_the_others_wait_for_one_that_is_lost() -> None:
    together, function = Together(), Function()
    function.lost = {GROUP[1]}
    tasks = asked(together, function, GROUP, GROUP)
    with pytest.raises(KeyError) as lost:
        await tasks[1]
    assert lost.value.args == (GROUP[1],)
    assert not any(task.done() for task in (tasks[0], *tasks[2:]))
    again = asked(together, function, [GROUP[1]], GROUP)
    outcomes = await asyncio.gather(tasks[0], *again, *tasks[2:])
    assert [outcome["f"].score for outcome in outcomes] == [0.0, 1.0, 2.0, 3.0]


async def test_one_that_was_graded_and_is_lost_is_left_out() -> None:
    together, function = Together(), Function()
    await asyncio.gather(*asked(together, function, GROUP, GROUP))
    function.lost = {GROUP[0]}
    (again,) = asked(together, function, [GROUP[2]], GROUP)
    assert (await again)["f"].score == 1.0
    assert function.calls[-1] == GROUP[1:]


async def test_a_call_without_one_of_its_samples_is_given_up() -> None:
    together, function = Together(), Function()
    function.gate.clear()
    tasks = asked(together, function, GROUP, GROUP)
    await function.called.wait()
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    function.gate.set()
    again = asked(together, function, GROUP[:1], GROUP)
    outcomes = await asyncio.gather(*again, *tasks[1:])
    assert [outcome["f"].score for outcome in outcomes] == [0.0, 1.0, 2.0, 3.0]
    assert len(function.calls) == 2


async def test_an_error_reaches_whoever_waits() -> None:
    async def broken(samples: tuple[SampleId, ...]) -> Outcomes:
        raise ConnectionError("the pool is closed")

    together = Together()
    tasks = [asyncio.create_task(together.outcomes(sample, GROUP, broken)) for sample in GROUP]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError] * 4
