"""What tests of plans share: config files, specs, and figures without a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from longboat_crds.job import RLJobSpec
from longboat_runtime.model_config import language_model
from longboat_runtime.plan.capacity import Capacity
from longboat_runtime.plan.figures import Figures, Phase
from longboat_runtime.plan.fit import Case

MIB, GIB = 2**20, 2**30
# The shapes of models that have been measured on a GPU (Qwen2.5), and of those in the examples (Qwen3).
_QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "num_key_value_heads": 2,
}
_QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "0.5B": _QWEN2
    | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5B": _QWEN2 | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12},
    "3B": _QWEN2
    | {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "7B": _QWEN2
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "Qwen3-8B": _QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "Qwen3-32B": _QWEN3
    | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64},
    "Qwen3-30B-A3B": _QWEN3
    | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    },
    "small": _QWEN3
    | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}


def write_config(folder: Path, name: str, **values: Any) -> Path:
    """Writes config.json of a model into a directory of its own."""
    directory = folder / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(MODELS[name] | {"dtype": "bfloat16"} | values))
    return directory


def make_spec(path: Path, **sections: Mapping[str, Any]) -> RLJobSpec:
    """A valid spec; `sections` (trainer, algorithm, ...) replace or add keys of the spec's sections."""
    values: dict[str, dict[str, Any]] = {
        "model": {"path": str(path), "dtype": "BFloat16"},
        "algorithm": {"importanceCap": 0},
        "rounds": {"steps": 100, "promptsPerRound": 4},
        "rollout": {"sampling": {"maxTokens": 32}},
        "trainer": {"maxTokensPerBin": 64, "gradientCheckpointing": True, "compile": False},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "test"},
            "dataset": {"reasoningGym": {"task": "chain_sum"}},
            "rewards": [{"name": "scorer", "kind": "ReasoningGym"}],
            **values,
        }
    )


def make_case(spec: RLJobSpec, name: str = "small", capacity: Capacity | None = None) -> Case:
    return Case(spec, language_model(MODELS[name]), capacity or Capacity())


def rough_figures(spec: RLJobSpec) -> Figures:
    """Figures of the small model by rules of thumb, which depend on all settings that a plan may change."""
    trainer, parameters = spec.trainer, 170_000
    shards = trainer.ranks // trainer.replicate_degree
    weights, states = 4 * parameters // shards, 8 * parameters // shards
    tokens = trainer.max_tokens_per_bin
    kept = 64 * 2 * tokens * (2 if trainer.gradient_checkpointing else 24)
    pinned = 64 * 2 * tokens * 2 if trainer.offload_activations else 0
    bins = weights + kept - pinned + 512 * 4 * min(tokens, 1000)
    before = weights + states
    phases = {name: Phase(before, before, before) for name in ("load", "publish", "snapshot")}
    phases |= {
        "accumulate": Phase(before, before + bins, before + weights),
        "update": Phase(before, before + weights, before),
    }
    return Figures(
        ranks=trainer.ranks,
        parameters=parameters,
        weights=weights,
        reference=0,
        states=states,
        phases=phases,
        snapshot=weights + states,
        pinned=pinned,
        published=2 * parameters,
        largest=512 * 64 * 2,
        vectors=2 * 64 * 9,
        key_values=2 * 2 * 2 * 64 * 32,
        gathered=weights,
        scattered=weights,
        reduced=weights,
        operators=1,
        real=0,
    )


def enlarged(figures: Figures) -> Figures:
    """Figures of the small model as if a device held GiB where it holds MiB: beside that, what is assumed is little."""
    phases = {
        name: Phase(*(1024 * value for value in (phase.before, phase.peak, phase.after)))
        for name, phase in figures.phases.items()
    }
    return replace(figures, phases=phases)


def large_figures(spec: RLJobSpec) -> Figures:
    return enlarged(rough_figures(spec))
