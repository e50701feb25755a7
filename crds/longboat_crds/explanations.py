"""Explains each condition type and each reason, and gives the cure. Pure. Source of docs/conditions.md.

Over 400 lines: one table, which is read as one page.
"""

from dataclasses import dataclass

from longboat_crds.reasons import ConditionType, Reason, ReasonGroup

CONDITION_MEANINGS = {
    ConditionType.RUNTIME_RESOLVED: "The runtime template was found and the API server accepts its pods.",
    ConditionType.SCHEDULED: "Every pod that the job asks for exists and has a node.",
    ConditionType.ROLES_READY: "Every pod that the job asks for runs and has joined.",
    ConditionType.RUNNING: "The driver runs rounds.",
    ConditionType.SUSPENDED: "The job holds no pods because spec.suspend is true.",
    ConditionType.DEGRADED: "The job runs with less than it asked for, or slower than it should.",
    ConditionType.SUCCEEDED: "All steps are done and the model is exported. Final.",
    ConditionType.FAILED: "The job was given up. Final.",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """One line each. `conditions` are the types that can have the reason; `cure` is empty if there is nothing to do."""

    group: ReasonGroup
    conditions: tuple[ConditionType, ...]
    meaning: str
    cure: str = ""


def _progress(meaning: str, *conditions: ConditionType, cure: str = "") -> Explanation:
    return Explanation(ReasonGroup.PROGRESS, conditions, meaning, cure)


def _configuration(meaning: str, cure: str, *conditions: ConditionType) -> Explanation:
    return Explanation(ReasonGroup.CONFIGURATION, conditions or (ConditionType.FAILED,), meaning, cure)


def _platform(meaning: str, cure: str, *conditions: ConditionType) -> Explanation:
    return Explanation(ReasonGroup.PLATFORM, conditions, meaning, cure)


def _run(meaning: str, cure: str, *conditions: ConditionType) -> Explanation:
    return Explanation(ReasonGroup.RUN, conditions, meaning, cure)


_RESOLVED = ConditionType.RUNTIME_RESOLVED
_SCHEDULED = ConditionType.SCHEDULED
_READY = ConditionType.ROLES_READY
_RUNNING = ConditionType.RUNNING
_SUSPENDED = ConditionType.SUSPENDED
_DEGRADED = ConditionType.DEGRADED
_FAILED = ConditionType.FAILED

EXPLANATIONS: dict[Reason, Explanation] = {
    Reason.RUNTIME_RESOLVED: _progress("The template is saved for the job in a ControllerRevision.", _RESOLVED),
    Reason.PODS_SCHEDULED: _progress("All pods have a node.", _SCHEDULED),
    Reason.PODS_STARTING: _progress(
        "Pods have been created but are not all ready yet; the message counts them.", _SCHEDULED, _READY, _RUNNING
    ),
    Reason.QUEUED: _progress(
        "The job waits until its minimum of pods has nodes. The message counts them; Scheduled has the cause.",
        _RUNNING,
    ),
    Reason.SCHEDULING_GATED: _progress(
        "Scheduling gates keep a pod from being scheduled; the message names them. The pod is kept, and no deadline runs.",
        _SCHEDULED,
        _READY,
        cure="Wait for the queue or controller that set the gates, or remove them from the runtime template.",
    ),
    Reason.ALL_ROLES_READY: _progress("All pods are ready.", _READY),
    Reason.DRIVER_STARTING: _progress("Roles are ready and the driver is loading the model or a checkpoint.", _RUNNING),
    Reason.TRAINING: _progress("Rounds are running.", _RUNNING),
    Reason.RESTARTING: _progress(
        "A failed role, or a driver that had ended when rounds.steps was raised, is being replaced; training resumes from what was saved.",
        _SCHEDULED,
        _RUNNING,
        _READY,
    ),
    Reason.SUSPEND_REQUESTED: _progress(
        "spec.suspend was set: the driver saves a checkpoint, then all pods are deleted.",
        _SUSPENDED,
        _SCHEDULED,
        _RUNNING,
        _READY,
    ),
    Reason.CHECKPOINT_KEPT: _progress(
        "Suspended; the message names the saved step.", _SUSPENDED, cure="Set spec.suspend to false to resume."
    ),
    Reason.NO_CHECKPOINT_IN_TIME: _progress(
        "Suspended, but no checkpoint was saved within checkpoint.graceSeconds; steps since the one named are repeated.",
        _SUSPENDED,
        cure="Raise checkpoint.graceSeconds, or lower checkpoint.everySteps.",
    ),
    Reason.NOT_SUSPENDED: _progress("spec.suspend is false.", _SUSPENDED),
    Reason.AS_ASKED: _progress("Nothing is missing.", _DEGRADED),
    Reason.JOB_SUCCEEDED: _progress("All steps are done.", ConditionType.SUCCEEDED),
    Reason.JOB_FINISHED: _progress("The job has ended, so its pods are gone.", _SCHEDULED, _RUNNING, _READY),
    Reason.JOB_DELETED: _progress(
        "The job was deleted, but finalizers block its removal; the message names them. Its pods are deleted.",
        _SCHEDULED,
        _RUNNING,
        _READY,
        cure="Ask the owner of the finalizers, or remove them from metadata.finalizers.",
    ),
    Reason.RUNTIME_NOT_FOUND: _configuration(
        "No runtime template has the kind and name of spec.runtimeRef.",
        "Create the template, or correct spec.runtimeRef: the message names what exists. The job then starts automatically.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.CLUSTER_RUNTIME_NOT_SERVED: _configuration(
        "This operator is installed for single namespaces and may not read ClusterRLRuntimes.",
        "Use an RLRuntime in the job's namespace (spec.runtimeRef.kind: RLRuntime).",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.POD_TEMPLATE_INVALID: _configuration(
        "The API server rejected a pod made from the runtime template, or the job can't run with the template, as with hostNetwork, or "
        "if a trainer pod's limit of GPUs isn't trainer.devicesPerPod; the message names the field.",
        "Correct the template or the job, which starts as soon as the template is accepted.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.REWARD_TEMPLATE_NOT_FOUND: _configuration(
        "The runtime template has no entry in rewardTemplates of the name that a pool of spec.rewardPools gives.",
        "Correct rewardPools[].template while the job is suspended, or have the entry added to the runtime template; the job starts as "
        "soon as it exists. A job that has run keeps the template of then unless runtimeRef.renewOnResume is true.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.GRADERS_MEMORY_TOO_SMALL: _configuration(
        "The graders' container of a reward pool has a memory limit below gradersPerPod times rewards[].sandbox.memory: the kernel would "
        "end programs that stay within theirs.",
        "Lower rewardPools[].gradersPerPod or rewards[].sandbox.memory, name another template in rewardPools[].template, or raise the "
        "limit in the runtime template; the job starts as soon as it has room. gradersPerPod and template may be edited while the job is "
        "suspended.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.ENVIRONMENT_TEMPLATE_NOT_FOUND: _configuration(
        "The runtime template has no entry in environmentTemplates of the name that a pool of spec.environmentPools gives.",
        "Correct environmentPools[].template while the job is suspended, or have the entry added to the runtime template; the job starts as "
        "soon as it exists. A job that has run keeps the template of then unless runtimeRef.renewOnResume is true.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.ENVIRONMENT_MEMORY_TOO_SMALL: _configuration(
        "The container `environment` of an environment pool has a memory limit below episodesPerPod times environments[].limits.memory: the "
        "kernel would kill episodes that stay within their limits.",
        "Lower environmentPools[].episodesPerPod or environments[].limits.memory, name another template in environmentPools[].template, or "
        "raise the limit in the runtime template; the job starts as soon as it has room. episodesPerPod and template may be edited while the "
        "job is suspended.",
        _RESOLVED,
        _SCHEDULED,
        _READY,
    ),
    Reason.NAME_TAKEN: _configuration(
        "An object that belongs to something else has a name the job needs; the message names it. It is left untouched.",
        "Delete that object, or create the job under another name; the job starts automatically once the name is free. With "
        "checkpoint.adopt it takes over the claim that an earlier job of its name left.",
        _SCHEDULED,
        _READY,
        _DEGRADED,
    ),
    Reason.SPEC_INVALID: _configuration(
        "The driver, the operator or vLLM can't use a value of the spec that the API server could not check, or the rollout pods' image "
        "has another vLLM than Longboat needs.",
        "Correct the field that the message names, in a new job.",
        _RESOLVED,
        _FAILED,
    ),
    Reason.MODEL_NOT_FOUND: _configuration(
        "spec.model.path is not a model directory in the pods.",
        "Check the path and that the runtime template mounts it in driver, rollout and trainer pods.",
    ),
    Reason.MODEL_INVALID: _configuration(
        "The model's config, weights or tokenizer can't be loaded by the trainer or by vLLM, it is an adapter or a vision-language model, "
        "or its architecture is not supported; the message names the cause.",
        "Give a Hugging Face causal language model with config.json, safetensors and tokenizer, of an architecture that vLLM has.",
    ),
    Reason.PARALLELISM_INVALID: _configuration(
        "The model can't be split over rollout.tensorParallel devices or the trainer's ranks.",
        "Choose a tensorParallel that divides the attention heads and divides the key heads, or is a multiple of them; check the devices "
        "of the runtime template's pods.",
    ),
    Reason.PROFILE_INVALID: _configuration(
        "The file of rollout.parallelism.profile is missing, isn't a profile, or is one of other engines. A job that runs keeps its "
        "shapes.",
        "Measure the job's engines with `longboat profile`, put the file on a volume of the driver, and name its path there.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.MAX_LENGTH_EXCEEDED: _configuration(
        "A prompt plus its response don't fit into the model's longest sequence.",
        "Lower rollout.sampling.maxTokens or model.maxLength, or use a model with a longer context.",
    ),
    Reason.KV_CACHE_TOO_SMALL: _configuration(
        "An engine's KV cache can't hold one sequence of the maximum length.",
        "Raise rollout.kvCache, rollout.deviceMemory or rollout.tensorParallel, or lower model.maxLength.",
    ),
    Reason.DEVICE_MEMORY_TOO_SMALL: _configuration(
        "The weights of one rank and a reserve of a tenth take all of rollout.deviceMemory.",
        "Raise rollout.deviceMemory to what the devices have, or rollout.tensorParallel so that each holds less of the weights.",
    ),
    Reason.DOES_NOT_FIT: _configuration(
        "By the plan of its memory (`longboat plan`) the job needs more of something than it has: the memory of trainers' devices, a bin, the KV "
        "cache, /dev/shm or memory of a pod, or the checkpoint claim. No pod has loaded the model. A job with a checkpoint never ends for this reason.",
        "Make the changes that the message names (the cheapest that fit), or others that `longboat plan` accepts, in a new job.",
    ),
    Reason.DATASET_NOT_FOUND: _configuration(
        "A file of the dataset doesn't exist in the driver pod, or no reasoning-gym task has that name.",
        "Check dataset.files.paths and the runtime template's mounts, or dataset.reasoningGym.task.",
    ),
    Reason.DATASET_INVALID: _configuration(
        "A row of the dataset can't be read; the message names file and row.",
        "Correct the file or dataset.files.format.",
    ),
    Reason.DATASET_EMPTY: _configuration(
        "The dataset has no usable row: it has none at all, or all are too long and dataset.tooLongPrompts is Skip.",
        "Check the files of dataset.files.paths, or leave more room for prompts: lower rollout.sampling.maxTokens or raise "
        "model.maxLength.",
    ),
    Reason.DATASET_COLUMN_MISSING: _configuration(
        "A row lacks a column that dataset.columns names.", "Correct dataset.columns or the file."
    ),
    Reason.DOMAINS_MISMATCH: _configuration(
        "A domain of rounds.quotas has no row, or rows have a domain without a quota.",
        "Correct rounds.quotas, dataset.columns.domain or the file: every domain of the rows needs a quota.",
    ),
    Reason.PROMPT_TEMPLATE_INVALID: _configuration(
        "dataset.promptTemplate doesn't parse, or names a column that a row lacks.", "Correct dataset.promptTemplate."
    ),
    Reason.PROMPT_TOO_LONG: _configuration(
        "A prompt leaves no room for rollout.sampling.maxTokens within model.maxLength.",
        "Set dataset.tooLongPrompts to Skip, raise model.maxLength, lower rollout.sampling.maxTokens, or remove the row.",
    ),
    Reason.REWARD_FUNCTION_NOT_FOUND: _configuration(
        "The module, file, ConfigMap key or function of a reward doesn't exist in the graders' container.",
        "Correct rewards[].function or rewards[].configMap, or add the module to the image.",
    ),
    Reason.REWARD_FUNCTION_INVALID: _configuration(
        "A reward function fails to import, or can't be called as its signature says.",
        "Correct the function, or rewards[].signature.",
    ),
    Reason.ENVIRONMENT_NOT_FOUND: _configuration(
        "The module, file, ConfigMap key or function of an environment doesn't exist in the environment container.",
        "Correct environments[].function or environments[].configMap, or add the module to the image (`gradersImage` of the "
        "runtime template).",
    ),
    Reason.ENVIRONMENT_INVALID: _configuration(
        "An environment fails to import, or is neither `async def episode(task, model)` nor a class with `reset` and `step`.",
        "Correct the function or class, or install what it imports in the image of the environment container (`gradersImage` of the runtime "
        "template).",
    ),
    Reason.COMMAND_NOT_FOUND: _configuration(
        "The graders' container has no command that rewards[].sandbox runs.",
        "Install it in the graders' image (`gradersImage` of the runtime template), or correct rewards[].sandbox.compileCommand or "
        "runCommand.",
    ),
    Reason.TEST_CASES_INVALID: _configuration(
        "A row that a reward of kind Sandbox grades has no test cases, or none in the format that the reward reads; the message names "
        "the row.",
        "Correct rewards[].sandbox.format, dataset.columns or the file, or limit the reward to other rows by rewards[].domains.",
    ),
    Reason.RESUME_CHECKPOINT_NOT_FOUND: _configuration(
        "The claim that checkpoint.resumeFrom names has no complete checkpoint of that step.",
        "Correct checkpoint.resumeFrom.claimName or step.",
    ),
    Reason.CHECKPOINT_MISMATCH: _configuration(
        "The checkpoint was made with another model, tokenizer, chat template, dataset or reward; the message names each difference. "
        "The job trains nothing and waits. It fails if the checkpoint can't be resumed from at all, such as with another groupSize.",
        "Restore the input, then suspend and resume the job; or add the input (Model, Tokenizer, Data, Rewards) to "
        "checkpoint.acceptChanges, which may be edited at any time. Another number of rows can't be accepted. If the job has failed, "
        "create one that fits the checkpoint, or starts without it.",
        _RUNNING,
        _DEGRADED,
        _FAILED,
    ),
    Reason.POD_REFUSED: _platform(
        "The API server or an admission policy rejected a pod or another object of the job, or its deletion.",
        "The message has the server's answer; ask the owner of that policy. If it demands its own user ids, set userIds: Platform in the runtime. "
        "Creation is retried.",
        _SCHEDULED,
        _READY,
        _DEGRADED,
    ),
    Reason.REQUEST_FAILED: _platform(
        "A request of the operator has failed for 15 s: the API server doesn't answer, or with an error of its own (5xx or 429), as when "
        "an admission webhook is down. The message names the object and quotes the server.",
        "Repair the webhook that the message names, or the API server. The request is retried.",
        _SCHEDULED,
        _READY,
        _DEGRADED,
    ),
    Reason.QUOTA_EXCEEDED: _platform(
        "A ResourceQuota of the namespace has no room for a pod or another object of the job.",
        "Free quota, or ask for fewer pods. Creation is retried.",
        _SCHEDULED,
        _READY,
        _DEGRADED,
    ),
    Reason.POD_UNSCHEDULABLE: _platform(
        "No node has room for a pod; the message is the scheduler's.",
        "Free or add nodes, or lower the requests of the runtime template.",
        _SCHEDULED,
        _READY,
    ),
    Reason.PODS_RELEASED: _platform(
        "Part of the job's minimum of pods got no nodes within failurePolicy.placementTimeoutSeconds (recoveryTimeoutSeconds in a job that "
        "ran), or its waiting pods used up a quota that refused another job's. All pods are deleted, so that others can use the nodes, and "
        "created again after a wait that doubles each time. Nothing is counted as a failure.",
        "Free or add nodes, enlarge the quota, or ask for less; the message says what was missing. The job tries again by itself.",
        _SCHEDULED,
        _READY,
    ),
    Reason.IMAGE_PULL_FAILED: _platform(
        "A node can't pull an image.", "Check the image of the runtime template and its pull secret.", _READY
    ),
    Reason.VOLUME_NOT_READY: _platform(
        "A volume that the pods mount is missing, not bound, usable by one pod only, or can't be mounted; the message has the cause.",
        "Check the claims of checkpoint (claimName, resumeFrom, volume), and what the runtime template and rewards mount.",
        _SCHEDULED,
        _READY,
    ),
    Reason.CHECKPOINT_VOLUME_FULL: _platform(
        "No space is left on the checkpoint volume; the newest complete checkpoint is untouched.",
        "Enlarge the claim, or lower checkpoint.keep.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.CHECKPOINT_VOLUME_NOT_WRITABLE: _platform(
        "The checkpoint volume can't be written by the pods' user.",
        "Make group 10001 the owner of the directory, or use a volume that honours fsGroup.",
        _FAILED,
    ),
    Reason.SAMPLES_NOT_WRITTEN: _platform(
        "The responses of a step could not be written to the file that spec.samples asks for: no space is left on the checkpoint "
        "volume, or the message has another cause. Training goes on without the file, and the next one is tried.",
        "Enlarge the claim, or lower samples.keep or samples.prompts, which may be edited while the job runs.",
        _DEGRADED,
    ),
    Reason.CONTAINER_NOT_STARTED: _platform(
        "A node can't create a container; the message is the kubelet's.",
        "Check what the runtime template mounts and the ConfigMaps that rewards name.",
        _READY,
    ),
    Reason.FOREIGN_CONTAINER_FAILING: _platform(
        "A container that the cluster injects or the runtime template adds ends with errors, or doesn't start. It isn't counted, and the "
        "job doesn't wait for it.",
        "Ask the owner of that container.",
        _READY,
    ),
    Reason.DRIVER_SILENT: _platform(
        "The driver can't register with the API server, which refuses it or doesn't answer; the message has the cause. It keeps trying, "
        "which isn't counted. A job that hasn't trained since its start fails after failurePolicy.startDeadlineSeconds.",
        "403: give the account that the runtime template names the rights of Role NAME-driver, or leave it out of the template. A timeout "
        "or a refused connection: check NetworkPolicies and proxies between the driver's pod and the API server.",
        _READY,
    ),
    Reason.START_DEADLINE_EXCEEDED: _platform(
        "No round ran, although the job's minimum of pods had nodes for failurePolicy.startDeadlineSeconds in all; the message says what "
        "was not ready.",
        "Fix what the message names, or raise failurePolicy.startDeadlineSeconds, in a new job.",
        _FAILED,
    ),
    Reason.POD_LOST: _platform("A pod was deleted, evicted or preempted; it is replaced.", "", _READY),
    Reason.POD_STUCK: _platform(
        "A pod that was ready has been unready for five minutes, and its node did not restart it: one of its processes waits for storage "
        "or a device that doesn't respond, and can't be killed. The pod is deleted, by force if need be, and replaced.",
        "If it recurs, check the node, and the storage that the pod named in the message mounts.",
        _READY,
    ),
    Reason.NODE_LOST: _platform(
        "The node of a pod is gone, is shutting down or doesn't respond; its pods are replaced elsewhere.", "", _READY
    ),
    Reason.OUT_OF_MEMORY: _run(
        "A container exceeded its memory limit and was killed.",
        "Raise the memory limit in the runtime template, or lower what the role holds (rollout.kvCache, "
        "trainer.maxTokensPerBin).",
        _READY,
    ),
    Reason.CONTAINER_EXITED: _run(
        "A container ended with an error; the message has its exit code and last lines.",
        "Read the message and the pod's log.",
        _READY,
    ),
    Reason.RESTART_LIMIT_EXCEEDED: _run(
        "A role was restarted, or engines died, more often than failurePolicy allows; the message has the last cause.",
        "Fix the last cause, in a new job that resumes from the claim (checkpoint.resumeFrom).",
        _FAILED,
    ),
    Reason.DRIVER_FAILED: _run(
        "The driver ended with an error that has no reason of its own.",
        "Read the message and the driver's log.",
        _FAILED,
    ),
    Reason.HEAD_LOST: _run(
        "The Ray head ended; the pods join its successor and the driver restarts from the newest checkpoint.",
        "If it recurs, raise the memory limit of container ray-head.",
        _RUNNING,
    ),
    Reason.TRAINER_LOST: _run(
        "A trainer rank ended; the step is computed again, from the newest checkpoint if state was lost.",
        "If it recurs, read the trainer pods' logs.",
        _DEGRADED,
    ),
    Reason.NO_ENGINES: _run(
        "No engine serves, so rounds are stalled.", "Look at the rollout pods, or raise rollout.replicas.", _DEGRADED
    ),
    Reason.NO_GRADERS: _run(
        "A reward pool, which the message names, has no pod that has joined, or none left: samples wait for the grades of its rewards, and "
        "rounds for those samples. Other pools go on.",
        "Look at the pool's pods, or raise rewardPools[].replicas.",
        _DEGRADED,
    ),
    Reason.NO_ENVIRONMENTS: _run(
        "An environment pool, which the message names, has no pod that plays episodes: its samples wait, and rounds wait for them.",
        "Look at the pool's pods and their containers `episodes` and `environment`, or raise environmentPools[].replicas.",
        _DEGRADED,
    ),
    Reason.GRADERS_DISAGREE: _run(
        "Some reward pods loaded other files or versions of a reward than the first one, so they grade nothing; the message names them.",
        "Give all reward pods the same files and image. To grade by the new ones, suspend and resume the job, with Rewards in "
        "checkpoint.acceptChanges.",
        _DEGRADED,
    ),
    Reason.ROLES_INCOMPLETE: _run(
        "Fewer rollout, reward or environment pods are ready than were asked for; rounds continue without them.",
        "Look at the pods that the message names.",
        _DEGRADED,
    ),
    Reason.STAGE_STUCK: _run(
        "A stage takes longer than rounds.stageDeadlineSeconds; its stacks are in the driver's log.",
        "Read the stacks; raise rounds.stageDeadlineSeconds if the stage just takes long.",
        _DEGRADED,
    ),
    Reason.ENGINE_REFUSED: _run(
        "An engine's weights or log-probs differ from the trainer's after a publication, so it doesn't serve: it receives the weights "
        "again, then is restarted. The job fails if no engine serves after that.",
        "Where log-probs differ, try rollout.enforceEager: true, rollout.tensorParallel: 1 or another model.dtype; the message has "
        "the difference.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.GRADER_ERRORS: _run(
        "Some samples can't be graded, even after retries: the reward function fails, its process is killed, or it hardly gets any CPU. "
        "Their groups are dropped and counted.",
        "The message has the last error: correct the function or the row, or give the graders of its pool more memory or CPUs.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.ENVIRONMENT_ERRORS: _run(
        "More than 5 % of the newest groups were dropped because one of their episodes was lost three times: its environment raised an "
        "error, never called the model or exceeded its limits, or its pod was lost. The job fails if that happened to all groups of a round.",
        "The message has the last failure and its row: correct the environment or the rows, or raise environments[].limits.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.NO_LEARNING_SIGNAL: _run(
        "A step had nothing to learn from: the rewards of every group were equal, or what differs is left out of the loss. The job fails "
        "after rounds.maxIdleSteps such steps in a row if no step of it ever learned; the last step is saved before.",
        "The message has the rewards that were seen. Look at responses with `longboat samples`, and correct the reward, the prompts or "
        "maxTokens in another job.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.NOTHING_LEFT_TO_LEARN: _run(
        "Every response of a step was right, so the step had nothing to learn from.",
        "Give harder rows in a new job whose model.path is this job's export, or lower rounds.steps to end this one.",
        _DEGRADED,
    ),
    Reason.REWARD_SUSPECT: _run(
        "A reward can't tell responses that are right from ones that are wrong or empty, or gives the same response different scores.",
        "The message has the row and the scores. Correct the reward function, the column that it compares with, or the canary "
        "(rewards[].canary).",
        _DEGRADED,
    ),
    Reason.LENGTH_BIAS: _run(
        "Trained responses are shorter, or their episodes spent less time in environments, than those first launched, by more than "
        "rounds.maxLengthBias allows; rounds don't race for a period.",
        "Lower rounds.sampleOvercommit or rounds.promptOvercommit in the next job, or raise rounds.maxLengthBias.",
        _DEGRADED,
    ),
    Reason.TRACKING_FAILED: _run(
        "A tracker (spec.tracking) doesn't get the job's metrics: its Secret, its client or its server is missing, or the server "
        "refuses. The job runs on, and nothing is lost: the tracker gets what it lacks as soon as it can be reached.",
        "The message names the field and the cause: create or correct the Secret, correct the address, or use a runtime image with "
        "the clients. It is tried again with growing pauses.",
        _DEGRADED,
    ),
    Reason.LOSS_NOT_FINITE: _run(
        "The gradient of some minibatches was NaN or infinite, so all trainer ranks skipped them. The job fails after "
        "trainer.maxSkippedSteps steps in a row in which every minibatch was skipped.",
        "Lower trainer.optimizer.learningRate, or use model.dtype BFloat16 or Float32, in a job that resumes from the claim "
        "(checkpoint.resumeFrom).",
        _DEGRADED,
        _FAILED,
    ),
    Reason.WEIGHTS_NOT_FINITE: _run(
        "Some weights are NaN, or too large for model.dtype: either as read from model.path or a checkpoint, or after a step, which was "
        "then not committed.",
        "The message says which. Correct the model; or lower trainer.optimizer.learningRate, or use model.dtype BFloat16 or Float32, "
        "in a job that resumes from the claim (checkpoint.resumeFrom).",
        _FAILED,
    ),
    Reason.CHECKPOINT_CORRUPT: _run(
        "A checkpoint's files don't match its manifest. An older one is used until the next one is saved; without one the job fails "
        "rather than start over.",
        "Check the storage behind the claim. To start over, remove what the message names, or create a job with another claim.",
        _DEGRADED,
        _FAILED,
    ),
    Reason.EXPORT_FAILED: _run(
        "The model could not be exported after the last step; its checkpoint is complete.",
        "Fix what the message names; export from the checkpoint.",
        _FAILED,
    ),
}


def explain(reason: str) -> Explanation | None:
    """Returns the explanation of a reason; None for one that this version doesn't know."""
    reasons = Reason.__members__.values()
    return EXPLANATIONS[Reason(reason)] if reason in reasons else None
