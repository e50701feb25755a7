"""A real but tiny Qwen3 model with a byte-level tokenizer, made in code: no download, about a second.

Printable bytes are tokens of their own, so text and tokens agree one to one for plain text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAD_ID = 0
EOS_ID = 1
SPECIAL_TOKENS = ("<pad>", "<eos>", "<user>", "<assistant>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def build_tiny_model(
    directory: Path,
    *,
    vocabulary: int = 264,
    layers: int = 2,
    hidden: int = 128,
    heads: int = 4,
    max_length: int = 1024,
    dtype: str = "float32",
    tied: bool = True,
    seed: int = 0,
) -> Path:
    """Writes config, weights (safetensors) and tokenizer into `directory` and returns it.

    `vocabulary` is at least 260 (4 special tokens and 256 bytes); the rest is unused, like the padding of a real vocabulary.
    Files are readable by everyone, since pods run under another uid.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=hidden // heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=tied,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        dtype=dtype,
    )
    return save_random_model(Qwen3ForCausalLM, config, directory, seed)


def build_tiny_experts(
    directory: Path,
    *,
    vocabulary: int = 264,
    hidden: int = 128,
    heads: int = 4,
    experts: int = 4,
    expert_size: int = 32,
    max_length: int = 1024,
    dtype: str = "float32",
    seed: int = 0,
) -> Path:
    """Builds a model as `build_tiny_model` does, but a mixture of experts: Qwen2-MoE.

    Each token has two of `experts`, and one that all tokens share.
    """
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_experts=experts,
        num_experts_per_tok=2,
        moe_intermediate_size=expert_size,
        shared_expert_intermediate_size=hidden,
        max_position_embeddings=max_length,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        dtype=dtype,
    )
    return save_random_model(Qwen2MoeForCausalLM, config, directory, seed)


def save_random_model(kind: Any, config: Any, directory: Path, seed: int = 0) -> Path:
    """Saves a random model that `kind` (a class, or `AutoModelForCausalLM.from_config`) makes from `config`, with a tokenizer."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).to(config.dtype)
    model.save_pretrained(directory)
    _save_tokenizer(directory, config.vocab_size, config.max_position_embeddings)
    for file in directory.iterdir():
        file.chmod(0o644)
    return directory


def _save_tokenizer(directory: Path, vocabulary: int, max_length: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL_TOKENS, *letters]
    names += [f"<unused{i}>" for i in range(vocabulary - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL_TOKENS[EOS_ID],
        pad_token=SPECIAL_TOKENS[PAD_ID],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
