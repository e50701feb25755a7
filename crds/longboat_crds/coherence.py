"""Rules between sections of `spec`. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import combinations
from typing import Any

from longboat_crds.algorithm import PRESETS, AdvantageBaseline, AdvantageScale, ClipAgainst, PolicyLoss
from longboat_crds.expressions import (
    Expression,
    at_most,
    both,
    choose,
    constant,
    contains,
    cores,
    either,
    empty,
    equals,
    every,
    field,
    field_or,
    floating,
    if_present,
    implies,
    item,
    less_than,
    negation,
    one_of,
    plus,
    present,
    product,
    size,
    some,
    sum_over,
)
from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import DEFAULT_POOL, LEAST_POD_MILLICORES, POD_MIN_MILLICORES, RewardPoolSpec
from longboat_crds.rounds import OFF_POLICY, RoundPolicyName
from longboat_crds.rules import FieldError, Rule
from longboat_crds.trainer import StreamMode

MAX_SAMPLES_PER_ROUND = 65_536

_BATCH_BASELINES = [
    p.value for p, preset in PRESETS.items() if preset.advantage_baseline is AdvantageBaseline.BATCH_MEAN
]
_GROUP_SCALES = [p.value for p, preset in PRESETS.items() if preset.advantage_scale is AdvantageScale.GROUP_STD]
_BATCH_SCALES = [p.value for p, preset in PRESETS.items() if preset.advantage_scale is AdvantageScale.BATCH_STD]
_GSPO = [p.value for p, preset in PRESETS.items() if preset.policy_loss is PolicyLoss.GSPO]
_CISPO = [p.value for p, preset in PRESETS.items() if preset.policy_loss is PolicyLoss.CISPO]
_DROPPING = [p.value for p, preset in PRESETS.items() if preset.drop_zero_variance]

_NAME = field("algorithm.name")
_SAMPLES = product(field("rounds.promptsPerRound"), field("algorithm.groupSize"))
_MAX_TOKENS = field("rollout.sampling.maxTokens")

_BASELINE_WITHOUT_GROUP = choose(
    present("algorithm.advantageBaseline"),
    equals(field("algorithm.advantageBaseline"), constant(AdvantageBaseline.BATCH_MEAN.value)),
    one_of(_NAME, _BATCH_BASELINES),
)
_SCALE_BY_GROUP = choose(
    present("algorithm.advantageScale"),
    equals(field("algorithm.advantageScale"), constant(AdvantageScale.GROUP_STD.value)),
    one_of(_NAME, _GROUP_SCALES),
)
_SCALE_BY_BATCH = choose(
    present("algorithm.advantageScale"),
    equals(field("algorithm.advantageScale"), constant(AdvantageScale.BATCH_STD.value)),
    one_of(_NAME, _BATCH_SCALES),
)
_DROPS_EQUAL_GROUPS = choose(
    present("algorithm.dropZeroVariance"),
    field("algorithm.dropZeroVariance"),
    one_of(_NAME, _DROPPING),
)
_NO_SCORER = every(
    "rewards", "r", negation(equals(field("kind", variable="r"), constant(RewardKind.REASONING_GYM.value)))
)
_IS_EPISODE = equals(field("kind", variable="r"), constant(RewardKind.EPISODE.value))
# The API server fills it in where a manifest has no pools.
_DEFAULT_POOLS = every(
    "rewardPools",
    "p",
    both(
        equals(field("name", variable="p"), constant(DEFAULT_POOL)),
        equals(field("replicas", variable="p"), constant(1)),
        equals(field("gradersPerPod", variable="p"), constant(1)),
        negation(present("template", variable="p")),
    ),
)
_POD_MIN = product(constant(POD_MIN_MILLICORES / 1000), floating(field("replicas", variable="p")))
_LEAST_CPU = choose(
    present("cpu.min", variable="p"),
    cores(field("cpu.min", variable="p")),
    choose(
        both(present("cpu.max", variable="p"), less_than(cores(field("cpu.max", variable="p")), _POD_MIN)),
        cores(field("cpu.max", variable="p")),
        _POD_MIN,
    ),
)
# Sums of fractions are not exact, but every quantity is a whole number of millicores.
_HALF_A_MILLICORE = 0.0005
_ENFORCEABLE = [
    either(
        negation(present(f"cpu.{bound}", variable="p")),
        less_than(
            product(constant(LEAST_POD_MILLICORES / 1000), floating(field("replicas", variable="p"))),
            plus(cores(field(f"cpu.{bound}", variable="p")), constant(_HALF_A_MILLICORE)),
        ),
    )
    for bound in ("min", "max")
]
_POLICY = field("rounds.policy")
_OFF_POLICY = [policy.value for policy in OFF_POLICY]
_AGAINST_BEHAVIOUR = choose(
    present("algorithm.clipAgainst"),
    equals(field("algorithm.clipAgainst"), constant(ClipAgainst.BEHAVIOUR.value)),
    one_of(_POLICY, _OFF_POLICY),
)
_ONE_MINIBATCH = equals(field("trainer.minibatches"), constant(1))
_STREAMS_ALWAYS = equals(field_or("trainer.stream", StreamMode.AUTO.value), constant(StreamMode.ALWAYS.value))
# Fields of `rounds` that mean something under some policies only.
_OF_POLICIES = {
    "promptOvercommit": (RoundPolicyName.TAIL_BATCHING, RoundPolicyName.CONTINUE_UNFINISHED),
    "sampleOvercommit": (RoundPolicyName.TAIL_BATCHING,),
    "maxLengthBias": (RoundPolicyName.TAIL_BATCHING,),
    "auditEvery": (RoundPolicyName.TAIL_BATCHING,),
    "maxStaleness": (RoundPolicyName.BOUNDED_ASYNC,),
}


def _too_little_cpu(spec: Mapping[str, Any]) -> str:
    total = millicores(spec["rewardCpu"]["total"])
    least = sum(RewardPoolSpec.model_validate(pool).cpu_bounds(10**9)[0] for pool in spec["rewardPools"])
    return (
        f"{cpu_quantity(total)} is less than what rewardPools need at least, {cpu_quantity(least)} (the sum of cpu.min, or 100m a pod): "
        "raise it, or lower these"
    )


def pool_rules(users: str, pools: str, word: str, without: Expression | None = None) -> tuple[Rule, ...]:
    """Returns the rules about the pools that the items of a list of the spec name; both lists have to be there.

    `word` is what such an item is called, and `without` holds for one (`r`) that needs no pool.

    Rules: a pool that is named exists; with several pools every item names one, and each is named.
    """
    one_pool = at_most(size(field(pools)), constant(1))
    names_one = some(pools, "p", equals(field("name", variable="p"), field("pool", variable="r")))
    is_named = both(present("pool", variable="r"), equals(field("pool", variable="r"), field("name", variable="p")))
    needs_none = [without] if without else []

    def needs_pool(item: Mapping[str, Any]) -> bool:
        return not any(expression.evaluate({"r": item}) for expression in needs_none)

    def unknown(spec: Mapping[str, Any]) -> str:
        names = [pool["name"] for pool in spec[pools]]
        user = next(item for item in spec[users] if item.get("pool", names[0]) not in names)
        close = get_close_matches(user["pool"], names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"{pools} has {', '.join(names)}"
        return f"{word} {user['name']} names pool {user['pool']!r}, which is not in {pools}; {cure}"

    def missing(spec: Mapping[str, Any]) -> str:
        user = next(item for item in spec[users] if "pool" not in item and needs_pool(item))
        names = ", ".join(pool["name"] for pool in spec[pools])
        return (
            f"{word} {user['name']} names no pool, which it has to with several {pools}: set its pool to one of {names}"
        )

    def idle(spec: Mapping[str, Any]) -> str:
        used = {item.get("pool") for item in spec[users]}
        name = next(pool["name"] for pool in spec[pools] if pool["name"] not in used)
        return f"no {word} names pool {name}: remove it, or set the pool of one of {users} to it"

    return (
        Rule(
            every(users, "r", either(negation(present("pool", variable="r")), names_one)),
            f"the pool of each of {users} must be the name of one of {pools}: correct it, or add that pool",
            users,
            closer=unknown,
        ),
        Rule(
            either(one_pool, every(users, "r", either(*needs_none, present("pool", variable="r")))),
            f"with several {pools} each of {users} has to name one of them: set its pool",
            users,
            FieldError.REQUIRED,
            closer=missing,
        ),
        Rule(
            either(one_pool, every(pools, "p", some(users, "r", is_named))),
            f"with several {pools} one of {users} has to name each of them: remove the pool, or set the pool of one of {users} to it",
            pools,
            closer=idle,
        ),
    )


def only_if(condition: Expression, rule: Rule) -> Rule:
    """Returns a rule that says nothing about objects for which the condition doesn't hold."""
    return replace(rule, holds=implies(condition, rule.holds))


