"""Changes to the minimal job, and the one field they are refused at (None: accepted), by models and API server alike."""

from typing import Any

GYM = {"spec.dataset": {"reasoningGym": {"task": "chain_sum"}}}
SCORER = {"spec.rewards": [{"name": "scorer", "kind": "ReasoningGym"}]}

HELD_OUT = {"files": {"paths": ["/t"]}}
DOMAINS = {"spec.dataset.columns.domain": "topic"}

STALE = {"spec.rounds.policy": "BoundedAsync"}
PROXIMAL = {"spec.algorithm.clipAgainst": "Proximal"}
MINIBATCHES = {"spec.trainer.minibatches": 2}
STREAM = {"spec.trainer.stream": "Always"}
BOUNDS = {"low": 0.5, "high": 2}


def sandboxed(**fields: Any) -> dict[str, Any]:
    return {"name": "code", "kind": "Sandbox", "sandbox": fields}


def wandb(**fields: Any) -> dict[str, Any]:
    return {"spec.tracking": {"weightsAndBiases": {"project": "sums", **fields}}}


def mlflow(**fields: Any) -> dict[str, Any]:
    return {"spec.tracking": {"mlflow": {"experiment": "sums", "trackingUri": "https://mlflow.example.com", **fields}}}


def parallelism(**fields: Any) -> dict[str, Any]:
    return {"spec.rollout.parallelism": fields}


def quotas(**prompts: int) -> list[dict[str, Any]]:
    return [{"domain": domain, "prompts": count} for domain, count in prompts.items()]


def pools(*names: str, **pool_of: str | None) -> dict[str, Any]:
    """Rewards by name with the pool that each names, and the pools of the job (none: those of a job that gives none)."""
    rewards = [
        {"name": name, "function": "rewards:exact"} | ({"pool": pool} if pool else {}) for name, pool in pool_of.items()
    ]
    return {"spec.rewards": rewards} | ({"spec.rewardPools": [{"name": name} for name in names]} if names else {})


def reward_cpu(total: str | None, *bounds: dict[str, str] | None, replicas: int = 1) -> dict[str, Any]:
    """rewardCpu of so much, if any, and two pools with these bounds."""
    given = [*bounds, None, None][:2]
    made = [
        {"name": name, "replicas": replicas} | ({"cpu": cpu} if cpu is not None else {})
        for name, cpu in zip(("code", "math"), given, strict=True)
    ]
    changes = pools("code", "math", one="code", two="math") | {"spec.rewardPools": made}
    return changes | ({"spec.rewardCpu": {"total": total}} if total else {})


EPISODE = {"name": "episode", "kind": "Episode"}


def environments(*changes: dict[str, Any], pools: list[dict[str, Any]] | None = None, **spec: Any) -> dict[str, Any]:
    """A job whose environments have these fields (one, if none are given), in these pools, with more of its spec changed by path."""
    made = [
        {"name": f"e{number}", "function": "games:play", **change} for number, change in enumerate(changes or ({},))
    ]
    return {
        "spec.environments": made,
        "spec.environmentPools": pools or [{"name": "games"}],
        "spec.model.maxLength": 512,
        "spec.rewards": [EPISODE],
        **{f"spec.{path.replace('__', '.')}": value for path, value in spec.items()},
    }


def episode(**fields: Any) -> dict[str, Any]:
    return environments(rewards=[EPISODE | fields])


def domains(*names: list[str], **spec: Any) -> dict[str, Any]:
    """Environments of these domains each."""
    return environments(*({"domains": name} for name in names), **{"dataset__columns__domain": "topic", **spec})


