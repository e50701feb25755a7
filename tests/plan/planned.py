"""What tests of plans share: config files, specs, and figures without a trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.memory.models import SHAPES
from longboat_crds.job import RLJobSpec
from longboat_runtime.model_config import language_model
from longboat_runtime.plan.capacity import Capacity
from longboat_runtime.plan.figures import Figures, Phase
from longboat_runtime.plan.fit import Case
from tests.support.paths import REPOSITORY

MIB, GIB = 2**20, 2**30


def _qwen2(hidden: int, intermediate: int, layers: int, heads: int, key_heads: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "tie_word_embeddings": tied,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    }


def _example(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((REPOSITORY / "examples/gpu" / name / "config.json").read_text())
    return content


# Models that have been measured on a GPU (Qwen2.5), and those of the examples (Qwen3).
MODELS: dict[str, dict[str, Any]] = {
    **{size: _qwen2(*SHAPES[size]) for size in ("0.5B", "1.5B", "3B", "7B")},
    **{name: _example(name.lower()) for name in ("Qwen3-8B", "Qwen3-32B", "Qwen3-30B-A3B")},
    "small": _example("qwen3-8b")
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