_ENVIRONMENTS = present("environments")
_DOMAINS_OF = field("domains", variable="e")
_SHARED_DOMAIN = some("domains", "d", contains(field("domains", variable="r"), item("d")), within="e")


def _domains_twice(spec: Mapping[str, Any]) -> str:
    first, second = next(
        (first, second)
        for first, second in combinations(spec["environments"], 2)
        if not (first["domains"] and second["domains"]) or set(first["domains"]) & set(second["domains"])
    )
    shared = sorted(set(first["domains"]) & set(second["domains"]))
    rows = f"rows of domain {shared[0]}" if shared else "the same rows"
    return f"environments {first['name']} and {second['name']} both play {rows}: give them domains that don't overlap"


def _not_rewarded(spec: Mapping[str, Any]) -> str:
    name = next(
        e["name"]
        for e in spec["environments"]
        if not any(
            not r["domains"] or not e["domains"] or set(r["domains"]) & set(e["domains"]) for r in spec["rewards"]
        )
    )
    return f"no reward is for the domains of environment {name}: add one, such as {{name: episode, kind: Episode}}"


# What a job with environments can't have: the field, what holds where it is acceptable, and why and what to do.
_WITH_ENVIRONMENTS: tuple[tuple[str, Expression, str], ...] = (
    (
        "rounds.policy",
        negation(equals(_POLICY, constant(RoundPolicyName.CONTINUE_UNFINISHED.value))),
        "an episode can't be stopped and continued under other weights: set policy to Synchronous, TailBatching or BoundedAsync",
    ),
    (
        "rounds.sampleOvercommit",
        if_present("rounds.sampleOvercommit", lambda overcommit: at_most(overcommit, constant(1.0))),
        "more than 1 would train only the quick episodes of a group: leave sampleOvercommit out",
    ),
    (
        "algorithm.sequenceMask",
        negation(present("algorithm.sequenceMask")),
        "judges whole samples, and the segments of an episode lie in several bins: leave it out, or use importanceMask",
    ),
    (
        "algorithm.name",
        negation(one_of(_NAME, _GSPO)),
        "GSPO weighs whole samples, and the segments of an episode lie in several bins: choose another name",
    ),
    (
        "dataset.systemPrompt",
        negation(present("dataset.systemPrompt")),
        "an environment writes all messages of its episodes: leave it out, and have the environment send the system prompt",
    ),
    (
        "dataset.evaluation.chatTemplate",
        negation(present("dataset.evaluation.chatTemplate")),
        "held-out episodes are played with dataset.chatTemplate: leave it out",
    ),
)

