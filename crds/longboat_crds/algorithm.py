"""`spec.algorithm`: the estimator of the policy gradient, and what its presets stand for. Pure."""

from dataclasses import dataclass, fields
from enum import StrEnum

from pydantic import Field

from longboat_crds.base import READER_DEFAULT, ApiModel

# Largest truncated importance weight: the trainer's probability of a token over the engine's (https://fengyao.notion.site/off-policy-rl).
IMPORTANCE_CAP = 2.0


class AlgorithmName(StrEnum):
    """A preset of the knobs below; a knob that is given wins over the preset."""

    GRPO = "GRPO"
    DR_GRPO = "DrGRPO"
    RLOO = "RLOO"
    REINFORCE_PLUS_PLUS = "ReinforcePlusPlus"
    DAPO = "DAPO"
    GSPO = "GSPO"
    CISPO = "CISPO"


class PolicyLoss(StrEnum):
    """What becomes of the probability ratio of new to old policy, which the name chooses.

    PPO: each token's ratio is clipped. GSPO: the geometric mean of a response's ratios is, for all its tokens alike. CISPO: each token's
    ratio, up to a cap, is the constant weight of its log-probability.
    """

    PPO = "PPO"
    GSPO = "GSPO"
    CISPO = "CISPO"


class AdvantageBaseline(StrEnum):
    """What is subtracted from a sample's reward: the mean of its group, of the rest of its group, or of the step."""

    GROUP_MEAN = "GroupMean"
    LEAVE_ONE_OUT = "LeaveOneOut"
    BATCH_MEAN = "BatchMean"


class AdvantageScale(StrEnum):
    """What the centred reward is divided by: nothing, or the standard deviation within its group or over the step."""

    NONE = "None"
    GROUP_STD = "GroupStd"
    BATCH_STD = "BatchStd"


class Aggregation(StrEnum):
    """How token losses become one number. Denominators are constants of the step, never of the micro-batch.

    TokenMean: mean over all tokens of the step, x the samples that count / samples of a full step. SequenceMean: mean over each sample's
    tokens, then / samples of a full step. SequenceSum: sum over all tokens / (samples of a full step x rollout.sampling.maxTokens).
    """

    TOKEN_MEAN = "TokenMean"
    SEQUENCE_MEAN = "SequenceMean"
    SEQUENCE_SUM = "SequenceSum"


class ClipAgainst(StrEnum):
    """The old policy of the clipped probability ratio, new / old.

    Proximal: the weights at the beginning of the step; each token's loss is weighted by proximal / behaviour (importanceCap), where
    the behaviour policy is the one that drew the token (decoupled PPO). With one minibatch the proximal policy is the model itself
    and nothing is ever clipped. Behaviour: the policy that drew the token, by the engine's log-probability (PPO). It clips with one
    minibatch too, and needs no importance weight.
    """

    PROXIMAL = "Proximal"
    BEHAVIOUR = "Behaviour"


class RatioBounds(ApiModel):
    """Lower and upper bound of a ratio of probabilities."""

    low: float = Field(gt=0.0, lt=1.0, description="Smallest ratio that is kept.")
    high: float = Field(gt=1.0, le=1000.0, description="Largest ratio that is kept.")


