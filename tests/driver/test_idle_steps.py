"""Steps that have nothing to learn from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.algorithm import AlgorithmName, AlgorithmSpec, resolve
from longboat_crds.problems import SpecProblem
from longboat_runtime.driver.learning import learning, learning_problem
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.groups import GroupOutcome
from longboat_runtime.rounds import events
from longboat_runtime.rounds.events import DropReason, Learning
from longboat_runtime.trainer.advantages import advantages
from tests.driver.fakes import Crash, Site, make_spec
from tests.driver.runs import history, manifests

DYNAMIC = {"drop_zero_variance": True}


def messages(site: Site) -> set[tuple[str, str]]:
    """Collects the problems that the job reports, by reason and message."""
    publish, reported = site.broker.publish, set[tuple[str, str]]()

    def publish_and_note(status: DriverStatus) -> None:
        if status.problem:
            reported.add((status.problem.reason, status.problem.message))
        publish(status)

    site.broker.publish = publish_and_note
    return reported


async def failing(site: Site, score: float | None) -> SpecProblem:
    driver = site.driver()
    site.rewards.flat = score
    with pytest.raises(SpecProblem) as failed:
        await driver.run()
    return failed.value


@pytest.mark.parametrize("algorithm", [{}, DYNAMIC], ids=["GRPO", "dynamic sampling"])
async def test_equal_rewards_are_reported_with_what_was_seen(tmp_path: Path, algorithm: dict) -> None:
    site = Site(tmp_path, make_spec(steps=2, algorithm=algorithm))
    driver = site.driver()
    reported = messages(site)
    site.rewards.flat = 0.5
    assert await driver.run() is RunOutcome.DONE
    groups = 20 if algorithm else 2
    assert [reason for reason, _ in reported] == ["NoLearningSignal"] * 2
    for step in (1, 2):
        seen = f"all {groups} groups of step {step} had equal rewards: 0.5 everywhere"
        assert any(seen in message for _, message in reported)
    assert [body.learning for body in history(site) if isinstance(body, events.StepCommitted)] == [Learning.IDLE] * 2


@pytest.mark.parametrize("algorithm", [{}, DYNAMIC], ids=["GRPO", "dynamic sampling"])
async def test_a_job_that_never_learns_fails_with_its_last_step_saved_and_exported(
    tmp_path: Path, algorithm: dict
) -> None:
    site = Site(tmp_path, make_spec(steps=9, max_idle_steps=3, algorithm=algorithm, checkpoint={"every_steps": 9}))
    problem = await failing(site, 0.0)
    assert (problem.reason, problem.field, problem.fatal) == ("NoLearningSignal", "spec.rewards", True)
    assert "3 steps in a row" in problem.message
    assert "0 everywhere" in problem.message
    (saved,) = manifests(tmp_path)
    assert saved["ledger"]["step"] == 3
    assert (tmp_path / "export" / "weights").is_file()


async def test_a_new_driver_continues_counting(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=9, max_idle_steps=3, checkpoint={"every_steps": 1}))
    driver = site.driver()
    site.rewards.flat = 0.0
    report = site.broker.publish

    def crash_after_two(status: DriverStatus) -> None:
        report(status)
        if status.checkpoint and status.checkpoint.step == 2:
            raise Crash("the node is gone")

    site.broker.publish = crash_after_two
    with pytest.raises(ExceptionGroup):
        await driver.run()
    await failing(site, 0.0)
    assert manifests(tmp_path)[-1]["ledger"]["idle_steps"] == 3


async def test_no_step_follows_the_one_after_which_a_job_gives_up(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=9, max_idle_steps=2, policy="BoundedAsync", max_staleness=2))
    problem = await failing(site, 0.0)
    assert "2 steps in a row" in problem.message
    assert manifests(tmp_path)[-1]["ledger"]["step"] == 2


async def test_a_failed_export_does_not_hide_why_the_job_failed(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=9, max_idle_steps=2))
    driver = site.driver()
    site.rewards.flat = 0.0

    async def failing_export(*directories: Path) -> None:
        raise OSError("a disk is gone")

    site.trainer.export = failing_export
    with pytest.raises(SpecProblem, match=r"learned nothing in 2 steps.*a disk is gone") as failed:
        await driver.run()
    assert failed.value.reason == "NoLearningSignal"


async def test_a_job_that_has_learned_is_not_failed(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=6, max_idle_steps=1))
    driver = site.driver()
    train = site.trainer.train

    async def flat_from_then_on(request):
        site.rewards.flat = 0.0
        return await train(request)

    site.trainer.train = flat_from_then_on
    assert await driver.run() is RunOutcome.DONE
    ledger = manifests(tmp_path)[-1]["ledger"]
    assert (ledger["learned"], ledger["idle_steps"]) == (True, 5)


async def test_a_step_that_learns_clears_the_report(tmp_path: Path) -> None:
    site = Site(tmp_path, make_spec(steps=4))
    driver = site.driver()
    reported = messages(site)
    site.rewards.flat = 0.0
    train = site.trainer.train

    async def varied_from_then_on(request):
        site.rewards.flat = None
        return await train(request)

    site.trainer.train = varied_from_then_on
    assert await driver.run() is RunOutcome.DONE
    assert {reason for reason, _ in reported} == {"NoLearningSignal"}
    assert site.broker.status.problem is None


@pytest.mark.parametrize("policy", [{}, {"policy": "BoundedAsync", "max_staleness": 1, "algorithm": DYNAMIC}])
async def test_rows_that_are_all_solved_are_told_and_never_fail_the_job(tmp_path: Path, policy: dict) -> None:
    """Rounds that overlap a step don't count as its own."""
    site = Site(tmp_path, make_spec(steps=3, max_idle_steps=1, **policy))
    driver = site.driver()
    site.rewards.flat = 1.0
    assert await driver.run() is RunOutcome.DONE
    assert site.broker.status.problem.reason == "NothingLeftToLearn"
    assert f"All {20 if policy else 2} groups of step 3 are solved" in site.broker.status.problem.message
    assert manifests(tmp_path)[-1]["ledger"]["idle_steps"] == 0


