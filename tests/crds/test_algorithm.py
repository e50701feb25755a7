"""Presets stand for the knobs of their papers; a knob that is given wins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.algorithm import (
    PRESETS,
    AdvantageBaseline,
    AdvantageScale,
    Aggregation,
    AlgorithmName,
    AlgorithmSpec,
    ClipAgainst,
    RatioBounds,
    resolve,
    resolve_loss,
)

KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "advantage_baseline": st.sampled_from(AdvantageBaseline),
        "advantage_scale": st.sampled_from(AdvantageScale),
        "aggregation": st.sampled_from(Aggregation),
        "clip_low": st.floats(0.01, 0.9),
        "clip_high": st.floats(0.01, 9.0),
        "drop_zero_variance": st.booleans(),
        "mask_truncated": st.booleans(),
    },
)


@pytest.mark.parametrize(
    ("name", "baseline", "scale", "aggregation", "loss", "clips", "filters"),
    [
        ("GRPO", "GroupMean", "GroupStd", "SequenceMean", "PPO", (0.2, 0.2), False),
        ("DrGRPO", "GroupMean", "None", "SequenceSum", "PPO", (0.2, 0.2), False),
        ("RLOO", "LeaveOneOut", "None", "SequenceSum", "PPO", (0.2, 0.2), False),
        ("ReinforcePlusPlus", "BatchMean", "BatchStd", "TokenMean", "PPO", (0.2, 0.2), False),
        ("DAPO", "GroupMean", "GroupStd", "TokenMean", "PPO", (0.2, 0.28), True),
        ("GSPO", "GroupMean", "GroupStd", "SequenceMean", "GSPO", (0.0003, 0.0004), False),
        ("CISPO", "GroupMean", "GroupStd", "TokenMean", "CISPO", (1.0, 4.0), False),
    ],
)
def test_presets(
    name: str, baseline: str, scale: str, aggregation: str, loss: str, clips: tuple[float, float], filters: bool
) -> None:
    resolved = resolve(AlgorithmSpec(name=AlgorithmName(name)))
    assert (resolved.advantage_baseline, resolved.advantage_scale, resolved.aggregation) == (
        baseline,
        scale,
        aggregation,
    )
    assert (resolved.policy_loss, (resolved.clip_low, resolved.clip_high)) == (loss, clips)
    assert (resolved.drop_zero_variance, resolved.mask_truncated) == (filters, filters)


def test_every_name_has_a_preset() -> None:
    assert set(PRESETS) == set(AlgorithmName)


@given(name=st.sampled_from(AlgorithmName), knobs=KNOBS)
def test_a_given_knob_wins_and_an_unset_one_is_the_presets(name: AlgorithmName, knobs: dict[str, object]) -> None:
    resolved = resolve(AlgorithmSpec.model_validate({"name": name, "group_size": 4, **knobs}))
    for knob in (
        "advantage_baseline",
        "advantage_scale",
        "aggregation",
        "clip_low",
        "clip_high",
        "drop_zero_variance",
        "mask_truncated",
    ):
        assert getattr(resolved, knob) == knobs.get(knob, getattr(PRESETS[name], knob))


def test_policies_with_older_weights_clip_against_the_behaviour_policy_unless_told_otherwise() -> None:
    assert resolve_loss(AlgorithmSpec(), off_policy=False).clip_against is ClipAgainst.PROXIMAL
    assert resolve_loss(AlgorithmSpec(), off_policy=True).clip_against is ClipAgainst.BEHAVIOUR
    assert resolve_loss(AlgorithmSpec(), off_policy=True).importance_cap is None
    proximal = resolve_loss(AlgorithmSpec(clip_against=ClipAgainst.PROXIMAL), off_policy=True)
    assert (proximal.clip_against, proximal.importance_cap) == (ClipAgainst.PROXIMAL, 2.0)


def test_a_mask_takes_the_place_of_the_cap() -> None:
    masked = resolve_loss(AlgorithmSpec(importance_mask=RatioBounds(low=0.5, high=5.0)), off_policy=False)
    assert masked.importance_cap == 5.0


def test_importance_cap_zero_is_off() -> None:
    assert resolve_loss(AlgorithmSpec(importance_cap=0.0), off_policy=False).importance_cap is None
    assert resolve_loss(AlgorithmSpec(), off_policy=False).importance_cap == 2.0
