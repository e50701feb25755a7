"""What engines feel is added up by round, and told."""

from __future__ import annotations

from pathlib import Path

from longboat_runtime.driver.loads import Loads
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.metrics.record import read_records
from longboat_runtime.rollout.load import Load
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.ledger import Ledger
from longboat_runtime.rounds.measurements import StepTimes
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.view import View
from longboat_runtime.rounds.work import RoundWorks
from longboat_runtime.samples import FinishReason, PromptId, SampleId
from tests.driver.fakes import FakeFleet, FakeStore, Site, make_spec
from tests.driver.runs import history


async def test_loads_belong_to_the_round_in_which_they_were_felt() -> None:
    fleet = FakeFleet(FakeStore())
    loads = Loads(fleet)
    fleet.load = {"a": Load(2, preemptions=100)}
    await loads.begin(1, RoundKind.SHORT)
    fleet.load = {
        "a": Load(2, 3, 1, 50, 4, 2, 0.5, {4: StepTimes(10, 1.0)}),
        "b": Load(2, 1, 0, 30, 5, 0, 0.9, {4: StepTimes(20, 0.5), 6: StepTimes(10, 0.5)}),
    }
    await loads.begin(2, RoundKind.LONG)
    fleet.load = {"c": Load(1, generated_tokens=7)}
    assert await loads.finish(1, RoundWorks(), View(Ledger(1))) == measurements.RoundMeasured(
        1, RoundKind.SHORT, 2, 2, preemptions=4, interrupted=1, generated_tokens=80, running=5, waiting=2, kv_usage=0.9,
        step_times={4: StepTimes(30, 1.5), 6: StepTimes(10, 0.5)},
    )  # fmt: skip
    measured = await loads.finish(2, RoundWorks(), View(Ledger(1)))
    assert measured is not None
    assert (measured.kind, measured.engines, measured.generated_tokens) == (RoundKind.LONG, 1, 7)
    assert await loads.finish(2, RoundWorks(), View(Ledger(1))) is None, "it is told once"
    assert await loads.finish(7, RoundWorks(), View(Ledger(1))) is None


async def test_a_round_whose_engines_have_changed_says_nothing_of_a_shape() -> None:
    fleet, works = FakeFleet(FakeStore()), RoundWorks()
    loads = Loads(fleet)
    bodies = (
        events.RoundOpened(1, RoundKind.SHORT, 0),
        events.Launched(1, PromptId(0, 0), 0, 1),
        events.Generated(SampleId(0, 0, 0, 0), 1, 5, FinishReason.STOP, (), "a"),
    )
    for number, body in enumerate(bodies, 1):
        works.fold(events.Event(number, 1, float(number), body))
    for sizes in ((1, 1), (1, 2)):
        await loads.begin(1, RoundKind.SHORT)
        fleet.load = {str(number): Load(size) for number, size in enumerate(sizes)}
        measured = await loads.finish(1, works, View(Ledger(1)))
        assert measured is not None
        assert (measured.work is None) is (len({*sizes}) > 1)


async def test_a_round_that_engines_say_nothing_of_is_not_measured() -> None:
    loads = Loads(FakeFleet(FakeStore()))
    await loads.begin(1, RoundKind.SHORT)
    assert await loads.finish(1, RoundWorks(), View(Ledger(1))) is None


async def test_every_step_tells_what_its_engines_felt(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=3))
    driver = site.driver()
    site.fleet.load = {"engine-0": Load(1, 2, 0, 50, 4, 2, 0.5, {4: StepTimes(10, 1.0)})}
    assert await driver.run() is RunOutcome.DONE
    measured = [body for body in history(site) if isinstance(body, measurements.RoundMeasured)]
    assert [body.round for body in measured] == [1, 2, 3]
    assert all(body.preemptions >= 2 for body in measured)
    records = read_records(tmp_path)[1:]
    assert [record.metrics["rollout/preemptions"] for record in records] == [body.preemptions for body in measured]
    rounds = site.broker.status.training.recent_rounds
    assert [(one.tensor_parallel, one.preemptions, one.kv_usage) for one in rounds] == [
        (1, body.preemptions, "0.50") for body in measured
    ]
