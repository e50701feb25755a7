from __future__ import annotations

from dataclasses import replace

import pytest

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.arguments import check_version, engine_arguments
from longboat_runtime.rollout.engine import EngineConfig, check_cache, check_parallelism, in_bytes

MODEL = {
    "max_position_embeddings": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 96,
    "num_hidden_layers": 3,
}
CONFIG = EngineConfig(name="e", model="/models/m", dtype="bfloat16")


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("64Mi", 64 * 2**20), ("1.5Gi", 3 * 2**29), ("2G", 2 * 10**9), ("1000", 1000), ("1500m", 1)],
)
def test_quantities(quantity: str, expected: int) -> None:
    assert in_bytes(quantity) == expected


def test_heads_must_divide() -> None:
    check_parallelism(replace(CONFIG, tensor_parallel=3), MODEL)
    with pytest.raises(SpecProblem, match="6 attention heads") as caught:
        check_parallelism(replace(CONFIG, tensor_parallel=4), MODEL)
    assert (caught.value.reason, caught.value.field) == (Reason.PARALLELISM_INVALID, "rollout.tensorParallel")


def test_the_cache_must_hold_one_sequence() -> None:
    token = 2 * 3 * 2 * 16 * 2  # keys and values, layers, heads, head size, bytes
    check_cache(replace(CONFIG, kv_cache_bytes=1024 * token), MODEL, 1024)
    check_cache(replace(CONFIG, kv_cache_bytes=512 * token, tensor_parallel=2), MODEL, 1024)
    with pytest.raises(SpecProblem, match=f"at least {1024 * token} bytes") as caught:
        check_cache(replace(CONFIG, kv_cache_bytes=1024 * token - 1), MODEL, 1024)
    assert (caught.value.reason, caught.value.field) == (Reason.KV_CACHE_TOO_SMALL, "rollout.kvCache")


def test_prompts_are_not_cut_on_cpu() -> None:
    arguments = engine_arguments(CONFIG, max_length=5000, accelerator=False)
    assert arguments["enable_chunked_prefill"] is False
    assert arguments["max_num_batched_tokens"] >= 5000
    assert "enable_chunked_prefill" not in engine_arguments(CONFIG, max_length=5000, accelerator=True)


def test_only_an_eager_engine_on_cpus_takes_kernels_for_norms() -> None:
    def asks(*, eager: bool, accelerator: bool) -> bool:
        config = replace(CONFIG, enforce_eager=eager)
        return "ir_op_priority" in engine_arguments(config, max_length=100, accelerator=accelerator)

    assert asks(eager=True, accelerator=False)
    assert not asks(eager=False, accelerator=False)
    assert not asks(eager=True, accelerator=True)


def test_another_vllm_is_refused() -> None:
    check_version("0.32.0+cpu")
    with pytest.raises(RuntimeError, match=r"0\.33\.0"):
        check_version("0.33.0")
