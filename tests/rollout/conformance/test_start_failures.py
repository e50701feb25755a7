"""What vLLM says of configurations with which it never starts: each is refused at once, by a sentence that names the cause."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.tracebacks import MOST_CHARACTERS
from tests.support.tiny_model import build_tiny_model

CONFIG = EngineConfig("e", "", "float32", max_length=512, kv_cache_bytes=2**20, enforce_eager=True)


def with_config(**changes: Any) -> Callable[[Path], None]:
    """Changes entries of config.json."""

    def change(model: Path) -> None:
        content = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(content | changes))

    return change


def an_adapter(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "/models/base"}')


def unchanged(model: Path) -> None:
    """The model is as it was built."""


QUANTIZED = {"quant_method": "unheard_of", "bits": 4}
FIRST_GPT = {
    "architectures": ["OpenAIGPTLMHeadModel"],
    "model_type": "openai-gpt",
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 128,
    "n_positions": 1024,
}
# The model, the engine, and the problem: its reason, its field, and words of its message.
CASES: dict[str, tuple[Callable[[Path], None], dict[str, Any], Reason, str, str]] = {
    "vision": (with_config(vision_config={"depth": 2}), {}, Reason.MODEL_INVALID, "spec.model.path", "vision-language"),
    "adapter": (an_adapter, {}, Reason.MODEL_INVALID, "spec.model.path", "merge it into its base model /models/base"),
    "unknown architecture": (
        with_config(architectures=["Qwen3ForCausalML"]),
        {},
        Reason.MODEL_INVALID,
        "spec.model.path",
        "Did you mean 'Qwen3ForCausalLM'?",
    ),
    "classifier": (
        with_config(architectures=["Qwen2ForSequenceClassification"]),
        {},
        Reason.MODEL_INVALID,
        "spec.model.path",
        "Qwen2ForSequenceClassification",
    ),
    "architecture that vLLM lacks": (
        with_config(**FIRST_GPT),
        {},
        Reason.MODEL_INVALID,
        "spec.model.path",
        "OpenAIGPTLMHeadModel",
    ),
    "unknown quantization": (
        with_config(quantization_config=QUANTIZED),
        {},
        Reason.MODEL_INVALID,
        "spec.model.path",
        "unheard_of",
    ),
    "value of a wrong type": (
        with_config(hidden_size="large"),
        {},
        Reason.MODEL_INVALID,
        "spec.model.path",
        "hidden_size",
    ),
    "number format": (
        with_config(model_type="gemma3_text", architectures=["Gemma3ForCausalLM"]),
        {"dtype": "float16"},
        Reason.SPEC_INVALID,
        "spec.model.dtype",
        "float16",
    ),
    "too many sequences": (
        unchanged,
        {"max_sequences": 16_384},
        Reason.SPEC_INVALID,
        "spec.rollout.maxSequences",
        "16384",
    ),
    "too long": (
        unchanged,
        {"max_length": 4096},
        Reason.MAX_LENGTH_EXCEEDED,
        "spec.model.maxLength",
        "4096 tokens, but the model in",
    ),
    "heads that can't be split": (
        unchanged,
        {"devices": (0, 1, 2)},
        Reason.PARALLELISM_INVALID,
        "rollout.tensorParallel",
        "4 attention heads",
    ),
    "small cache": (
        unchanged,
        {"kv_cache_bytes": 1024},
        Reason.KV_CACHE_TOO_SMALL,
        "rollout.kvCache",
        "1024 bytes hold 1 tokens",
    ),
}


def configured(config: EngineConfig, arguments: dict[str, Any] | None) -> tuple[str, str | None, str]:
    """Starts an engine up to where vLLM has its configuration, with further `arguments` of vLLM; returns the problem."""
    from longboat_runtime.rollout import factory
    from longboat_runtime.rollout.inprocess import InProcessEngine

    def start(engine: InProcessEngine) -> None:
        from vllm import EngineArgs

        EngineArgs(**engine._arguments | (arguments or {})).create_engine_config()

    InProcessEngine._start = start  # type: ignore[method-assign]
    try:
        factory.start_engine(config, NodeDevices(config.tensor_parallel))
    except SpecProblem as problem:
        return problem.reason, problem.field, problem.message
    except Exception as error:  # noqa: BLE001 - the test gets it
        return type(error).__name__, None, str(error)
    return "", None, "it has its configuration"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """One process has all configurations: importing vLLM takes longest."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as made:
        yield made