class AlgorithmSpec(ApiModel):
    """Loss and advantages. An unset knob takes the preset's value, if the preset has one."""

    name: AlgorithmName = AlgorithmName.GRPO
    group_size: int = Field(default=8, ge=1, le=1024, description="Samples for each prompt.")
    advantage_baseline: AdvantageBaseline | None = Field(default=None, description="Default: the preset's.")
    advantage_scale: AdvantageScale | None = Field(default=None, description="Default: the preset's.")
    clip_low: float | None = Field(
        default=None,
        gt=0.0,
        lt=1.0,
        description="Lower clip of the probability ratio is 1 - clipLow. Default: the preset's; CISPO has none.",
    )
    clip_high: float | None = Field(
        default=None,
        gt=0.0,
        le=10.0,
        description="Upper clip of the probability ratio is 1 + clipHigh, and with CISPO its cap. Default: the preset's.",
    )
    aggregation: Aggregation | None = Field(default=None, description="Default: the preset's.")
    kl_coefficient: float = Field(
        default=0.0,
        ge=0.0,
        le=1000.0,
        description="Weight of the KL penalty against the starting model (k3 estimator); 0 leaves it out.",
    )
    entropy_coefficient: float = Field(
        default=0.0,
        ge=0.0,
        le=10.0,
        description="Weight of the entropy bonus: this times the entropy, in nats, of each token's distribution is subtracted from the "
        "loss. 0 leaves it out.",
        json_schema_extra={READER_DEFAULT: True},
    )
    clip_against: ClipAgainst | None = Field(
        default=None,
        description="Default: Proximal with rounds.policy Synchronous and TailBatching, Behaviour with ContinueUnfinished and "
        "BoundedAsync.",
    )
    dual_clip: float | None = Field(
        default=None,
        gt=1.0,
        le=1000.0,
        description="Where the advantage is negative, a token's loss is at most this times the advantage's magnitude, however likely the "
        "token has become (dual clip). Default: no limit.",
    )
    importance_cap: float | None = Field(
        default=None,
        ge=0.0,
        le=1000.0,
        description="With clipAgainst Proximal: cap of the truncated importance weight, which is the trainer's probability of a token "
        f"over the engine's; 0 switches the correction off. Default: {IMPORTANCE_CAP:g}, or what importanceMask lets through.",
    )
    importance_mask: RatioBounds | None = Field(
        default=None,
        description="Leave out of the loss every token for which the ratio of the trainer's probability to the engine's is outside "
        "these bounds (masked importance sampling). Default: none.",
    )
    sequence_mask: RatioBounds | None = Field(
        default=None,
        description="Leave out of the loss every response for which the ratio of the trainer's probability to the engine's is "
        "outside these bounds. Few long responses pass: see docs/rounds.md. Default: none.",
    )
    drop_zero_variance: bool | None = Field(
        default=None,
        description="Drop groups whose task scores are all equal (DAPO's dynamic sampling; see role of a reward). Default: the "
        "preset's.",
    )
    mask_truncated: bool | None = Field(
        default=None,
        description="Leave samples cut off by maxTokens out of the loss (DAPO's overlong filter). Default: the preset's.",
    )


@dataclass(frozen=True, slots=True)
class Preset:
    """The knobs a name stands for."""

    advantage_baseline: AdvantageBaseline
    advantage_scale: AdvantageScale
    aggregation: Aggregation
    policy_loss: PolicyLoss = PolicyLoss.PPO
    clip_low: float = 0.2
    clip_high: float = 0.2
    drop_zero_variance: bool = False
    mask_truncated: bool = False


PRESETS = {
    # DeepSeekMath, arXiv:2402.03300, section 4.1.
    AlgorithmName.GRPO: Preset(AdvantageBaseline.GROUP_MEAN, AdvantageScale.GROUP_STD, Aggregation.SEQUENCE_MEAN),
    # Understanding R1-Zero-like training, arXiv:2503.20783, section 3: no division by length or standard deviation.
    AlgorithmName.DR_GRPO: Preset(AdvantageBaseline.GROUP_MEAN, AdvantageScale.NONE, Aggregation.SEQUENCE_SUM),
    # Back to basics, arXiv:2402.14740, section 3: the whole response is one action.
    AlgorithmName.RLOO: Preset(AdvantageBaseline.LEAVE_ONE_OUT, AdvantageScale.NONE, Aggregation.SEQUENCE_SUM),
    # REINFORCE++, arXiv:2501.03262, section 3: normalized over the batch.
    AlgorithmName.REINFORCE_PLUS_PLUS: Preset(
        AdvantageBaseline.BATCH_MEAN, AdvantageScale.BATCH_STD, Aggregation.TOKEN_MEAN
    ),
    # DAPO, arXiv:2503.14476, section 3: clip higher, dynamic sampling, token-level loss, overlong filtering.
    AlgorithmName.DAPO: Preset(
        AdvantageBaseline.GROUP_MEAN,
        AdvantageScale.GROUP_STD,
        Aggregation.TOKEN_MEAN,
        clip_high=0.28,
        drop_zero_variance=True,
        mask_truncated=True,
    ),
    # Group Sequence Policy Optimization, arXiv:2507.18071: sections 4.1 and 4.3, with the clips of section 5.1.
    AlgorithmName.GSPO: Preset(
        AdvantageBaseline.GROUP_MEAN,
        AdvantageScale.GROUP_STD,
        Aggregation.SEQUENCE_MEAN,
        PolicyLoss.GSPO,
        clip_low=3e-4,
        clip_high=4e-4,
    ),
    # MiniMax-M1, arXiv:2506.13585, section 3.1: without a lower bound, which is 1 - 1. The cap of 5 is from ScaleRL, arXiv:2510.13786.
    AlgorithmName.CISPO: Preset(
        AdvantageBaseline.GROUP_MEAN,
        AdvantageScale.GROUP_STD,
        Aggregation.TOKEN_MEAN,
        PolicyLoss.CISPO,
        clip_low=1.0,
        clip_high=4.0,
    ),
}


