"""Several functions make one grade, and no kind of failure hides in a number."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_runtime.reward.combine import applicable, batch_rewards, combine, unscored
from longboat_runtime.reward.slots import AHEAD_SECONDS, MOST_AHEAD, Slots, choose, reward_nodes
from longboat_runtime.samples import Grade, GradeKind

A = RewardSpec(name="a", function="m:f", weight=0.5)
B = RewardSpec(name="b", function="m:f", weight=2.0, domains=["math"])


def outcome(kind: OutcomeKind, score: float = 0.0, message: str = "") -> FunctionOutcome:
    return FunctionOutcome(kind, score, 1.0, message)


def test_scores_are_summed_by_weight() -> None:
    grade = combine([A, B], {"a": outcome(OutcomeKind.SCORED, 1.0), "b": outcome(OutcomeKind.SCORED, 0.25)})
    assert (grade.kind, grade.score, grade.seconds) == (GradeKind.SCORED, 1.0, 2.0)
    assert grade.parts == {"a": 1.0, "b": 0.25}


# A grade whose graders were lost is asked for again, or ends as a grader error (`attempts`).
FINAL = [kind for kind in OutcomeKind if kind is not OutcomeKind.LOST]


@pytest.mark.parametrize("kinds", product(FINAL, repeat=2), ids="-".join)
def test_the_worst_kind_counts_and_only_scores_are_summed(kinds: tuple[OutcomeKind, OutcomeKind]) -> None:
    grade = combine([A, B], {"a": outcome(kinds[0], 1.0), "b": outcome(kinds[1], 1.0)})
    order = ["grader_error", "timeout", "wrong_format", "scored", "not_applicable"]
    counted = [kind.value for kind in kinds if kind is not OutcomeKind.NOT_APPLICABLE] or ["not_applicable"]
    assert grade.kind.value == min(counted, key=order.index)
    scored = {n for n, k in zip("ab", kinds, strict=True) if k.value in ("scored", "wrong_format")}
    failed = grade.kind is GradeKind.GRADER_ERROR
    assert grade.score == (0.0 if failed else sum({"a": 0.5, "b": 2.0}[name] for name in scored))
    assert {name for name, score in grade.parts.items() if score is not None} == scored
    assert {name for name, score in grade.parts.items() if score is None} == {
        n for n, k in zip("ab", kinds, strict=True) if k is OutcomeKind.TIMEOUT
    }


@pytest.mark.parametrize("score", [1e308, -1e308, 2e30 / B.weight])
def test_a_score_with_which_nothing_can_be_computed_is_a_grader_error(score: float) -> None:
    grade = combine([A, B], {"a": outcome(OutcomeKind.SCORED, 1.0), "b": outcome(OutcomeKind.SCORED, score)})
    assert (grade.kind, grade.score, grade.parts) == (GradeKind.GRADER_ERROR, 0.0, {})
    assert grade.message.startswith("b: ")
    assert grade.message.endswith(": score times weight exceeds 1e+30 in magnitude")
    largest = outcome(OutcomeKind.SCORED, 1e30 / B.weight)
    assert combine([A, B], {"a": outcome(OutcomeKind.SCORED, 1.0), "b": largest}).kind is GradeKind.SCORED


def test_functions_that_do_not_apply_are_left_out() -> None:
    grade = combine([A, B], {"a": outcome(OutcomeKind.SCORED, 1.0), "b": outcome(OutcomeKind.NOT_APPLICABLE)})
    assert (grade.kind, grade.score) == (GradeKind.SCORED, 0.5)


def test_a_sample_to_which_no_function_applies_has_no_reward() -> None:
    nothing = {"a": outcome(OutcomeKind.NOT_APPLICABLE), "b": outcome(OutcomeKind.NOT_APPLICABLE)}
    grade = combine([A, B], nothing)
    assert (grade.kind, grade.message) == (GradeKind.NOT_APPLICABLE, "")
    other = combine([A, B], {"a": outcome(OutcomeKind.SCORED, 1.0), "b": outcome(OutcomeKind.NOT_APPLICABLE)})
    assert batch_rewards([A, B], [grade, other]) == [None, 0.5]


def test_messages_name_their_function() -> None:
    grade = combine(
        [A, B], {"a": outcome(OutcomeKind.SCORED), "b": outcome(OutcomeKind.TIMEOUT, 0.0, "killed after 3 s")}
    )
    assert (grade.kind, grade.message) == (GradeKind.TIMEOUT, "b: killed after 3 s")


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[RewardSpec], list[Grade]]:
    """Two functions of any weight, with and without `timeoutScore`, and what they made of some samples."""
    numbers, kinds = st.floats(-100, 100), st.sampled_from([OutcomeKind.SCORED, OutcomeKind.TIMEOUT])
    rewards = [
        RewardSpec(name=name, function="m:f", weight=draw(numbers), timeout_score=draw(st.none() | numbers))
        for name in "ab"
    ]
    outcomes = st.builds(outcome, kinds, numbers)
    grades = draw(st.lists(st.builds(lambda a, b: combine(rewards, {"a": a, "b": b}), outcomes, outcomes)))
    return rewards, grades


@given(batches(), st.randoms())
def test_a_timeout_is_worth_its_constant_or_the_least_of_the_batch_and_the_other_parts_count(
    batch: tuple[list[RewardSpec], list[Grade]], random: Random
) -> None:
    rewards, grades = batch
    found = batch_rewards(rewards, grades)
    for grade, total in zip(grades, found, strict=True):
        expected = 0.0
        for reward in rewards:
            score = grade.parts[reward.name]
            given_ = [reward.weight * part for one in grades if (part := one.parts[reward.name]) is not None]
            if score is not None:
                expected += reward.weight * score
            elif reward.timeout_score is not None:
                expected += reward.weight * reward.timeout_score
            else:
                expected += min([0.0, *given_])
        assert total == pytest.approx(expected, abs=1e-9)
    order = random.sample(range(len(grades)), len(grades))
    assert batch_rewards(rewards, [grades[i] for i in order]) == [found[i] for i in order]


def test_a_timeout_is_no_way_out_where_wrong_answers_cost() -> None:
    wrong, late = (combine([A], {"a": outcome(kind, -1.0)}) for kind in (OutcomeKind.SCORED, OutcomeKind.TIMEOUT))
    assert batch_rewards([A], [wrong, late]) == [-0.5, -0.5]
    kind = A.model_copy(update={"timeout_score": -3.0})
    scored = combine([kind], {"a": outcome(OutcomeKind.TIMEOUT)})
    assert batch_rewards([kind], [wrong, scored]) == [-0.5, -1.5]


@given(batches(), st.integers(0, 8))
def test_samples_without_unscored_timeouts_have_the_rewards_of_any_batch(
    batch: tuple[list[RewardSpec], list[Grade]], count: int
) -> None:
    rewards, grades = batch
    part = grades[:count]
    if not any(grade.parts.get(name, 0.0) is None for grade in part for name in unscored(rewards)):
        assert batch_rewards(rewards, part) == batch_rewards(rewards, grades)[:count]


def test_domains_select_functions() -> None:
    assert applicable([A, B], "math") == [A, B]
    assert applicable([A, B], "code") == [A]
    grade = combine([], {})
    assert grade.kind is GradeKind.GRADER_ERROR
    assert "no reward function applies" in grade.message


def worker(node: str, at_once: int, share: float, seconds: float | None) -> Slots:
    one = Slots(node, at_once, seconds=seconds)
    one.running = round(one.slots * share)
    return one


times = st.none() | st.floats(0, 1e4)
workers = st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1), times), max_size=6).map(
    lambda drawn: [worker(f"n{i}", *one) for i, one in enumerate(drawn)]
)


@given(st.integers(1, 256), times)
def test_a_worker_has_so_much_work_ahead_that_its_processes_are_never_idle(at_once: int, seconds: float | None) -> None:
    slots = Slots("n0", at_once, seconds=seconds).slots
    assert at_once <= slots <= MOST_AHEAD * at_once
    if seconds is not None and slots < MOST_AHEAD * at_once:
        # Rounded to whole requests; where that is half of one, rounding of the quotient may add to it.
        assert slots - at_once == pytest.approx(at_once * AHEAD_SECONDS / seconds, abs=0.5 + 1e-9)


@given(st.integers(1, 256), st.none() | st.floats(300, 1e4))
def test_nothing_waits_at_a_worker_whose_grades_are_slow_or_unknown(at_once: int, seconds: float | None) -> None:
    assert Slots("n0", at_once, seconds=seconds).slots == at_once


def test_a_free_worker_gets_what_grades_that_hang_elsewhere_would_hold_up() -> None:
    """Two workers of one process each, and eight requests: those that are left wait for whoever is free first."""
    hanging, free = Slots("n0", 1, seconds=30.0), Slots("n1", 1, seconds=30.0)
    for _ in range(8):
        if (chosen := choose([hanging, free], ())) is not None:
            chosen.running += 1
    assert (hanging.running, free.running) == (1, 1)
    free.running = 0
    assert choose([hanging, free], ()) is free


def test_grading_times_are_learned() -> None:
    one = Slots("n0", 1)
    for _ in range(100):
        one.learn(0.003)
    assert one.slots == 101
    for _ in range(100):
        one.learn(10.0)
    assert one.slots == 1


@given(workers, st.sets(st.sampled_from([f"n{i}" for i in range(6)])))
def test_a_grade_goes_to_a_free_worker_and_a_retry_to_another(given_workers: list[Slots], tried: set[str]) -> None:
    chosen = choose(given_workers, tried)
    untried = [worker for worker in given_workers if worker.node not in tried]
    candidates = untried or given_workers
    if chosen is None:
        assert all(worker.running >= worker.slots for worker in candidates)
        return
    assert chosen in candidates
    assert chosen.running / chosen.slots == pytest.approx(min(worker.running / worker.slots for worker in candidates))


def test_the_nodes_of_a_pool_are_the_living_ones_with_its_resource() -> None:
    nodes = [
        {"NodeID": "a", "Alive": True, "Resources": {"longboat-reward-code": 4.0}},
        {"NodeID": "b", "Alive": False, "Resources": {"longboat-reward-code": 4.0}},
        {"NodeID": "d", "Alive": True, "Resources": {"longboat-reward-math": 2.0, "longboat-reward-code": 1.0}},
        {"NodeID": "c", "Alive": True, "Resources": {"longboat-rollout": 1.0}},
    ]
    assert reward_nodes(nodes, ["code", "math", "gone"]) == {"code": {"a": 4, "d": 1}, "math": {"d": 2}, "gone": {}}