CASES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"spec.dataset.files": None}, "spec.dataset.files"),
    ({"spec.labels": {"example.com/cost-center": "42", "team": ""}, "spec.annotations": {"note": "a b\n"}}, None),
    ({"spec.labels": {"app.kubernetes.io/part-of": "sums"}}, None),
    *(
        ({f"spec.{field}": {key: "x"}}, f"spec.{field}")
        for field in ("labels", "annotations")
        for key in (
            "longboat.dev/job",
            "kubernetes.io/name",
            "app.kubernetes.io/managed-by",
            "a b",
            "-a",
            "a/b/c",
            "A.b/c",
            "é",
            "a" * 64,
        )
    ),
    ({"spec.labels": {"team": "a b"}}, "spec.labels.team"),
    ({"spec.labels": {"team": "a" * 64}}, "spec.labels.team"),
    ({"spec.checkpoint.adopt": True}, None),
    ({"spec.checkpoint.adopt": True, "spec.checkpoint.claimName": "mine"}, "spec.checkpoint.adopt"),
    *(
        ({"spec.rewardPools": [{"name": name}]}, "spec.rewardPools[0].name")
        for name in ("driver", "a-rollout", "b-trainer", "reward-a", "a-reward-b")
    ),
    *(({"spec.rewardPools": [{"name": name}]}, None) for name in ("reward", "drivers", "a-reward", "driver-a")),
    (GYM, None),
    (GYM | SCORER, None),
    (SCORER, "spec.rewards"),
    (GYM | SCORER | {"spec.dataset.evaluation": {"reasoningGym": {"task": "chain_sum", "seed": 1}}}, None),
    (GYM | SCORER | {"spec.dataset.evaluation": {"files": {"paths": ["/t"]}}}, "spec.dataset.evaluation"),
    ({"spec.dataset.evaluation": {}}, "spec.dataset.evaluation.files"),
    (
        GYM | {"spec.rewards": [{"name": "s", "kind": "ReasoningGym", "function": "m:f"}]},
        "spec.rewards[0].function",
    ),
    (
        GYM | {"spec.rewards": [{"name": "s", "kind": "ReasoningGym", "signature": "TRL"}]},
        "spec.rewards[0].signature",
    ),
    ({"spec.rewards": [sandboxed()]}, None),
    ({"spec.rewards": [sandboxed(credit="Fraction", format="LiveCodeBench", maxCases=5, memory="1Gi")]}, None),
    ({"spec.rewards": [sandboxed(runCommand=["node", "{file}"], fileName="main.js")]}, None),
    ({"spec.rewards": [sandboxed(format="Unknown")]}, "spec.rewards[0].sandbox.format"),
    ({"spec.rewards": [sandboxed(compileCommand=["g++", "{file}"])]}, "spec.rewards[0].sandbox.runCommand"),
    ({"spec.rewards": [sandboxed(runCommand=["node", "{file}"], format="Pytest")]}, "spec.rewards[0].sandbox.format"),
    ({"spec.rewards": [sandboxed(runCommand=[])]}, "spec.rewards[0].sandbox.runCommand"),
    ({"spec.rewards": [sandboxed() | {"function": "m:f"}]}, "spec.rewards[0].function"),
    ({"spec.rewards": [sandboxed() | {"signature": "TRL"}]}, "spec.rewards[0].signature"),
    ({"spec.rewards": [sandboxed() | {"isolation": "Shared"}]}, "spec.rewards[0].isolation"),
    ({"spec.rewards": [{"name": "code", "kind": "Sandbox"}]}, "spec.rewards[0].sandbox"),
    ({"spec.rewards.0.sandbox": {}}, "spec.rewards[0].sandbox"),
    ({"spec.rewards.0.signature": "Verl"}, None),
    ({"spec.rewards.0.signature": "ReasoningGym"}, "spec.rewards[0].signature"),
    ({"spec.rewards.0.isolation": "PerGrade"}, None),
    ({"spec.rewards.0.isolation": "None"}, "spec.rewards[0].isolation"),
    (
        {"spec.rewards.0.configMap": {"name": "code", "key": "r.py", "function": "f"}},
        "spec.rewards[0].function",
    ),
    ({"spec.rewards": [{"name": "r", "configMap": {"name": "c", "key": "r.py", "function": "f"}}]}, None),
    ({"spec.rewards.0.domains": ["math"]}, "spec.rewards"),
    ({"spec.rewards.0.domains": ["math"], "spec.dataset.columns.domain": "topic"}, None),
    (
        {"spec.rewards.0.domains": ["a", "a"], "spec.dataset.columns.domain": "topic"},
        "spec.rewards[0].domains[1]",
    ),
    ({"spec.rewards.0.timeoutScore": -1.5}, None),
    ({"spec.rewards.0.timeoutScore": 1e7}, "spec.rewards[0].timeoutScore"),
    (pools(code=None), None),
    (pools("code", code="code"), None),
    (pools(code="default"), None),
    (pools(code="code"), "spec.rewards"),
    (pools("code", "math", one="code", two="math", three="code"), None),
    (pools("code", "math", one="code", two="math", three="maths"), "spec.rewards"),
    (pools("code", "math", one="code", two="math", three=None), "spec.rewards"),
    (reward_cpu("4"), None),
    (reward_cpu("200m"), None),
    (reward_cpu("199m"), "spec.rewardCpu.total"),
    (reward_cpu("0.6", replicas=3), None),
    (reward_cpu("0.599", replicas=3), "spec.rewardCpu.total"),
    (reward_cpu("300m", {"max": "50m"}, {"min": "0.25"}), None),
    (reward_cpu("299m", {"max": "50m"}, {"min": "0.25"}), "spec.rewardCpu.total"),
    (reward_cpu("4", {"min": "300m", "max": "0.3"}), None),
    (reward_cpu("4", {"min": "0.301", "max": "300m"}), "spec.rewardPools[0].cpu.max"),
    (reward_cpu("4", {"min": "19m"}, replicas=2), "spec.rewardPools"),
    (reward_cpu("4", {"min": "30m", "max": "30m"}, {"min": "30m"}, replicas=3), None),
    (reward_cpu("4", {"max": "0"}), "spec.rewardPools"),
    (reward_cpu("4", {"min": "1000000u"}), "spec.rewardPools[0].cpu.min"),
    (reward_cpu("4Gi"), "spec.rewardCpu.total"),
    (reward_cpu(None, {}), "spec.rewardPools"),
    (reward_cpu(None, None, {"min": "1"}), "spec.rewardPools"),
    (pools("code", "math", one="code"), "spec.rewardPools"),
    (pools("code", "code", one="code"), "spec.rewardPools[1]"),
    (pools("twelve-chars", one=None), None),
    (pools("thirteen-char", one=None), "spec.rewardPools[0].name"),
    ({"spec.rewardPools": []}, "spec.rewardPools"),
    ({"spec.rewards.0.learnedTimeout": {}}, None),
    ({"spec.rewards.0.learnedTimeout": {"factor": 0.5}}, "spec.rewards[0].learnedTimeout.factor"),
    ({"spec.rewards.0.learnedTimeout": {"auditFraction": 0}}, "spec.rewards[0].learnedTimeout.auditFraction"),
    ({"spec.rewards.0.learnedTimeout": {"minSeconds": 30}}, None),
    ({"spec.rewards": [{**sandboxed(), "learnedTimeout": {}}]}, None),
    ({"spec.rewards.0.learnedTimeout": {"minSeconds": 31}}, "spec.rewards[0].learnedTimeout.minSeconds"),
    (
        {"spec.rewards.0.learnedTimeout": {}, "spec.rewards.0.timeoutSeconds": 1},
        "spec.rewards[0].learnedTimeout.minSeconds",
    ),
    ({"spec.rollout.sampling.topP": 1}, None),
    ({"spec.rollout.sampling.topP": 0.95}, "spec.rollout.sampling.topP"),
    ({"spec.dataset.evaluation": {"files": {"paths": ["/t"]}, "temperature": 0.6, "topP": 0.95}}, None),
    ({"spec.dataset.evaluation": {**HELD_OUT, "temperature": 0.6, "topK": 20, "minP": 0.05}}, None),
    ({"spec.dataset.evaluation": {**HELD_OUT, "topK": 20}}, "spec.dataset.evaluation.topK"),
    ({"spec.dataset.evaluation": {**HELD_OUT, "minP": 0.05}}, "spec.dataset.evaluation.minP"),
    ({"spec.dataset.evaluation": {**HELD_OUT, "minP": 0}}, None),
    ({"spec.dataset.evaluation": {**HELD_OUT, "temperature": 0.6, "topK": 0}}, "spec.dataset.evaluation.topK"),
    ({"spec.dataset.evaluation": {**HELD_OUT, "maxTokens": 100_000}}, None),
    (
        {"spec.dataset.evaluation": {**HELD_OUT, "maxTokens": 99}, "spec.model.maxLength": 99},
        "spec.dataset.evaluation.maxTokens",
    ),
    ({"spec.dataset.evaluation": {**HELD_OUT, "maxTokens": 99}, "spec.model.maxLength": 100}, None),
    ({"spec.dataset.evaluation": {**HELD_OUT, "chatTemplate": {}}}, "spec.dataset.evaluation.chatTemplate.text"),
    (
        DOMAINS
        | {
            "spec.rewards.0.domains": ["math"],
            "spec.dataset.evaluation": {**HELD_OUT, "columns": {"prompt": "problem"}},
        },
        "spec.dataset.evaluation.columns",
    ),
    (
        DOMAINS
        | {
            "spec.rewards.0.domains": ["math"],
            "spec.dataset.evaluation": {**HELD_OUT, "columns": {"prompt": "problem", "domain": "kind"}},
        },
        None,
    ),
    ({"spec.model.maxLength": 65}, None),
    ({"spec.model.maxLength": 64}, "spec.rollout.sampling.maxTokens"),
    ({"spec.trainer.maxTokensPerBin": 64}, "spec.trainer.maxTokensPerBin"),
    ({"spec.trainer.maxTokensPerBin": 100, "spec.model.maxLength": 101}, "spec.trainer.maxTokensPerBin"),
    ({"spec.trainer.maxTokensPerBin": 100, "spec.model.maxLength": 100}, None),
    ({"spec.algorithm": {"advantageBaseline": "BatchMean"}}, "spec.algorithm.advantageScale"),
    ({"spec.algorithm": {"advantageBaseline": "BatchMean", "advantageScale": "BatchStd"}}, None),
    ({"spec.algorithm": {"name": "ReinforcePlusPlus", "advantageScale": "GroupStd"}}, "spec.algorithm.advantageScale"),
    ({"spec.rounds.promptsPerRound": 65_536}, "spec.rounds.promptsPerRound"),
    ({"spec.rounds.promptsPerRound": 8192}, None),
    ({"spec.rounds.promptOvercommit": 1.5}, "spec.rounds.promptOvercommit"),
    ({"spec.rounds.sampleOvercommit": 1.0}, "spec.rounds.sampleOvercommit"),
    ({"spec.rounds.auditEvery": 4}, "spec.rounds.auditEvery"),
    (DOMAINS | {"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": quotas(math=1, code=3)}, None),
    (DOMAINS | {"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": quotas(math=4)}, None),
    (DOMAINS | {"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": quotas(math=1, code=2)}, "spec.rounds.quotas"),
    (DOMAINS | {"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": []}, "spec.rounds.quotas"),
    ({"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": quotas(math=4)}, "spec.rounds.quotas"),
    (
        DOMAINS
        | {
            "spec.rounds.policy": "BoundedAsync",
            "spec.rounds.promptsPerRound": 4,
            "spec.rounds.quotas": quotas(math=4),
        },
        "spec.rounds.quotas",
    ),
    (
        DOMAINS | {"spec.rounds.promptsPerRound": 4, "spec.rounds.quotas": [*quotas(math=2), *quotas(math=2)]},
        "spec.rounds.quotas[1]",
    ),
    ({"spec.rounds.policy": "TailBatching", "spec.rounds.auditEvery": 4}, None),
    ({"spec.rounds.policy": "TailBatching", "spec.rounds.auditEvery": 1}, "spec.rounds.auditEvery"),
    ({"spec.rollout.sampling.repetition": {"patternTokens": 8, "count": 6}}, None),
    ({"spec.rollout.sampling.repetition": {"patternTokens": 8, "count": 1}}, "spec.rollout.sampling.repetition.count"),
    ({"spec.rollout.sampling.repetition": {"patternTokens": 8}}, "spec.rollout.sampling.repetition.count"),
    ({"spec.rounds.policy": "ContinueUnfinished", "spec.rounds.promptOvercommit": 1.5}, None),
    (
        {"spec.rounds.policy": "ContinueUnfinished", "spec.rounds.sampleOvercommit": 1.5},
        "spec.rounds.sampleOvercommit",
    ),
    ({"spec.rounds.policy": "ContinueUnfinished", "spec.rounds.maxStaleness": 1}, "spec.rounds.maxStaleness"),
    ({"spec.rounds.maxStaleness": 1}, "spec.rounds.maxStaleness"),
    ({"spec.rounds.policy": "BoundedAsync"}, None),
    ({"spec.rounds.policy": "BoundedAsync", "spec.rounds.maxStaleness": 64}, None),
    ({"spec.rounds.policy": "BoundedAsync", "spec.rounds.maxStaleness": 65}, "spec.rounds.maxStaleness"),
    ({"spec.rounds.policy": "BoundedAsync", "spec.rounds.maxStaleness": 0}, "spec.rounds.maxStaleness"),
    ({"spec.rounds.policy": "BoundedAsync", "spec.rounds.promptOvercommit": 1.5}, "spec.rounds.promptOvercommit"),
    (wandb(mode="Offline"), None),
    (wandb(secret={"name": "wandb"}), None),
    (wandb(), "spec.tracking.weightsAndBiases.secret"),
    (wandb(mode="Online", entity="research"), "spec.tracking.weightsAndBiases.secret"),
    (wandb(mode="Shared"), "spec.tracking.weightsAndBiases.mode"),
    (wandb(mode="Offline", project="team/sums"), "spec.tracking.weightsAndBiases.project"),
    (wandb(mode="Offline", tags=["a", "a"]), "spec.tracking.weightsAndBiases.tags[1]"),
    (wandb(mode="Offline", baseUrl="wandb.example.com"), "spec.tracking.weightsAndBiases.baseUrl"),
    (mlflow(), None),
    (mlflow(trackingUri="http://mlflow.tracking:5000", secret={"name": "mlflow"}, tags={"team": "a"}), None),
    (mlflow(trackingUri=None), "spec.tracking.mlflow.trackingUri"),
    (mlflow(trackingUri="https://me:secret@mlflow.example.com"), "spec.tracking.mlflow.trackingUri"),
    (mlflow(trackingUri="sqlite:///runs.db"), "spec.tracking.mlflow.trackingUri"),
    ({"spec.algorithm.importanceCap": 0}, None),
    ({"spec.rounds.policy": "BoundedAsync", "spec.algorithm.importanceCap": 0}, "spec.algorithm.importanceCap"),
    ({"spec.rounds.policy": "ContinueUnfinished", "spec.algorithm.importanceCap": 0.5}, "spec.algorithm.importanceCap"),
    (STALE | PROXIMAL | MINIBATCHES | {"spec.algorithm.importanceCap": 0.5}, None),
    (STALE | PROXIMAL | MINIBATCHES | {"spec.algorithm.importanceCap": 0}, "spec.algorithm.importanceCap"),
    ({"spec.algorithm": {"importanceCap": 2, "importanceMask": BOUNDS}}, "spec.algorithm.importanceCap"),
    ({"spec.algorithm.clipAgainst": "Behaviour"}, None),
    ({"spec.algorithm": {"clipAgainst": "Behaviour", "importanceCap": 2}}, "spec.algorithm.importanceCap"),
    (STALE | PROXIMAL, "spec.algorithm.clipAgainst"),
    (STALE | PROXIMAL | MINIBATCHES, None),
    (STALE | PROXIMAL | {"spec.algorithm.importanceMask": BOUNDS}, None),
    (STALE | {"spec.algorithm.importanceMask": BOUNDS, "spec.algorithm.sequenceMask": BOUNDS}, None),
    (PROXIMAL, None),
    ({"spec.algorithm.dualClip": 3}, "spec.algorithm.dualClip"),
    ({"spec.algorithm.dualClip": 3} | MINIBATCHES, None),
    (STALE | {"spec.algorithm.dualClip": 3}, None),
    (STALE | {"spec.algorithm.dualClip": 1}, "spec.algorithm.dualClip"),
    ({"spec.algorithm.name": "GSPO"}, "spec.algorithm.name"),
    ({"spec.algorithm.name": "CISPO"}, "spec.algorithm.name"),
    ({"spec.algorithm.name": "GSPO"} | MINIBATCHES, None),
    ({"spec.algorithm.name": "CISPO"} | MINIBATCHES, None),
    ({"spec.algorithm": {"name": "GSPO", "clipAgainst": "Behaviour"}}, "spec.algorithm.clipHigh"),
    ({"spec.algorithm": {"name": "GSPO", "clipAgainst": "Behaviour", "clipHigh": 0.03}}, "spec.algorithm.clipHigh"),
    (STALE | {"spec.algorithm": {"name": "GSPO", "clipLow": 0.03, "clipHigh": 0.03}}, None),
    (STALE | {"spec.algorithm.name": "CISPO"}, None),
    (STALE | {"spec.algorithm": {"name": "CISPO", "clipLow": 0.2}}, "spec.algorithm.clipLow"),
    (STALE | {"spec.algorithm": {"name": "CISPO", "dualClip": 3}}, "spec.algorithm.dualClip"),
    (STALE | STREAM | {"spec.algorithm.name": "CISPO"}, None),
    ({"spec.algorithm.entropyCoefficient": 0.001}, None),
    ({"spec.algorithm.entropyCoefficient": -0.001}, "spec.algorithm.entropyCoefficient"),
    (STALE | {"spec.algorithm.importanceMask": {"low": 1, "high": 2}}, "spec.algorithm.importanceMask.low"),
    (STALE | {"spec.algorithm.importanceMask": {"low": 0.5, "high": 1}}, "spec.algorithm.importanceMask.high"),
    (STALE | {"spec.algorithm.sequenceMask": {"low": 0.5}}, "spec.algorithm.sequenceMask.high"),
    (
        {
            "spec.rounds.policy": "TailBatching",
            "spec.rounds.promptOvercommit": 1.5,
            "spec.rounds.sampleOvercommit": 1.25,
        },
        None,
    ),
    ({"spec.rounds.promptOvercommitMode": "Auto"}, "spec.rounds.promptOvercommitMode"),
    ({"spec.rollouts": {"everySteps": 5}}, "spec.rollouts"),
    ({"spec.rewardPool": {"replicas": 2}}, "spec.rewardPool"),
    ({"spec.rewards.0.style": "Longboat"}, "spec.rewards[0].style"),
    (
        {"spec.rounds.policy": "TailBatching", "spec.rounds.promptOvercommit": 0.9},
        "spec.rounds.promptOvercommit",
    ),
    (
        {"spec.rounds.promptsPerRound": 2, "spec.algorithm.groupSize": 4, "spec.trainer.minibatches": 3},
        "spec.trainer.minibatches",
    ),
    ({"spec.rounds.promptsPerRound": 2, "spec.algorithm.groupSize": 4, "spec.trainer.minibatches": 2}, None),
    (STREAM, None),
    ({"spec.trainer.offloadActivations": True, "spec.trainer.gradientCheckpointing": True}, None),
    ({"spec.trainer.offloadActivations": True}, None),
    ({"spec.trainer.offloadActivations": False, "spec.trainer.gradientCheckpointing": False}, None),
    (
        {"spec.trainer.offloadActivations": True, "spec.trainer.gradientCheckpointing": False},
        "spec.trainer.offloadActivations",
    ),
    (STREAM | MINIBATCHES | {"spec.rounds.promptsPerRound": 2}, "spec.trainer.stream"),
    (STREAM | {"spec.algorithm": {"name": "ReinforcePlusPlus"}}, "spec.trainer.stream"),
    (STREAM | {"spec.algorithm": {"advantageScale": "BatchStd"}}, "spec.trainer.stream"),
    (STREAM | {"spec.algorithm": {"advantageBaseline": "BatchMean", "advantageScale": "None"}}, "spec.trainer.stream"),
    (
        STREAM
        | {
            "spec.algorithm": {
                "name": "ReinforcePlusPlus",
                "advantageBaseline": "GroupMean",
                "advantageScale": "None",
            }
        },
        None,
    ),
    ({"spec.trainer.stream": "Never", "spec.algorithm": {"name": "ReinforcePlusPlus"}}, None),
    ({"spec.algorithm": {"advantageScale": "BatchStd"}}, None),
    ({"spec.trainer.replicas": 2, "spec.trainer.devicesPerPod": 8}, None),
    ({"spec.trainer.devicesPerPod": 0}, "spec.trainer.devicesPerPod"),
    ({"spec.trainer.devicesPerPod": 65}, "spec.trainer.devicesPerPod"),
    ({"spec.trainer.replicas": 512, "spec.trainer.devicesPerPod": 8}, None),
    ({"spec.trainer.replicas": 513, "spec.trainer.devicesPerPod": 8}, "spec.trainer.devicesPerPod"),
    ({"spec.trainer.replicas": 4, "spec.trainer.replicateDegree": 2}, None),
    ({"spec.trainer.replicas": 4, "spec.trainer.replicateDegree": 4}, None),
    ({"spec.trainer.replicas": 4, "spec.trainer.replicateDegree": 3}, "spec.trainer.replicateDegree"),
    ({"spec.trainer.devicesPerPod": 2, "spec.trainer.replicateDegree": 2}, "spec.trainer.replicateDegree"),
    ({"spec.rollout.enginesPerPod": 8, "spec.rollout.tensorParallel": 8}, None),
    ({"spec.rollout.enginesPerPod": 9, "spec.rollout.tensorParallel": 8}, "spec.rollout.tensorParallel"),
    ({"spec.rollout.deviceMemory": "72Gi"}, None),
    ({"spec.rollout.deviceMemory": "72Gi", "spec.rollout.kvCache": "64Mi"}, "spec.rollout.deviceMemory"),
    (
        {"spec.rollout.enginesPerPod": 4} | parallelism(mode="Adaptive", minTensorParallel=1, maxTensorParallel=4),
        None,
    ),
    (
        {"spec.rollout.enginesPerPod": 4} | parallelism(maxTensorParallel=8),
        "spec.rollout.parallelism.maxTensorParallel",
    ),
    (parallelism(minTensorParallel=2), "spec.rollout.parallelism.minTensorParallel"),
    (
        {"spec.rollout.tensorParallel": 4} | parallelism(maxTensorParallel=2),
        "spec.rollout.parallelism.maxTensorParallel",
    ),
    (
        {"spec.rollout.tensorParallel": 4} | parallelism(minTensorParallel=4, maxTensorParallel=2),
        "spec.rollout.parallelism.maxTensorParallel",
    ),
    (parallelism(mode="Sometimes"), "spec.rollout.parallelism.mode"),
    (parallelism(mode="Adaptive"), None),
    (parallelism(mode="Adaptive", profile="/data/profile.json"), None),
    (parallelism(mode="Predictive", profile="/data/profile.json"), "spec.rollout.parallelism.mode"),
    (parallelism(mode="Preemptions"), "spec.rollout.parallelism.mode"),
    ({"spec.rollout.replicas": 2, "spec.rollout.minReplicas": 2}, None),
    ({"spec.rollout.replicas": 1, "spec.rollout.minReplicas": 2}, "spec.rollout.replicas"),
    ({"spec.failurePolicy.maxBackoffSeconds": 5}, "spec.failurePolicy.maxBackoffSeconds"),
    ({"spec.checkpoint.claimName": "mine"}, None),
    (
        {"spec.checkpoint.claimName": "a", "spec.checkpoint.reclaimPolicy": "Delete"},
        "spec.checkpoint.reclaimPolicy",
    ),
    ({"spec.checkpoint.reclaimPolicy": "Delete"}, None),
    ({"spec.checkpoint.resumeFrom": {"claimName": "a"}}, None),
    (
        {"spec.checkpoint.claimName": "a", "spec.checkpoint.resumeFrom": {"claimName": "a"}},
        "spec.checkpoint.resumeFrom",
    ),
    ({"spec.rounds.steps": 10, "spec.checkpoint": {"exportEverySteps": 5, "keepExports": 1}}, None),
    ({"spec.rounds.steps": 10, "spec.checkpoint.exportEverySteps": 10}, "spec.checkpoint.exportEverySteps"),
    ({"spec.checkpoint.exportEverySteps": 0}, "spec.checkpoint.exportEverySteps"),
    ({"spec.checkpoint.keepExports": 1}, "spec.checkpoint.keepExports"),
    ({"metadata.name": "1st"}, "metadata.name"),
    ({"metadata.name": "a" * 35}, None),
    ({"metadata.name": "a" * 36}, "metadata.name"),
    (environments(), None),
    (environments(rollout__toolParser="hermes", rollout__reasoningParser="qwen3"), None),
    (environments({"history": "Append", "columns": ["board"], "limits": {"maxTurns": 3, "memory": "1Gi"}}), None),
    (environments({"history": "Sometimes"}), "spec.environments[0].history"),
    (environments({"columns": ["board", "board"]}), "spec.environments[0].columns[1]"),
    (environments({"function": None}), "spec.environments[0].function"),
    (environments({"configMap": {"name": "c", "key": "r.py", "function": "f"}}), "spec.environments[0].function"),
    (
        environments({"function": None, "configMap": {"name": "c", "key": "r.py", "function": "f"}}),
        None,
    ),
    (environments({"limits": {"deadlineSeconds": 100, "wallSeconds": 99}}), "spec.environments[0].limits.wallSeconds"),
    (environments({"limits": {"maxTurns": 0}}), "spec.environments[0].limits.maxTurns"),
    (environments(dataset__evaluation=HELD_OUT | {"deadlineSeconds": 14_400}), None),
    (
        environments(dataset__evaluation=HELD_OUT | {"deadlineSeconds": 14_401}),
        "spec.dataset.evaluation.deadlineSeconds",
    ),
    ({"spec.dataset.evaluation": HELD_OUT | {"deadlineSeconds": 60}}, "spec.dataset.evaluation.deadlineSeconds"),
    (domains(["a"], ["b"]) | {"spec.environments.1.name": "e0"}, "spec.environments[1]"),
    (environments(rounds__policy="ContinueUnfinished"), "spec.rounds.policy"),
    (environments(rounds__policy="TailBatching"), None),
    (environments(rounds__policy="BoundedAsync", trainer__minibatches=2), None),
    (environments(rounds__policy="TailBatching", rounds__sampleOvercommit=1.5), "spec.rounds.sampleOvercommit"),
    (environments(rounds__policy="TailBatching", rounds__sampleOvercommit=1.0), None),
    (environments(algorithm__sequenceMask=BOUNDS), "spec.algorithm.sequenceMask"),
    (environments(algorithm__name="GSPO", trainer__minibatches=2), "spec.algorithm.name"),
    (environments(dataset__systemPrompt="Be brief."), "spec.dataset.systemPrompt"),
    (
        environments(dataset__evaluation=HELD_OUT | {"chatTemplate": {"text": "{{ messages }}"}}),
        "spec.dataset.evaluation.chatTemplate",
    ),
    (environments(model__maxLength=None), "spec.model.maxLength"),
    (environments(trainer__maxTokensPerBin=511), "spec.trainer.maxTokensPerBin"),
    (environments(environmentPools=None), "spec.environmentPools"),
    ({"spec.environmentPools": [{"name": "games"}]}, "spec.environmentPools"),
    (environments() | {"spec.environments": []}, "spec.environments"),
    (environments({"pool": "games"}), None),
    (environments({"pool": "gmes"}), "spec.environments"),
    (
        environments(
            *({"domains": [pool or "c"]} | ({"pool": pool} if pool else {}) for pool in ("a", "b", None)),
            pools=[{"name": "a"}, {"name": "b"}],
            dataset__columns__domain="topic",
        ),
        "spec.environments",
    ),
    (environments({"pool": "games"}, pools=[{"name": "games"}, {"name": "tools"}]), "spec.environmentPools"),
    (environments(pools=[{"name": "games", "replicas": 2, "minReplicas": 2}]), None),
    (environments(pools=[{"name": "games", "minReplicas": 2}]), "spec.environmentPools[0].replicas"),
    (environments(pools=[{"name": "a-trainer"}]), "spec.environmentPools[0].name"),
    (environments(pools=[{"name": "a-reward-b"}]), "spec.environmentPools[0].name"),
    (environments(pools=[{"name": "p" * 12}]) | {"metadata.name": "a" * 30}, None),
    (environments(pools=[{"name": "p" * 12}]) | {"metadata.name": "a" * 31}, "spec.environmentPools"),
    (environments(pools=[{"name": "p" * 7}]) | {"metadata.name": "a" * 35}, None),
    ({"spec.rewardPools": [{"name": "environment-a"}]}, "spec.rewardPools[0].name"),
    ({"spec.rollout.toolParser": "hermes"}, "spec.rollout.toolParser"),
    ({"spec.rollout.reasoningParser": "qwen3"}, "spec.rollout.reasoningParser"),
    ({"spec.rewards": [EPISODE]}, "spec.rewards"),
    (environments(rewards=[EPISODE, {"name": "form", "function": "m:f", "role": "Shaping"}]), None),
    (environments(rewards=[{"name": "form", "function": "m:f"}]), None),
    (episode(timeoutScore=-1, weight=2, role="Shaping"), None),
    (episode(solvedAt=0.5), None),
    (episode(function="m:f"), "spec.rewards[0].function"),
    (episode(signature="Verl"), "spec.rewards[0].signature"),
    (episode(isolation="PerGrade"), "spec.rewards[0].isolation"),
    (episode(specialTokens=True), "spec.rewards[0].specialTokens"),
    (episode(tokenIds=True), "spec.rewards[0].tokenIds"),
    (episode(parameters={"board": 3}), "spec.rewards[0].parameters"),
    (episode(pool="default"), "spec.rewards[0].pool"),
    (episode(canary={"everySteps": 0}), "spec.rewards[0].canary"),
    (episode(learnedTimeout={}), "spec.rewards[0].learnedTimeout"),
    (episode(timeoutSeconds=5), "spec.rewards[0].timeoutSeconds"),
    (environments(rewardCpu={"total": "1"}), "spec.rewardCpu"),
    (environments(rewardPools=[{"name": "default", "gradersPerPod": 2}]), "spec.rewardPools"),
    (environments(rewardPools=[{"name": "default"}]), None),
    (
        environments(
            rewards=[EPISODE, *({"name": n, "function": "m:f", "pool": n, "role": "Shaping"} for n in ("a", "b"))],
            rewardPools=[{"name": "a"}, {"name": "b"}],
        ),
        None,
    ),
    (environments({"domains": ["a"]}), "spec.environments"),
    (domains(["a"], ["b", "c"]), None),
    (domains(["a"], ["b", "a"]), "spec.environments"),
    (domains(["a"], []), "spec.environments"),
    (domains(["a"], ["b"], rewards=[EPISODE | {"domains": ["a"]}]), "spec.rewards"),
    (
        domains(["a"], dataset__evaluation={**HELD_OUT, "columns": {"prompt": "q"}}),
        "spec.dataset.evaluation.columns",
    ),
    (environments(dataset__evaluation={**HELD_OUT, "columns": {"prompt": "q"}}), None),
    (domains(["a"], ["b"], rounds__quotas=quotas(a=5, b=3)), None),
    (domains(["a"], ["b"], rounds__quotas=quotas(a=5, c=3)), "spec.rounds.quotas"),
    (domains(["a"], ["b"], rewards=[EPISODE | {"domains": ["b", "a"]}]), None),
]