@dataclass(frozen=True, slots=True)
class ResolvedAlgorithm:
    """Every knob that is the same under each round policy, with its value. Masks and `dual_clip` may be None."""

    group_size: int
    advantage_baseline: AdvantageBaseline
    advantage_scale: AdvantageScale
    aggregation: Aggregation
    policy_loss: PolicyLoss
    clip_low: float
    clip_high: float
    dual_clip: float | None
    kl_coefficient: float
    entropy_coefficient: float
    importance_mask: RatioBounds | None
    sequence_mask: RatioBounds | None
    drop_zero_variance: bool
    mask_truncated: bool


@dataclass(frozen=True, slots=True)
class ResolvedLoss(ResolvedAlgorithm):
    """All knobs. `importance_cap` is None where tokens have no importance weight."""

    clip_against: ClipAgainst
    importance_cap: float | None


def resolve(spec: AlgorithmSpec) -> ResolvedAlgorithm:
    """Returns the knobs that are the same under each round policy: those given in `spec`, and the preset's where it has them."""
    preset = PRESETS[spec.name]
    return ResolvedAlgorithm(
        group_size=spec.group_size,
        advantage_baseline=spec.advantage_baseline or preset.advantage_baseline,
        advantage_scale=spec.advantage_scale or preset.advantage_scale,
        aggregation=spec.aggregation or preset.aggregation,
        policy_loss=preset.policy_loss,
        clip_low=preset.clip_low if spec.clip_low is None else spec.clip_low,
        clip_high=preset.clip_high if spec.clip_high is None else spec.clip_high,
        dual_clip=spec.dual_clip,
        kl_coefficient=spec.kl_coefficient,
        entropy_coefficient=spec.entropy_coefficient,
        importance_mask=spec.importance_mask,
        sequence_mask=spec.sequence_mask,
        drop_zero_variance=preset.drop_zero_variance if spec.drop_zero_variance is None else spec.drop_zero_variance,
        mask_truncated=preset.mask_truncated if spec.mask_truncated is None else spec.mask_truncated,
    )


def resolve_loss(spec: AlgorithmSpec, *, off_policy: bool) -> ResolvedLoss:
    """Resolves the knobs as `resolve` does, and those whose default depends on whether the policy trains on tokens of older weights.

    `off_policy` says whether it does (`rounds.OFF_POLICY`).
    """
    knobs = resolve(spec)
    against = spec.clip_against or (ClipAgainst.BEHAVIOUR if off_policy else ClipAgainst.PROXIMAL)
    return ResolvedLoss(
        **{knob.name: getattr(knobs, knob.name) for knob in fields(knobs)},
        clip_against=against,
        importance_cap=_importance_cap(spec, against),
    )


def _importance_cap(spec: AlgorithmSpec, against: ClipAgainst) -> float | None:
    """Returns the cap of a token's importance weight; None: tokens have no weight.

    Against the behaviour policy the clipped ratio is the weight. Unless a cap is given, a mask's upper bound is it.
    """
    if against is ClipAgainst.BEHAVIOUR:
        return None
    if spec.importance_cap is not None:
        return spec.importance_cap or None
    return spec.importance_mask.high if spec.importance_mask else IMPORTANCE_CAP