_OF_ENVIRONMENTS = (
    *(only_if(_ENVIRONMENTS, Rule(holds, message, path)) for path, holds, message in _WITH_ENVIRONMENTS),
    Rule(
        implies(_ENVIRONMENTS, present("model.maxLength")),
        "with environments it is required, since it limits an episode's context: give it, at most trainer.maxTokensPerBin",
        "model.maxLength",
        FieldError.REQUIRED,
    ),
    Rule(
        implies(_ENVIRONMENTS, present("environmentPools")),
        "environments run in pods of a pool: give one, such as [{name: default}]",
        "environmentPools",
        FieldError.REQUIRED,
    ),
    Rule(
        implies(present("environmentPools"), _ENVIRONMENTS),
        "no environment runs in these pods: leave environmentPools out, or give environments",
        "environmentPools",
        FieldError.FORBIDDEN,
    ),
    *(
        only_if(both(_ENVIRONMENTS, present("environmentPools")), rule)
        for rule in pool_rules("environments", "environmentPools", "environment")
    ),
    *(
        Rule(
            implies(present(f"rollout.{name}"), _ENVIRONMENTS),
            "parses what the model writes in episodes: leave it out, or give environments",
            f"rollout.{name}",
            FieldError.FORBIDDEN,
        )
        for name in ("toolParser", "reasoningParser")
    ),
    Rule(
        either(_ENVIRONMENTS, every("rewards", "r", negation(_IS_EPISODE))),
        "kind Episode is the reward that an environment returns: give environments, or use another kind",
        "rewards",
    ),
    only_if(
        _ENVIRONMENTS,
        Rule(
            either(present("dataset.columns.domain"), every("environments", "e", empty(_DOMAINS_OF))),
            "an environment with domains needs to know the domain of each row: set dataset.columns.domain",
            "environments",
        ),
    ),
    only_if(
        both(_ENVIRONMENTS, present("dataset.evaluation.columns")),
        Rule(
            either(present("dataset.evaluation.columns.domain"), every("environments", "e", empty(_DOMAINS_OF))),
            "an environment with domains needs to know the domain of each held-out row too: set columns.domain, or leave columns out to "
            "read those of the dataset",
            "dataset.evaluation.columns",
        ),
    ),
    Rule(
        implies(present("dataset.evaluation.deadlineSeconds"), _ENVIRONMENTS),
        "limits the time of held-out episodes: leave it out, or give environments",
        "dataset.evaluation.deadlineSeconds",
        FieldError.FORBIDDEN,
    ),
    only_if(
        both(_ENVIRONMENTS, present("dataset.evaluation.deadlineSeconds")),
        Rule(
            every(
                "environments",
                "e",
                at_most(field("dataset.evaluation.deadlineSeconds"), field("limits.wallSeconds", variable="e")),
            ),
            "is above limits.wallSeconds of an environment, which includes this time: lower it, or raise wallSeconds",
            "dataset.evaluation.deadlineSeconds",
        ),
    ),
    only_if(
        both(_ENVIRONMENTS, present("rounds.quotas")),
        Rule(
            every(
                "rounds.quotas",
                "q",
                some(
                    "environments",
                    "e",
                    either(empty(_DOMAINS_OF), contains(_DOMAINS_OF, field("domain", variable="q"))),
                ),
            ),
            "exactly one environment has to play each row: add each domain of quotas to the domains of an environment",
            "rounds.quotas",
        ),
    ),
    only_if(
        _ENVIRONMENTS,
        Rule(
            either(
                at_most(size(field("environments")), constant(1)),
                every(
                    "environments",
                    "e",
                    both(
                        negation(empty(_DOMAINS_OF)),
                        every(
                            "environments",
                            "r",
                            either(
                                equals(field("name", variable="e"), field("name", variable="r")),
                                negation(_SHARED_DOMAIN),
                            ),
                        ),
                    ),
                ),
            ),
            "exactly one environment has to play each row: with several environments, give each domains of its own",
            "environments",
            closer=_domains_twice,
        ),
    ),
    only_if(
        _ENVIRONMENTS,
        Rule(
            every(
                "environments",
                "e",
                some(
                    "rewards",
                    "r",
                    either(empty(field("domains", variable="r")), empty(_DOMAINS_OF), _SHARED_DOMAIN),
                ),
            ),
            "each environment needs a reward for its domains: add one, such as {name: episode, kind: Episode}",
            "rewards",
            FieldError.REQUIRED,
            closer=_not_rewarded,
        ),
    ),
)