# A change of each field that is fixed, or changeable only while suspended, once a job has started (paths below `spec`).
CHANGES: dict[str, Any] = {
    "algorithm": {"groupSize": 4},
    "checkpoint.claimName": "other",
    "checkpoint.export": False,
    "checkpoint.exportEverySteps": 1,
    "checkpoint.keepExports": 3,
    "checkpoint.resumeFrom": {"claimName": "other"},
    "checkpoint.volume": {"size": "1Gi"},
    "dataset.asMessages": True,
    "dataset.chatTemplate": {"file": "/data/chat.jinja"},
    "dataset.chatTemplateArguments": {"enable_thinking": False},
    "dataset.columns": {"prompt": "question"},
    "dataset.evaluation": {"files": {"paths": ["/data/test.jsonl"]}},
    "dataset.files": {"paths": ["/data/other.jsonl"]},
    "dataset.promptTemplate": "{{ prompt }}",
    "dataset.reasoningGym": {"task": "chain_sum"},
    "dataset.shuffle": False,
    "dataset.shuffleSeed": 1,
    "dataset.systemPrompt": "Be brief.",
    "dataset.tooLongPrompts": "Skip",
    "environmentPools": [{"name": "games", "replicas": 2}],
    "environments": [{"name": "other", "function": "games:play"}],
    "model": {"path": "/models/other"},
    "rewardCpu": {"total": "4"},
    "rewardPools": [{"name": "default", "replicas": 2}],
    "rewards": [{"name": "other", "function": "rewards:other"}],
    "rollout.deviceMemory": "8Gi",
    "rollout.enforceEager": True,
    "rollout.publication": "Host",
    "rollout.reasoningParser": "qwen3",
    "rollout.toolParser": "hermes",
    "rollout.enginesPerPod": 2,
    "rollout.kvCache": "64Mi",
    "rollout.maxSequences": 8,
    "rollout.sampling": {"maxTokens": 32},
    "rollout.tensorParallel": 2,
    "rounds.auditEvery": 3,
    "rounds.maxIdleSteps": 5,
    "rounds.maxLengthBias": 0.1,
    "rounds.maxStaleness": 2,
    "rounds.policy": "TailBatching",
    "rounds.promptOvercommit": 1.5,
    "rounds.promptsPerRound": 4,
    "rounds.quotas": [{"domain": "math", "prompts": 5}, {"domain": "code", "prompts": 3}],
    "rounds.sampleOvercommit": 1.5,
    "rounds.seed": 1,
    "rounds.stageDeadlineSeconds": 60,
    "tracking": {"mlflow": {"trackingUri": "https://mlflow.example.com", "experiment": "sums"}},
    "trainer.compile": True,
    "trainer.deterministic": False,
    "trainer.devicesPerPod": 2,
    "trainer.gradientCheckpointing": True,
    "trainer.maxSkippedSteps": 5,
    "trainer.maxTokensPerBin": 4096,
    "trainer.minibatches": 2,
    "trainer.offloadActivations": True,
    "trainer.optimizer": {"learningRate": 1e-4},
    "trainer.replicas": 2,
    "trainer.replicateDegree": 2,
    "trainer.stream": "Never",
}

# What has to come with such a change.
WITH_CHANGE: dict[str, dict[str, Any]] = {
    "dataset.reasoningGym": {"spec.dataset.files": None},
    "rounds.maxStaleness": {"spec.rounds.policy": "BoundedAsync"},
    "rounds.promptOvercommit": {"spec.rounds.policy": "TailBatching"},
    "rounds.sampleOvercommit": {"spec.rounds.policy": "TailBatching"},
}

# What the job needs to have from the start for a change to be possible at all.
BEFORE_CHANGE: dict[str, dict[str, Any]] = {
    "checkpoint.keepExports": {"spec.checkpoint.exportEverySteps": 1},
    "environmentPools": environments(),
    "environments": environments(),
    "rollout.reasoningParser": environments(),
    "rollout.toolParser": environments(),
    "rounds.auditEvery": {"spec.rounds.policy": "TailBatching"},
    "rounds.maxLengthBias": {"spec.rounds.policy": "TailBatching"},
    "rounds.quotas": {"spec.dataset.columns": {"domain": "topic"}},
    "trainer.replicateDegree": {"spec.trainer.replicas": 2},
}
