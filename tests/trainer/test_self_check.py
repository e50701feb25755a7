"""Which attention a model trains by, from its config alone."""

import pytest
from transformers import (
    BertConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen3Config,
    StableLmConfig,
)

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.machine import MACHINE
from longboat_runtime.trainer.self_check import choose_attention

# As large as they come: what is built to decide must not be.
LARGE = {
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(LlamaConfig(**LARGE), attention.NAME, id="Llama with 70 billion weights"),
        pytest.param(Qwen3Config(), attention.NAME, id="Qwen 3, norms of queries and keys"),
        pytest.param(Qwen3Config(vocab_size=10), attention.NAME, id="a vocabulary of ten tokens"),
        pytest.param(MistralConfig(sliding_window=4096), attention.NAME, id="Mistral, a sliding window"),
        pytest.param(Gemma3TextConfig(), attention.NAME, id="Gemma 3, a window in five of six layers"),
        pytest.param(GPT2Config(), attention.NAME, id="GPT-2, learned positions"),
        pytest.param(Gemma2Config(), "eager", id="Gemma 2, scores with a soft cap"),
        pytest.param(StableLmConfig(), "sdpa", id="StableLM, which hands no arguments on to attention"),
        pytest.param(Llama4TextConfig(), "sdpa", id="Llama 4, attention in chunks", marks=pytest.mark.extended),
        pytest.param(JambaConfig(), "sdpa", id="Jamba, state-space layers", marks=pytest.mark.extended),
        pytest.param(
            FalconH1Config(),
            "sdpa",
            id="Falcon H1, state-space and attention in each layer",
            marks=pytest.mark.extended,
        ),
        pytest.param(MambaConfig(), "eager", id="Mamba, no attention"),
    ],
)
def test_what_can_be_packed_is_and_all_else_is_padded(config: PretrainedConfig, expected: str) -> None:
    assert choose_attention(config, MACHINE) == expected


def test_convolutions_along_the_sequence_are_noticed_wherever_their_layers_are() -> None:
    config = Lfm2Config(num_hidden_layers=16, layer_types=["full_attention"] * 9 + ["conv"] * 7)
    assert choose_attention(config, MACHINE) != attention.NAME


def test_a_model_that_looks_ahead_is_refused() -> None:
    with pytest.raises(SpecProblem, match="bert can't be trained") as problem:
        choose_attention(BertConfig(is_decoder=False), MACHINE)
    assert (problem.value.reason, problem.value.field) == (Reason.MODEL_INVALID, "spec.model.path")
