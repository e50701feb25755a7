"""Condition types of an RLJob and the list of their reasons (what each means: explanations.py). Pure."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Types of conditions. Each is present once it is known, and never removed."""

    RUNTIME_RESOLVED = "RuntimeResolved"
    SCHEDULED = "Scheduled"
    ROLES_READY = "RolesReady"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    DEGRADED = "Degraded"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons of conditions, and of `status.problem`."""

    # Progress
    RUNTIME_RESOLVED = "RuntimeResolved"
    PODS_SCHEDULED = "PodsScheduled"
    PODS_STARTING = "PodsStarting"
    ALL_ROLES_READY = "AllRolesReady"
    DRIVER_STARTING = "DriverStarting"
    TRAINING = "Training"
    RESTARTING = "Restarting"
    SUSPEND_REQUESTED = "SuspendRequested"
    CHECKPOINT_KEPT = "CheckpointKept"
    NO_CHECKPOINT_IN_TIME = "NoCheckpointInTime"
    NOT_SUSPENDED = "NotSuspended"
    AS_ASKED = "AsAsked"
    JOB_SUCCEEDED = "JobSucceeded"
    JOB_FINISHED = "JobFinished"
    # Configuration
    RUNTIME_NOT_FOUND = "RuntimeNotFound"
    CLUSTER_RUNTIME_NOT_SERVED = "ClusterRuntimeNotServed"
    POD_TEMPLATE_INVALID = "PodTemplateInvalid"
    REWARD_TEMPLATE_NOT_FOUND = "RewardTemplateNotFound"
    GRADERS_MEMORY_TOO_SMALL = "GradersMemoryTooSmall"
    NAME_TAKEN = "NameTaken"
    SPEC_INVALID = "SpecInvalid"
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_INVALID = "ModelInvalid"
    PARALLELISM_INVALID = "ParallelismInvalid"
    PROFILE_INVALID = "ProfileInvalid"
    MAX_LENGTH_EXCEEDED = "MaxLengthExceeded"
    KV_CACHE_TOO_SMALL = "KVCacheTooSmall"
    DEVICE_MEMORY_TOO_SMALL = "DeviceMemoryTooSmall"
    DATASET_NOT_FOUND = "DatasetNotFound"
    DATASET_INVALID = "DatasetInvalid"
    DATASET_EMPTY = "DatasetEmpty"
    DATASET_COLUMN_MISSING = "DatasetColumnMissing"
    DOMAINS_MISMATCH = "DomainsMismatch"
    PROMPT_TEMPLATE_INVALID = "PromptTemplateInvalid"
    PROMPT_TOO_LONG = "PromptTooLong"
    REWARD_FUNCTION_NOT_FOUND = "RewardFunctionNotFound"
    REWARD_FUNCTION_INVALID = "RewardFunctionInvalid"
    COMMAND_NOT_FOUND = "CommandNotFound"
    TEST_CASES_INVALID = "TestCasesInvalid"
    RESUME_CHECKPOINT_NOT_FOUND = "ResumeCheckpointNotFound"
    CHECKPOINT_MISMATCH = "CheckpointMismatch"
    # Platform
    POD_REFUSED = "PodRefused"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_UNSCHEDULABLE = "PodUnschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_NOT_READY = "VolumeNotReady"
    CHECKPOINT_VOLUME_FULL = "CheckpointVolumeFull"
    CHECKPOINT_VOLUME_NOT_WRITABLE = "CheckpointVolumeNotWritable"
    SAMPLES_NOT_WRITTEN = "SamplesNotWritten"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    POD_LOST = "PodLost"
    POD_STUCK = "PodStuck"
    NODE_LOST = "NodeLost"
    # Run
    OUT_OF_MEMORY = "OutOfMemory"
    CONTAINER_EXITED = "ContainerExited"
    RESTART_LIMIT_EXCEEDED = "RestartLimitExceeded"
    DRIVER_FAILED = "DriverFailed"
    HEAD_LOST = "HeadLost"
    TRAINER_LOST = "TrainerLost"
    NO_ENGINES = "NoEngines"
    NO_GRADERS = "NoGraders"
    GRADERS_DISAGREE = "GradersDisagree"
    ROLES_INCOMPLETE = "RolesIncomplete"
    STAGE_STUCK = "StageStuck"
    ENGINE_REFUSED = "EngineRefused"
    GRADER_ERRORS = "GraderErrors"
    NO_LEARNING_SIGNAL = "NoLearningSignal"
    NOTHING_LEFT_TO_LEARN = "NothingLeftToLearn"
    REWARD_SUSPECT = "RewardSuspect"
    LENGTH_BIAS = "LengthBias"
    TRACKING_FAILED = "TrackingFailed"
    LOSS_NOT_FINITE = "LossNotFinite"
    WEIGHTS_NOT_FINITE = "WeightsNotFinite"
    CHECKPOINT_CORRUPT = "CheckpointCorrupt"
    EXPORT_FAILED = "ExportFailed"


class ReasonGroup(StrEnum):
    """Where the cause lies.

    Progress: nothing is wrong. Configuration: a person has to change something. Platform: the cluster lacks something. Run: a process of
    the job failed or misbehaves.
    """

    PROGRESS = "Progress"
    CONFIGURATION = "Configuration"
    PLATFORM = "Platform"
    RUN = "Run"
