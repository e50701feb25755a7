from __future__ import annotations

from dataclasses import replace

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.rollout.arguments import check_version, engine_arguments
from longboat_runtime.rollout.engine import (
    EngineConfig,
    check_cache,
    check_parallelism,
    kv_token_bytes,
    kv_tokens,
    parallelism_problem,
    rank_weight_bytes,
    with_cache,
)

MODEL = {
    "max_position_embeddings": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_size": 96,
    "num_hidden_layers": 3,
}
CONFIG = EngineConfig(name="e", model="/models/m", dtype="bfloat16")


def test_heads_must_divide() -> None:
    check_parallelism(replace(CONFIG, devices=tuple(range(6))), MODEL)
    with pytest.raises(SpecProblem, match="6 attention heads") as caught:
        check_parallelism(replace(CONFIG, devices=(0, 1, 2, 3)), MODEL)
    assert (caught.value.reason, caught.value.field) == (Reason.PARALLELISM_INVALID, "rollout.tensorParallel")


@pytest.mark.parametrize(
    ("tensor_parallel", "allowed"), [(1, True), (2, True), (4, True), (6, False), (12, True), (5, False)]
)
def test_key_heads_are_split_or_copied_evenly(tensor_parallel: int, allowed: bool) -> None:
    model = MODEL | {"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 24}
    assert (parallelism_problem(tensor_parallel, model) is None) is allowed
    if tensor_parallel == 6:
        assert "4 key heads" in (parallelism_problem(6, model) or "")


def test_layers_between_heads_must_divide() -> None:
    assert parallelism_problem(3, MODEL | {"num_key_value_heads": 3, "intermediate_size": 100}) is not None


def test_copied_key_heads_are_no_gain() -> None:
    bytes_ = [kv_token_bytes(MODEL, "bfloat16", parallel) for parallel in (1, 2, 6)]
    assert bytes_ == [2 * 3 * 2 * 16 * 2, 2 * 3 * 16 * 2, 2 * 3 * 16 * 2]


# A tiny model's: of 100 and 40 elements that are split, 8 of keys and values, and 5 that every rank has.
SHAPES = {
    "model.embed_tokens.weight": (10, 10),
    "model.layers.0.mlp.up_proj.weight": (4, 10),
    "model.layers.0.self_attn.k_proj.weight": (2, 2),
    "model.layers.0.self_attn.v_proj.weight": (2, 2),
    "model.norm.weight": (5,),
    "lm_head.weight": (10, 10),
}


def test_a_ranks_weights() -> None:
    tied = MODEL | {"tie_word_embeddings": True}
    assert rank_weight_bytes(SHAPES, tied, "float32", 1) == 4 * 153
    assert rank_weight_bytes(SHAPES, MODEL, "float32", 1) == 4 * 253
    assert rank_weight_bytes(SHAPES, tied, "float32", 2) == 4 * (70 + 4 + 5)
    assert rank_weight_bytes(SHAPES, tied, "bfloat16", 4) == 2 * (35 + 4 + 5), "two key heads, each copied twice"


def test_the_cache_is_what_weights_and_reserve_leave() -> None:
    config = replace(CONFIG, device_memory=10_000)
    alone = with_cache(config, MODEL, SHAPES)
    assert alone.kv_cache_bytes == 10_000 - 1000 - 2 * 253
    both = with_cache(replace(config, devices=(0, 1)), MODEL, SHAPES)
    assert both.kv_cache_bytes == 10_000 - 1000 - rank_weight_bytes(SHAPES, MODEL, "bfloat16", 2)
    assert with_cache(replace(CONFIG, kv_cache_bytes=77), MODEL, SHAPES).kv_cache_bytes == 77
    with pytest.raises(SpecProblem, match="can't hold the 506 bytes") as caught:
        with_cache(replace(CONFIG, device_memory=562), MODEL, SHAPES)
    assert (caught.value.reason, caught.value.field) == (Reason.DEVICE_MEMORY_TOO_SMALL, "rollout.deviceMemory")


def test_a_device_that_is_too_small_for_one_sequence_is_told_the_size_that_is_enough() -> None:
    config = replace(CONFIG, device_memory=100_000)
    with pytest.raises(SpecProblem, match="give at least") as caught:
        check_cache(with_cache(config, MODEL, SHAPES), MODEL, 1024)
    assert (caught.value.reason, caught.value.field) == (Reason.KV_CACHE_TOO_SMALL, "rollout.deviceMemory")
    enough = int(caught.value.message.split("give at least ")[1].split(" bytes")[0])
    check_cache(with_cache(replace(CONFIG, device_memory=enough), MODEL, SHAPES), MODEL, 1024)


def test_the_cache_must_hold_one_sequence() -> None:
    token = 2 * 3 * 2 * 16 * 2  # keys and values, layers, heads, head size, bytes
    check_cache(replace(CONFIG, kv_cache_bytes=1024 * token), MODEL, 1024)
    check_cache(replace(CONFIG, kv_cache_bytes=512 * token, devices=(0, 1)), MODEL, 1024)
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
    with pytest.raises(SpecProblem, match=r"0\.33\.0"):
        check_version("0.33.0")


def test_the_memory_of_the_spec_says_what_engines_hold() -> None:
    model = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    token_bytes = 2 * 2 * 2 * 16 * 2
    assert kv_tokens(CONFIG, model, {}, (1, 2)) == {}, "vLLM decides"
    cache = replace(CONFIG, kv_cache_bytes=1000 * token_bytes)
    assert kv_tokens(cache, model, {}, (1, 2, 4)) == {1: 1000, 2: 2000, 4: 2000}, "the two key heads are copied"
    shapes = {"layer.weight": (100, token_bytes)}  # 200 tokens' worth
    memory = replace(CONFIG, device_memory=1000 * token_bytes)
    assert kv_tokens(memory, model, shapes, (1, 2)) == {1: 700, 2: 1600}
