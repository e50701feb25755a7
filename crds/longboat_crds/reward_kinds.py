"""What a reward is, how it is called and kept apart. Imports nothing large: every grader's process needs this."""

from enum import StrEnum


class RewardKind(StrEnum):
    """What scores a response.

    Function: the one named by `function` or `configMap`; ReasoningGym: the task's own scorer.
    """

    FUNCTION = "Function"
    REASONING_GYM = "ReasoningGym"


class RewardSignature(StrEnum):
    """How the function is called.

    Longboat: `reward(sample) -> float | RewardResult`; Verl: `compute_score(data_source, solution_str, ground_truth,
    extra_info)`; TRL: `reward(prompts, completions, **columns)`.
    """

    LONGBOAT = "Longboat"
    VERL = "Verl"
    TRL = "TRL"


class RewardIsolation(StrEnum):
    """What keeps one grade from another.

    PerGrade: each has a process of its own. Shared: processes stay, and grade one response after the other; nothing is
    watched, so use it only for functions that never run or unpickle what a response holds. Auto: as Shared until a grade starts a
    process, or compiles, executes or unpickles code that isn't from an installed file; that is stopped before it runs, and from there
    on the reward is graded as by PerGrade, which the status says.
    """

    AUTO = "Auto"
    SHARED = "Shared"
    PER_GRADE = "PerGrade"