COHERENCE = (
    Rule(
        either(
            at_most(constant(2), field("algorithm.groupSize")),
            both(_BASELINE_WITHOUT_GROUP, negation(_SCALE_BY_GROUP), negation(_DROPS_EQUAL_GROUPS)),
        ),
        "a group of one has no mean, deviation or variance of its own: set groupSize to 2 or more, or use "
        "ReinforcePlusPlus (advantageBaseline BatchMean, advantageScale None or BatchStd, dropZeroVariance false)",
        "algorithm.groupSize",
    ),
    Rule(
        negation(both(_BASELINE_WITHOUT_GROUP, _SCALE_BY_GROUP)),
        "GroupStd divides by the deviation within a group, which is near 0 for similar rewards, however far they are "
        "from BatchMean: set advantageScale to BatchStd or None, or advantageBaseline to GroupMean or LeaveOneOut",
        "algorithm.advantageScale",
    ),
    Rule(
        at_most(_SAMPLES, constant(MAX_SAMPLES_PER_ROUND)),
        f"a round has promptsPerRound x algorithm.groupSize samples, at most {MAX_SAMPLES_PER_ROUND}: lower one of them",
        "rounds.promptsPerRound",
    ),
    Rule(
        if_present("checkpoint.exportEverySteps", lambda every_steps: less_than(every_steps, field("rounds.steps"))),
        "exports nothing before the last step: lower it below rounds.steps, or leave it out; `export` exports the last step",
        "checkpoint.exportEverySteps",
    ),
    Rule(
        at_most(field("trainer.minibatches"), field("rounds.promptsPerRound")),
        "every minibatch needs a prompt with all of its samples: lower minibatches to at most rounds.promptsPerRound",
        "trainer.minibatches",
    ),
    Rule(
        either(
            negation(field_or("trainer.offloadActivations", False)),
            negation(present("trainer.gradientCheckpointing")),
            equals(field("trainer.gradientCheckpointing"), constant(True)),
        ),
        "offloads what layers are recomputed from, which gradientCheckpointing false rules out: set that to true, or leave it out",
        "trainer.offloadActivations",
    ),
    Rule(
        either(negation(_STREAMS_ALWAYS), _ONE_MINIBATCH),
        "with several minibatches the log-probs of all samples are needed before the first update, so none can be trained while the "
        "round is open: set minibatches to 1, or stream to Auto or Never",
        "trainer.stream",
    ),
    Rule(
        either(negation(_STREAMS_ALWAYS), both(negation(_BASELINE_WITHOUT_GROUP), negation(_SCALE_BY_BATCH))),
        "advantageBaseline BatchMean and advantageScale BatchStd (ReinforcePlusPlus has both) need the rewards of the whole step, which "
        "aren't known while the round is open: set these to GroupMean or LeaveOneOut and to None or GroupStd, or stream to Auto or Never",
        "trainer.stream",
    ),
    Rule(
        if_present("model.maxLength", lambda longest: less_than(_MAX_TOKENS, longest)),
        "leaves no room for a prompt within model.maxLength: lower maxTokens, or raise model.maxLength",
        "rollout.sampling.maxTokens",
    ),
    Rule(
        either(
            negation(present("dataset.evaluation.maxTokens")),
            if_present("model.maxLength", lambda longest: less_than(field("dataset.evaluation.maxTokens"), longest)),
        ),
        "leaves no room for a prompt within model.maxLength: lower maxTokens, or raise model.maxLength",
        "dataset.evaluation.maxTokens",
    ),
    Rule(
        less_than(_MAX_TOKENS, field("trainer.maxTokensPerBin")),
        "can't hold a prompt and a response of rollout.sampling.maxTokens: raise maxTokensPerBin",
        "trainer.maxTokensPerBin",
    ),
    Rule(
        if_present("model.maxLength", lambda longest: at_most(longest, field("trainer.maxTokensPerBin"))),
        "can't hold a sample of model.maxLength: raise maxTokensPerBin to at least model.maxLength",
        "trainer.maxTokensPerBin",
    ),
    Rule(
        either(_NO_SCORER, present("dataset.reasoningGym")),
        "kind ReasoningGym scores rows of dataset.reasoningGym: give that source, or another kind",
        "rewards",
    ),
    Rule(
        either(_NO_SCORER, negation(present("dataset.evaluation")), present("dataset.evaluation.reasoningGym")),
        "kind ReasoningGym scores rows of a reasoning-gym task: evaluate on dataset.evaluation.reasoningGym",
        "dataset.evaluation",
    ),
    Rule(
        either(present("dataset.columns.domain"), every("rewards", "r", empty(field("domains", variable="r")))),
        "a reward for some domains needs to know a row's domain: set dataset.columns.domain",
        "rewards",
    ),
    Rule(
        either(
            negation(present("dataset.evaluation.columns")),
            present("dataset.evaluation.columns.domain"),
            every("rewards", "r", empty(field("domains", variable="r"))),
        ),
        "a reward for some domains needs to know the domain of held-out rows too: set columns.domain, or leave columns out to read those of "
        "the dataset",
        "dataset.evaluation.columns",
    ),
    *pool_rules("rewards", "rewardPools", "reward", without=_IS_EPISODE),
    Rule(
        either(present("rewardCpu"), every("rewardPools", "p", negation(present("cpu", variable="p")))),
        "cpu bounds a pool's part of rewardCpu.total: give rewardCpu, or leave cpu out",
        "rewardPools",
        FieldError.FORBIDDEN,
    ),
    *(
        Rule(
            either(unset, some("rewards", "r", negation(_IS_EPISODE))),
            f"the job has no reward pods, since all rewards are of kind Episode: leave {name} out",
            name,
            FieldError.FORBIDDEN,
        )
        for name, unset in (("rewardCpu", negation(present("rewardCpu"))), ("rewardPools", _DEFAULT_POOLS))
    ),
    Rule(
        every("rewardPools", "p", both(*_ENFORCEABLE)),
        "cpu is for all pods of a pool together, and each of them needs 10m or more, the least that nodes enforce: raise cpu.min and cpu.max, or lower replicas",
        "rewardPools",
    ),
    Rule(
        if_present(
            "rewardCpu.total",
            lambda total: at_most(
                sum_over("rewardPools", "p", _LEAST_CPU), plus(cores(total), constant(_HALF_A_MILLICORE))
            ),
        ),
        "is less than what rewardPools need at least (the sum of cpu.min, or 100m a pod): raise it, or lower these",
        "rewardCpu.total",
        closer=_too_little_cpu,
    ),
    Rule(
        either(negation(_AGAINST_BEHAVIOUR), negation(present("algorithm.importanceCap"))),
        "caps the weight that goes with clipAgainst Proximal; against the behaviour policy (clipAgainst Behaviour, the default of "
        "ContinueUnfinished and BoundedAsync) the clipped ratio is the weight: leave importanceCap out, or set clipAgainst to Proximal",
        "algorithm.importanceCap",
    ),
    Rule(
        either(
            negation(one_of(_POLICY, _OFF_POLICY)),
            _AGAINST_BEHAVIOUR,
            if_present("algorithm.importanceCap", lambda cap: less_than(constant(0.0), cap)),
        ),
        "ContinueUnfinished and BoundedAsync train on tokens of older weights, which the truncated importance weight corrects for: "
        "leave importanceCap out, or set it above 0",
        "algorithm.importanceCap",
    ),
    Rule(
        either(negation(present("algorithm.importanceCap")), negation(present("algorithm.importanceMask"))),
        "importanceMask leaves out what a cap would truncate: leave importanceCap out, or importanceMask",
        "algorithm.importanceCap",
    ),
    Rule(
        either(
            negation(one_of(_POLICY, _OFF_POLICY)),
            _AGAINST_BEHAVIOUR,
            negation(_ONE_MINIBATCH),
            present("algorithm.importanceMask"),
        ),
        "with one minibatch the proximal policy is the model itself and nothing is ever clipped, however old the tokens are: set "
        "trainer.minibatches to 2 or more, give importanceMask, or set clipAgainst to Behaviour",
        "algorithm.clipAgainst",
    ),
    Rule(
        either(_AGAINST_BEHAVIOUR, negation(_ONE_MINIBATCH), negation(present("algorithm.dualClip"))),
        "with one minibatch the ratio to the proximal policy is always 1, so dualClip never acts: set trainer.minibatches to 2 or "
        "more, set clipAgainst to Behaviour, or leave dualClip out",
        "algorithm.dualClip",
    ),
    Rule(
        either(_AGAINST_BEHAVIOUR, negation(_ONE_MINIBATCH), negation(one_of(_NAME, [*_GSPO, *_CISPO]))),
        "with one minibatch the ratio to the proximal policy is always 1, so GSPO and CISPO do what GRPO and DAPO do without their "
        "clips: set trainer.minibatches to 2 or more, set clipAgainst to Behaviour, or choose another name",
        "algorithm.name",
    ),
    Rule(
        either(
            negation(one_of(_NAME, _GSPO)),
            negation(_AGAINST_BEHAVIOUR),
            both(present("algorithm.clipLow"), present("algorithm.clipHigh")),
        ),
        "GSPO's own clips (3e-4 and 4e-4) are within the differences of half-precision log-probs between engine and trainer, which "
        "clipAgainst Behaviour (the default of ContinueUnfinished and BoundedAsync) has in its ratio: give clipLow and clipHigh, or set "
        "clipAgainst to Proximal",
        "algorithm.clipHigh",
        FieldError.REQUIRED,
    ),
    Rule(
        either(negation(one_of(_NAME, _CISPO)), negation(present("algorithm.clipLow"))),
        "CISPO has no lower bound: leave clipLow out",
        "algorithm.clipLow",
        FieldError.FORBIDDEN,
    ),
    Rule(
        either(negation(one_of(_NAME, _CISPO)), negation(present("algorithm.dualClip"))),
        "CISPO caps the weight of every token, whatever the advantage's sign: leave dualClip out, and set clipHigh to limit it further",
        "algorithm.dualClip",
        FieldError.FORBIDDEN,
    ),
    Rule(
        either(negation(present("rounds.quotas")), negation(one_of(_POLICY, _OFF_POLICY))),
        "quotas work only with policies Synchronous and TailBatching: leave them out, or set rounds.policy to one of these",
        "rounds.quotas",
    ),
    Rule(
        either(present("dataset.columns.domain"), negation(present("rounds.quotas"))),
        "quotas are per domain: set dataset.columns.domain to the column that holds a row's domain",
        "rounds.quotas",
    ),
    *(
        Rule(
            either(one_of(_POLICY, [policy.value for policy in policies]), negation(present(f"rounds.{name}"))),
            f"belongs to policy {' or '.join(policies)}: leave it out, or set rounds.policy to {' or '.join(policies)}",
            f"rounds.{name}",
        )
        for name, policies in _OF_POLICIES.items()
    ),
    *_OF_ENVIRONMENTS,
)
