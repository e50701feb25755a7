"""Which responses solve their rows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import SpecProblem
from longboat_crds.reward_kinds import RewardKind, RewardRole
from longboat_crds.rewards import RewardSpec, SandboxSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.reward.combine import combine
from longboat_runtime.reward.tasks import TaskRewards
from longboat_runtime.rounds import events
from longboat_runtime.rounds.records import SampleRecord, equal_scores
from longboat_runtime.samples import Grade, GradeKind, SampleId


def function(name: str, **fields: object) -> RewardSpec:
    return RewardSpec.model_validate({"name": name, "function": "m:f", **fields})


def grade(**parts: float | None) -> Grade:
    kind = GradeKind.TIMEOUT if None in parts.values() else GradeKind.SCORED
    return Grade(kind, sum(score or 0.0 for score in parts.values()), 0.0, parts=parts)


TASK, SHAPING = RewardRole.TASK, RewardRole.SHAPING
EPISODE = RewardSpec(name="episode", kind=RewardKind.EPISODE)


@pytest.mark.parametrize(
    ("rewards", "names"),
    [
        ([function("a")], ["a"]),
        ([function("a"), function("b")], []),
        ([function("a"), function("b", role=SHAPING)], ["a"]),
        ([function("a", role=TASK), function("b")], ["a"]),
        ([function("a", domains=["x"]), function("b", domains=["y"])], ["a", "b"]),
        ([function("a", domains=["x"]), function("b", domains=["x", "y"])], []),
        ([function("a", role=TASK, domains=["x"]), function("b", role=TASK, domains=["y"]), function("c")], ["a", "b"]),
        ([function("a", role=SHAPING)], []),
        ([function("a"), EPISODE], ["episode"]),
        ([EPISODE.model_copy(update={"role": SHAPING}), function("a")], ["a"]),
        ([function("a", role=TASK, domains=["x"]), EPISODE.model_copy(update={"domains": ["y"]})], ["a", "episode"]),
    ],
)
def test_the_role_tells_which_reward_is_the_task(rewards: list[RewardSpec], names: list[str]) -> None:
    assert TaskRewards(rewards).names == names


@pytest.mark.parametrize("domains", [[], ["x", "y"]])
def test_two_tasks_of_the_same_rows_are_refused(domains: list[str]) -> None:
    rewards = [function("a", role=TASK, domains=["x"]), function("b", role=TASK, domains=domains)]
    with pytest.raises(SpecProblem, match=r"rewards\[1\].role.*a and b both have role Task.*Shaping"):
        TaskRewards(rewards)


def test_what_tells_nothing_declares_nothing() -> None:
    with pytest.raises(SpecProblem, match=r"rewards\[1\].solvedAt.*Another reward has role Task"):
        TaskRewards([function("a", role=TASK), function("b", solvedAt=1.0)])
    with pytest.raises(SpecProblem, match=r"rewards\[1\].canary.*Another reward has role Task"):
        TaskRewards([function("a", role=TASK), function("b", canary={"right": "1", "wrong": "2"})])
    with pytest.raises(SpecProblem, match=r"rewards\[1\].solvedAt.*weighted sum tells"):
        TaskRewards([function("a"), function("b", solvedAt=1.0)])


def test_a_shaping_reward_has_no_score_of_a_solved_row() -> None:
    with pytest.raises(ValueError, match="leave solvedAt out, or set role to Task"):
        function("a", role=SHAPING, solvedAt=1.0)
    assert function("a", solvedAt=2.0).solved_at == 2.0


def test_shaping_changes_nothing_of_what_is_solved() -> None:
    tasks = TaskRewards([function("right", weight=0.7), function("length", role=SHAPING)])
    assert tasks.solved(grade(right=1.0, length=-5.0)) is True
    assert tasks.solved(grade(right=0.0, length=5.0)) is False
    assert tasks.solved(grade(length=1.0)) is None


def test_a_task_that_timed_out_is_not_solved() -> None:
    tasks = TaskRewards([function("right", timeoutScore=1.0), function("length", role=SHAPING)])
    assert tasks.solved(grade(right=None, length=0.0)) is False
    assert tasks.solved(grade(right=1.0, length=None)) is True


def test_grades_without_a_score_tell_nothing() -> None:
    tasks = TaskRewards([function("right")])
    assert tasks.solved(Grade(GradeKind.GRADER_ERROR, 0.0, 0.0)) is None
    assert tasks.solved(Grade(GradeKind.NOT_APPLICABLE, 0.0, 0.0)) is None


@pytest.mark.parametrize(
    "reward",
    [
        function("r", solvedAt=1.0),
        RewardSpec(name="r", kind=RewardKind.REASONING_GYM),
        RewardSpec(name="r", kind=RewardKind.SANDBOX, sandbox=SandboxSpec()),
    ],
)
def test_declared_scores_stay_whatever_is_scored(reward: RewardSpec) -> None:
    tasks = TaskRewards([reward])
    tasks.observe(grade(r=3.0))
    assert tasks.solved(grade(r=1.0)) is True


def test_a_function_that_exceeds_the_full_score_withholds_accuracy_until_it_declares_its_own() -> None:
    tasks = TaskRewards([function("r")])
    tasks.observe(grade(r=1.0 + 1e-9))
    assert tasks.solved(grade(r=1.0 - 1e-9)) is True
    tasks.observe(grade(r=1.5))
    assert tasks.solved(grade(r=1.5)) is None
    again = TaskRewards([function("r")])
    again.restore(tasks.to_snapshot())
    assert again.solved(grade(r=1.0)) is None
    declared = TaskRewards([function("r", solvedAt=1.5)])
    declared.restore(tasks.to_snapshot())
    assert (declared.solved(grade(r=1.5)), declared.solved(grade(r=1.0))) == (True, False)


def test_the_sum_of_several_rewards_that_exceeds_the_full_score_withholds_accuracy() -> None:
    tasks = TaskRewards([function("right"), function("format")])
    assert tasks.solved(grade(right=1.0, format=0.0)) is True
    assert tasks.solved(grade(right=1.0, format=None)) is False
    tasks.observe(grade(right=1.0, format=1.0))
    assert tasks.solved(grade(right=1.0, format=0.0)) is None
    assert tasks.shares("critic/solved", [grade(right=1.0, format=0.0)]) == {}


def test_shares_are_by_reward() -> None:
    tasks = TaskRewards([function("a", domains=["x"]), function("b", domains=["y"])])
    shares = tasks.shares("critic/solved", [grade(a=1.0), grade(a=0.0), grade(b=1.0), grade()])
    assert shares == {"critic/solved/a/mean": 0.5, "critic/solved/b/mean": 1.0}


scores = st.integers(-3, 3).map(lambda tenths: tenths / 10)


@given(st.lists(st.tuples(scores, scores, scores), min_size=1, max_size=8), st.integers(1, 9))
def test_weights_that_do_not_add_up_exactly_change_nothing(parts: list[tuple[float, ...]], tenths: int) -> None:
    """Sums in fractions tell which groups are worth the same."""
    weights = [tenths / 10, 0.1, 0.3]
    rewards = [function(name, weight=weight) for name, weight in zip("abc", weights, strict=True)]
    exact, records = [], []
    for index, values in enumerate(parts):
        outcomes = {
            reward.name: FunctionOutcome(OutcomeKind.SCORED, value)
            for reward, value in zip(rewards, values, strict=True)
        }
        combined = combine(rewards, outcomes)
        exact.append(
            sum(Fraction(str(weight)) * Fraction(str(value)) for weight, value in zip(weights, values, strict=True))
        )
        records.append(SampleRecord(index, kind=combined.kind, score=combined.score, parts=combined.parts))
    assert equal_scores(records) == (len(set(exact)) == 1)
    # Declared, since a sum above 1 tells nothing; here none is.
    assert [TaskRewards(rewards).solved(record) for record in records] == [total >= 1 for total in exact]


def record(task: str | None = None, score: float = 0.0, **parts: float | None) -> SampleRecord:
    return SampleRecord(0, kind=GradeKind.SCORED, score=score, parts=parts, task=task)


@pytest.mark.parametrize(
    ("samples", "equal"),
    [
        ([record("t", 1.0, t=1.0, s=0.0), record("t", 0.5, t=1.0, s=-0.5)], True),
        ([record("t", 0.5, t=1.0, s=-0.5), record("t", 0.5, t=0.0, s=0.5)], False),
        ([record("t", t=0.1 + 0.2), record("t", t=0.3)], True),
        ([record("t", t=1e9), record("t", t=1e9 + 1)], True),
        ([record("t", t=None), record("t", t=None)], True),
        ([record("t", t=None), record("t", t=0.0)], False),
        ([record("t", 1.0, t=1.0), record(None, 1.0, s=1.0)], True),
        ([record("t", 1.0, t=1.0), record(None, 0.0, s=0.0)], False),
        ([record(None, 0.0, s=None), record(None, 0.0, s=0.0)], False),
        ([], False),
    ],
)
def test_groups_are_worth_the_same_by_their_task(samples: list[SampleRecord], equal: bool) -> None:
    assert equal_scores(samples) is equal


def test_events_without_a_task_are_written_as_before() -> None:
    from pydantic import TypeAdapter

    adapter = TypeAdapter(events.Graded)
    graded = events.Graded(SampleId(0, 0, 0, 0), GradeKind.SCORED, 1.0, 0.1)
    assert "task" not in adapter.dump_python(graded, mode="json")