@pytest.fixture
def vllm(pool: ProcessPoolExecutor) -> Callable[..., tuple[str, str | None, str]]:
    return lambda config, arguments=None: pool.submit(configured, config, arguments).result()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "model")


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_at_once_by_its_cause(
    case: str, model: Path, vllm: Callable[..., tuple[str, str | None, str]]
) -> None:
    change, changes, reason, field, words = CASES[case]
    change(model)
    refused = vllm(replace(CONFIG, model=str(model), **changes))
    assert refused[:2] == (reason, field)
    assert words in refused[2]
    assert len(refused[2].splitlines()) == 1
    assert "://" not in refused[2]
    assert len(refused[2]) <= MOST_CHARACTERS + 200, "with the cure"


# What our own rules refuse before vLLM sees it is judged alike where vLLM sees it.
ARGUMENTS: dict[str, tuple[dict[str, Any], Reason, str, str]] = {
    "length": ({"max_model_len": 4096}, Reason.MAX_LENGTH_EXCEEDED, "spec.model.maxLength", "4096"),
    "heads": ({"tensor_parallel_size": 3}, Reason.PARALLELISM_INVALID, "spec.rollout.tensorParallel", "4"),
    "type": (
        {"max_num_seqs": "many"},
        Reason.SPEC_INVALID,
        "spec.rollout",
        "max_num_seqs: Input should be a valid integer",
    ),
    "number": ({"max_num_seqs": -1}, Reason.SPEC_INVALID, "spec.rollout", "max_num_seqs: Input should be greater"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_vllm_refuses_is_named(
    name: str, model: Path, vllm: Callable[..., tuple[str, str | None, str]]
) -> None:
    arguments, reason, field, words = ARGUMENTS[name]
    refused = vllm(replace(CONFIG, model=str(model)), arguments)
    assert refused[:2] == (reason, field), refused
    assert words in refused[2]


def failed_in(part: str, model: str) -> tuple[str, str | None, str]:
    """Calls a part of vLLM that a start comes to later; returns what the start would raise."""
    from longboat_runtime.rollout.start_failures import start_failure

    try:
        match part:
            case "tokenizer":
                from vllm.tokenizers import get_tokenizer

                get_tokenizer(model)
            case "cache":
                from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory

                _check_enough_kv_cache_memory(2**30, lambda: 2**32, 40960, lambda available: 11200)
            case "busy device":
                from vllm.v1.worker.utils import request_memory

                snapshot = SimpleNamespace(total_memory=2**36, free_memory=2**30, device_="cuda:0")
                request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=0.9))
    except Exception as error:  # noqa: BLE001 - the test gets it
        failure = start_failure(error, "")
        if isinstance(failure, SpecProblem):
            return failure.reason, failure.field, failure.message
        return type(failure).__name__, None, str(failure)
    return "", None, "nothing failed"


PARTS = {
    "tokenizer": (Reason.MODEL_INVALID, "spec.model.path", "tokenizer"),
    "cache": (
        Reason.KV_CACHE_TOO_SMALL,
        "spec.model.maxLength",
        "the estimated maximum model length is 11200. Lower it",
    ),
    "busy device": ("EngineDead", None, "it can't start: Free memory on device cuda:0"),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_fails_later_is_judged_by_where(part: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    reason, field, words = PARTS[part]
    failure = pool.submit(failed_in, part, str(tmp_path)).result()
    assert failure[:2] == (reason, field), failure
    assert words in failure[2]
    assert "://" not in failure[2]


def test_what_is_right_is_not_refused(model: Path, vllm: Callable[..., tuple[str, str | None, str]]) -> None:
    assert vllm(replace(CONFIG, model=str(model))) == ("", None, "it has its configuration")
