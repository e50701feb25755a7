"""The signatures that reward functions may have. Imports nothing large: every grade forks a process that needs this."""

from enum import StrEnum


class RewardStyle(StrEnum):
    """The signature of the function.

    Longboat: `reward(sample) -> float | RewardResult`; Verl: `compute_score(data_source, solution_str, ground_truth,
    extra_info)`; TRL: `reward(prompts, completions, **columns)`; ReasoningGym: the task's own scorer, no function given.
    """

    LONGBOAT = "Longboat"
    VERL = "Verl"
    TRL = "TRL"
    REASONING_GYM = "ReasoningGym"
