"""Defines the kinds, signatures and isolation of rewards. Imports nothing large: every grader's process needs this."""

from enum import StrEnum


class RewardKind(StrEnum):
    """What scores a response.

    Function: the one named by `function` or `configMap`; ReasoningGym: the task's own scorer; Sandbox: the response is a program,
    which is run against the test cases of its row; Episode: the environment that played the sample (`environments`).
    """

    FUNCTION = "Function"
    REASONING_GYM = "ReasoningGym"
    SANDBOX = "Sandbox"
    EPISODE = "Episode"


class RewardSignature(StrEnum):
    """How the function is called.

    Longboat: `reward(sample) -> float | RewardResult`; Verl: `compute_score(data_source, solution_str, ground_truth,
    extra_info)`; TRL: `reward(prompts, completions, **columns)`.
    """

    LONGBOAT = "Longboat"
    VERL = "Verl"
    TRL = "TRL"


class RewardRole(StrEnum):
    """What a reward is for.

    Task: it tells whether a response solves its row; accuracy, pass@k and dropZeroVariance are about it. Shaping: it only adds to the sum,
    such as a penalty for length.
    """

    TASK = "Task"
    SHAPING = "Shaping"


class RewardBatch(StrEnum):
    """What a TRL function is given in one call.

    Group: all responses to a prompt that count, once the last of them has been generated. Sample: each response by itself, as soon as it
    has been generated.
    """

    GROUP = "Group"
    SAMPLE = "Sample"


class RewardIsolation(StrEnum):
    """What keeps one grade from another.

    PerGrade: each has a process of its own. Shared: processes stay, and grade one response after the other; nothing is
    watched, so use it only for functions that never run or unpickle what a response holds. Auto: as Shared until a grade starts a
    process, or compiles, executes or unpickles code, mere arithmetic aside, that isn't from an installed file. That is stopped before it
    runs, and from there on the reward is graded as by PerGrade, which the status says.
    """

    AUTO = "Auto"
    SHARED = "Shared"
    PER_GRADE = "PerGrade"


class TestCaseFormat(StrEnum):
    """How a row gives its test cases.

    PrimeCode: `inputs`, `outputs` and, for functions, `fn_name`, in the ground truth (verl's prime_code); APPS: the same in a column
    `input_output`, as text of JSON (APPS, TACO); LiveCodeBench: `public_test_cases` and `private_test_cases`; HumanEval: `test` and
    `entry_point`, beside `prompt`; Pytest: a test file in `test` that imports from `solution`. Auto: the first of these whose columns a
    row has.
    """

    # Keeps pytest from collecting the class as tests because of its name.
    __test__ = False

    AUTO = "Auto"
    PRIME_CODE = "PrimeCode"
    APPS = "APPS"
    LIVE_CODE_BENCH = "LiveCodeBench"
    HUMAN_EVAL = "HumanEval"
    PYTEST = "Pytest"


# Columns in which rows give test cases, in all of these formats.
TEST_COLUMNS = frozenset({"input_output", "inputs", "outputs", "private_test_cases", "public_test_cases", "test"})


class Credit(StrEnum):
    """What a program that passes some test cases is worth. AllOrNothing: 0; Fraction: the part that it passes."""

    ALL_OR_NOTHING = "AllOrNothing"
    FRACTION = "Fraction"
