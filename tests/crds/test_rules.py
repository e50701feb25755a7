"""Rules between fields, as pydantic enforces them. The API server's side of the same rules: e2e/tests/api."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longboat_crds.algorithm import (
    AdvantageBaseline,
    AdvantageScale,
    AlgorithmName,
    AlgorithmSpec,
    ClipAgainst,
    RatioBounds,
    resolve,
    resolve_loss,
)
from longboat_crds.base import JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH, JOB_NAME_MAX_LENGTH, POOL_NAME_MAX_LENGTH
from longboat_crds.expressions import Expression, both, constant, either, equals, field, negation, present
from longboat_crds.load import ApiError, load_job
from longboat_crds.objects import RLJob
from longboat_crds.pools import MAX_POOL_REPLICAS, MAX_POOLS
from longboat_crds.rounds import OFF_POLICY, RoundPolicyName
from longboat_crds.rules import FieldError, Rule
from longboat_crds.status import MAX_PODS
from longboat_crds.yaml_text import dump
from tests.crds.manifests import changed
from tests.crds.rule_cases import CASES, EPISODE, domains, environments, pools, reward_cpu, sandboxed


def refused_at(changes: dict[str, Any]) -> str | None:
    """Path of the first refusal; None: it is accepted."""
    try:
        load_job(dump(changed(changes)))
    except ApiError as error:
        return error.problems[0].partition(": ")[0]
    return None


@pytest.mark.parametrize(("changes", "path"), CASES)
def test_rules(changes: dict[str, Any], path: str | None) -> None:
    assert refused_at(changes) == path


def test_the_longest_name_leaves_room_for_every_derived_one() -> None:
    longest = ("-trainer-4095-a99", "-reward-" + "p" * POOL_NAME_MAX_LENGTH + f"-{MAX_POOL_REPLICAS - 1}-a99")
    assert JOB_NAME_MAX_LENGTH + max(map(len, longest)) == 63
    assert JOB_AND_ENVIRONMENT_POOL_MAX_LENGTH + len(f"-environment--{MAX_POOL_REPLICAS - 1}-a99") == 63
    assert MAX_POOLS * MAX_POOL_REPLICAS <= MAX_PODS, "every pod has a record in the status"


def test_a_pool_that_is_not_there_is_named_with_the_nearest_and_its_reward() -> None:
    rewards = [
        {"name": name, "function": "rewards:exact", "pool": pool} for name, pool in (("a", "code"), ("b", "mth"))
    ]
    body = changed({"spec.rewards": rewards, "spec.rewardPools": [{"name": "code"}, {"name": "math"}]})
    with pytest.raises(ApiError) as caught:
        load_job(dump(body))
    (problem,) = caught.value.problems
    assert problem == "spec.rewards: reward b names pool 'mth', which is not in rewardPools; did you mean math?"


@pytest.mark.parametrize(
    ("changes", "field", "cure"),
    [
        (
            reward_cpu("199m"),
            "spec.rewardCpu.total",
            "199m is less than what rewardPools need at least, 200m (the sum of cpu.min, or 100m a pod): raise it, or lower these",
        ),
        (
            pools("code", "math", one="code", two="math", three=None),
            "spec.rewards",
            "reward three names no pool, which it has to with several rewardPools: set its pool to one of code, math",
        ),
        (
            environments({"pool": "gmes"}, pools=[{"name": "games"}]),
            "spec.environments",
            "environment e0 names pool 'gmes', which is not in environmentPools; did you mean games?",
        ),
        (
            environments({"pool": "games"}, pools=[{"name": "games"}, {"name": "tools"}]),
            "spec.environmentPools",
            "no environment names pool tools: remove it, or set the pool of one of environments to it",
        ),
        (
            domains(["a"], ["b", "a"]),
            "spec.environments",
            "environments e0 and e1 both play rows of domain a: give them domains that don't overlap",
        ),
        (
            domains(["a"], ["b"], rewards=[EPISODE | {"domains": ["a"]}]),
            "spec.rewards",
            "no reward is for the domains of environment e1: add one, such as {name: episode, kind: Episode}",
        ),
        (
            {"spec.rewards": [sandboxed(format="LCB")]},
            "spec.rewards[0].sandbox.format",
            "must be 'Auto', 'PrimeCode', 'APPS', 'LiveCodeBench', 'HumanEval' or 'Pytest', not 'LCB'",
        ),
    ],
)
def test_what_is_wrong_with_rewards_and_environments_is_told_with_its_cure(
    changes: dict[str, Any], field: str, cure: str
) -> None:
    with pytest.raises(ApiError) as caught:
        load_job(dump(changed(changes)))
    assert caught.value.problems == [f"{field}: {cure}"]


@given(
    name=st.sampled_from(AlgorithmName),
    group_size=st.integers(1, 4),
    baseline=st.none() | st.sampled_from(AdvantageBaseline),
    scale=st.none() | st.sampled_from(AdvantageScale),
    drop=st.none() | st.booleans(),
)
def test_a_group_of_one_and_mixed_advantages_are_refused_exactly_where_the_resolved_knobs_say_so(
    name: AlgorithmName,
    group_size: int,
    baseline: AdvantageBaseline | None,
    scale: AdvantageScale | None,
    drop: bool | None,
) -> None:
    spec = AlgorithmSpec(
        name=name,
        group_size=group_size,
        advantage_baseline=baseline,
        advantage_scale=scale,
        drop_zero_variance=drop,
    )
    resolved = resolve(spec)
    needs_group = (
        resolved.advantage_baseline is not AdvantageBaseline.BATCH_MEAN
        or resolved.advantage_scale is AdvantageScale.GROUP_STD
        or resolved.drop_zero_variance
    )
    mixed = (resolved.advantage_baseline, resolved.advantage_scale) == (
        AdvantageBaseline.BATCH_MEAN,
        AdvantageScale.GROUP_STD,
    )
    body = changed({"spec.algorithm": spec.to_json(), "spec.trainer.minibatches": 2})
    if needs_group and group_size == 1:
        with pytest.raises(ValidationError, match="a group of one has no mean"):
            RLJob.model_validate(body)
    elif mixed:
        with pytest.raises(ValidationError, match="GroupStd divides by the deviation within a group"):
            RLJob.model_validate(body)
    else:
        RLJob.model_validate(body)


@given(
    name=st.sampled_from([AlgorithmName.GRPO, AlgorithmName.GSPO, AlgorithmName.CISPO]),
    clips=st.sampled_from([(None, None), (0.1, None), (None, 0.1), (0.1, 0.1)]),
    policy=st.sampled_from(RoundPolicyName),
    minibatches=st.integers(1, 2),
    against=st.none() | st.sampled_from(ClipAgainst),
    cap=st.none() | st.floats(0, 3),
    mask=st.none() | st.just(RatioBounds(low=0.5, high=2.0)),
    limit=st.none() | st.just(3.0),
)
def test_losses_are_refused_exactly_where_a_knob_would_not_act_or_nothing_holds_old_tokens(
    name: AlgorithmName,
    clips: tuple[float | None, float | None],
    policy: RoundPolicyName,
    minibatches: int,
    against: ClipAgainst | None,
    cap: float | None,
    mask: RatioBounds | None,
    limit: float | None,
) -> None:
    spec = AlgorithmSpec(
        name=name,
        clip_low=clips[0],
        clip_high=clips[1],
        clip_against=against,
        importance_cap=cap,
        importance_mask=mask,
        dual_clip=limit,
    )
    stale = policy in OFF_POLICY
    resolved = resolve_loss(spec, off_policy=stale)
    ratio_moves = minibatches > 1 or resolved.clip_against is ClipAgainst.BEHAVIOUR
    refused = (
        (cap and resolved.importance_cap != cap)
        or (cap == 0 and resolved.clip_against is ClipAgainst.BEHAVIOUR)
        or (cap is not None and mask is not None)
        or (stale and not ratio_moves and mask is None)
        or (stale and ratio_moves and resolved.clip_against is ClipAgainst.PROXIMAL and cap == 0)
        or (limit is not None and not ratio_moves)
        or (name is not AlgorithmName.GRPO and not ratio_moves)
        or (name is AlgorithmName.GSPO and resolved.clip_against is ClipAgainst.BEHAVIOUR and None in clips)
        or (name is AlgorithmName.CISPO and (clips[0] is not None or limit is not None))
    )
    changes = {
        "spec.algorithm": spec.to_json(),
        "spec.rounds.policy": policy.value,
        "spec.trainer.minibatches": minibatches,
    }
    assert (refused_at(changes) is not None) == bool(refused)


def test_an_expression_is_cel_and_python() -> None:
    expression = either(negation(present("a.b")), both(equals(field("a.b"), constant("it's"))))
    assert expression.cel == r"(!(has(self.a) && has(self.a.b)) || ((self.a.b == 'it\'s')))"
    assert [expression.evaluate({"self": s}) for s in ({}, {"a": {}}, {"a": {"b": "it's"}}, {"a": {"b": ""}})] == [
        True,
        True,
        True,
        False,
    ]


def test_a_rule_sheds_outer_parentheses_only() -> None:
    yes = constant(True)

    def text(cel: str) -> str:
        return str(Rule(Expression(cel, yes.evaluate), "m", "f", FieldError.INVALID).to_cel()["rule"])

    assert text("((a) && (b))") == "(a) && (b)"
    assert text("(a) && (b)") == "(a) && (b)"
