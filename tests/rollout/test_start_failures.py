"""Which failures of an engine's start end the job, and what is said of them: by the type of the error and its place in vLLM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineDead
from longboat_runtime.rollout.start_failures import PLACES, decisive_error, judged_in, start_failure
from longboat_runtime.tracebacks import Frame, RaisedError, errors_in

SITE = "/usr/lib/python3/site-packages"
LOADER = f"{SITE}/vllm/model_executor/model_loader/default_loader.py"
CACHE = f"{SITE}/vllm/v1/core/kv_cache_utils.py"
TOKENIZERS = f"{SITE}/vllm/tokenizers/hf.py"
TOO_LONG = (
    "To serve at least one request with the model's max seq len (40960), (4.38 GiB KV cache is needed, which is larger than the "
    "available KV cache memory (1.2 GiB). Based on the available memory, the estimated maximum model length is 11200. Try increasing "
    "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
NO_CORE = "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"


def error(type_: str, message: str, *places: tuple[str, str, str]) -> RaisedError:
    return RaisedError(type_, message, tuple(Frame(*place) for place in places))


def traceback_of(raised: RaisedError, header: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in raised.frames:
        lines += [f'  File "{frame.file}", line 1, in {frame.function}', f"    {frame.line}"]
    lines.append(f"{raised.type}: {raised.message}")
    return "\n".join(header + line for line in lines)


CORE = (f"{SITE}/vllm/v1/engine/core.py", "run_engine_core", "engine_core = EngineCoreProc(*args)")
WORKER = (f"{SITE}/vllm/v1/executor/multiproc_executor.py", "worker_main", "worker = WorkerProc(*args)")
RELAY = (f"{SITE}/vllm/v1/engine/utils.py", "wait_for_engine_startup", "raise RuntimeError(")
WORKERS_RELAY = (f"{SITE}/vllm/v1/executor/multiproc_executor.py", "wait_for_ready", "raise e from None")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (error("ValueError", TOO_LONG, (CACHE, "_check_enough_kv_cache_memory", "raise ValueError(")), "KVCacheTooSmall"),
        (error("AssertionError", "", (LOADER, "load", "load()"), (f"{SITE}/vllm/linear.py", "load", "assert a == b")), "ModelInvalid"),
        (
            error(
                "OSError",
                "Can't load tokenizer for '/m'.",
                (TOKENIZERS, "from_pretrained", "AutoTokenizer.from_pretrained(path)"),
                (f"{SITE}/transformers/tokenization_utils_base.py", "from_pretrained", "raise OSError("),
            ),
            "ModelInvalid",
        ),
    ],
)  # fmt: skip
def test_what_the_model_and_the_spec_say_fails_the_job(raised: RaisedError, reason: str) -> None:
    place = judged_in(raised)
    assert place is not None
    assert place.reason == reason


@pytest.mark.parametrize(
    "raised",
    [
        error("torch.OutOfMemoryError", "CUDA out of memory.", (LOADER, "load_model", "model = initialize_model()")),
        error("torch.AcceleratorError", "CUDA error: device is lost", (LOADER, "load_model", "model.to(device)")),
        error("RuntimeError", "CUDA error: unknown error", (LOADER, "load_model", "model.to(device)")),
        error("OSError", "[Errno 28] No space left on device", (TOKENIZERS, "get", "open(path)")),
        error("OSError", "[Errno 116] Stale file handle", (TOKENIZERS, "get", "raise error")),
        error("FileNotFoundError", "[Errno 2] No such file: '/m/a'", (TOKENIZERS, "get", "open(path)")),
        error("MemoryError", "", (LOADER, "load", "load()")),
        # Another process holds the device's memory.
        error("ValueError", "Free memory on device is less than desired", (f"{SITE}/vllm/v1/worker/utils.py", "request_memory", "raise")),
        error(
            "ValueError",
            "Model architectures ['A'] failed to be inspected. Please check the logs for more details.",
            (f"{SITE}/vllm/config/model.py", "__post_init__", "inspect()"),
            (f"{SITE}/vllm/model_executor/models/registry.py", "_raise_for_unsupported", "raise ValueError("),
        ),
    ],
    ids=lambda raised: f"{raised.name}-{len(raised.message)}",
)  # fmt: skip
def test_what_may_succeed_another_time_is_tried_again(raised: RaisedError) -> None:
    assert judged_in(raised) is None


def with_output(output: str) -> SpecProblem | EngineDead:
    def wait_for_engine_startup() -> None:
        raise RuntimeError(NO_CORE)

    with pytest.raises(RuntimeError) as caught:
        wait_for_engine_startup()
    return start_failure(caught.value, output)


def test_the_cause_is_what_the_core_wrote() -> None:
    cause = error("ValueError", TOO_LONG, CORE, (CACHE, "_check_enough_kv_cache_memory", "raise ValueError("))
    problem = with_output(traceback_of(cause, "(EngineCore pid=7) ERROR 11-28 20:00:00 [core.py:1510] "))
    assert isinstance(problem, SpecProblem)
    assert (problem.reason, problem.field) == (Reason.KV_CACHE_TOO_SMALL, "spec.model.maxLength")
    assert problem.message == (
        "vLLM can't start an engine: To serve at least one request with the model's max seq len (40960), (4.38 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.2 GiB). Based on the available memory, the estimated maximum model length "
        "is 11200. Lower it, or give an engine more memory: raise rollout.kvCache or rollout.deviceMemory if the spec has one, or "
        "rollout.tensorParallel."
    )


def test_of_several_workers_the_one_that_failed_by_itself_counts() -> None:
    peer = error("torch.distributed.DistNetworkError", "Connection closed by peer", WORKER)
    weights = error(
        "ValueError",
        "Following weights were not initialized: {'lm_head'}",
        WORKER,
        (LOADER, "load", "raise ValueError("),
    )
    core = error("Exception", "WorkerProc initialization failed", CORE, WORKERS_RELAY)
    written = errors_in(
        "\n".join(
            [
                traceback_of(error("ValueError", "a warning of no consequence", (LOADER, "warn", "raise ValueError("))),
                traceback_of(peer, "(Worker_TP0 pid=8) ERROR 11-28 20:00:00 [w.py:9] "),
                traceback_of(weights, "(Worker_TP1 pid=9) ERROR 11-28 20:00:00 [w.py:9] "),
                traceback_of(core, "(EngineCore pid=7) ERROR 11-28 20:00:00 [core.py:1510] "),
            ]
        )
    )
    raised = [error("RuntimeError", NO_CORE, RELAY)]
    assert decisive_error(raised, written) == weights
    assert decisive_error(raised, [each for each in written if each != weights]) == peer
    assert decisive_error(raised, []) == raised[0]


def test_a_cause_that_nobody_wrote_is_tried_again_under_what_is_known() -> None:
    failure = with_output("")
    assert isinstance(failure, EngineDead)
    assert str(failure).startswith("it can't start: Engine core initialization failed.")


def test_an_error_that_has_nothing_to_do_with_vllm_is_tried_again() -> None:
    failure = start_failure(ValueError("a bug of ours"), "")
    assert isinstance(failure, EngineDead)
    assert str(failure) == "it can't start: a bug of ours"


@given(
    st.sampled_from(PLACES),
    st.sampled_from(["OutOfMemoryError", "AcceleratorError", "OSError", "MemoryError", "TimeoutError"]),
)
def test_no_place_makes_a_failure_of_the_surroundings_final(place: object, name: str) -> None:
    file, function = place.file, place.function  # type: ignore[attr-defined]
    path = SITE + file if file.endswith(".py") else f"{SITE}{file}a.py"
    assert judged_in(error(name, "[Errno 5] Input/output error", (path, function or "f", "read()"))) is None
    assert judged_in(error("ValueError", "it is wrong", (path, function or "f", "raise ValueError("))) is not None