def outcome_of(rewards: list[float]) -> GroupOutcome:
    return GroupOutcome("", rewards, [1] * len(rewards), [score >= 1 for score in rewards], len({*rewards}) == 1)


rewards = st.lists(st.sampled_from([-1.0, 0.0, 0.1, 1 / 3, 1.0]), min_size=2, max_size=6)


@given(st.lists(rewards, min_size=1, max_size=5), st.sampled_from(AlgorithmName))
def test_a_step_is_idle_if_no_advantage_is_left(groups: list[list[float]], name: AlgorithmName) -> None:
    algorithm = resolve(AlgorithmSpec(name=name))
    names = [number for number, group in enumerate(groups) for _ in group]
    flat = [score for group in groups for score in group]
    scores = [outcome_of(group) for group in groups]
    outcome = learning(advantages(flat, names, algorithm), scores)
    if any(len(set(group)) > 1 for group in groups):
        assert outcome is Learning.LEARNS
    elif len(set(flat)) == 1:
        assert outcome is (Learning.SOLVED if flat[0] >= 1 else Learning.IDLE)


def test_what_was_seen_is_said() -> None:
    def seen(groups: list[list[float]], dropped: dict[DropReason, int] | None = None) -> str:
        problem = learning_problem(7, Learning.IDLE, [*map(outcome_of, groups)], dropped or {})
        assert problem is not None
        assert (problem.reason, problem.fatal) == ("NoLearningSignal", False)
        return problem.message

    assert "all 2 groups of step 7 had equal rewards: from 0 to 0.5" in seen([[0.0, 0.0], [0.5, 0.5]])
    assert "maskTruncated leaves these out" in seen([[0.0, 1.0]])
    assert "dropped: 3 for grader_error" in seen([], {DropReason.GRADER_ERROR: 3, DropReason.NOT_FINITE: 0})
    assert "the round had none" in seen([])
    assert learning_problem(7, Learning.LEARNS, [], {}) is None
