"""A job whose responses are as long as its prompts say: a model made so that it counts down, with too little memory for long ones.

`count down from 300` is answered by about 270 words. The model draws each word from its own distribution, one in ten leaves a number
out, so lengths are drawn too.

Its weights, 101 MB, take most of the 160 MiB that an engine may use of each device. What they and the reserve leave is KV cache, which vLLM
hands out in blocks of 128 tokens: 7 with one device an engine, 31 with two, which hold half the weights and half of each token's keys and
values. It keeps one block for itself, so a pod has 12 in two engines, or 30 in one.
"""

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LARGEST = 310
WORDS = ("<pad>", "<eos>", *map(str, range(1, LARGEST + 1)), "count", "down", "from")
# Tokens of a prompt.
PROMPT = 4
MAX_LENGTH = 320
# The share of words that leave a number out.
SLIPS = 0.1
# Logarithm of how much likelier a right word is than any other: nothing else is drawn in a thousand responses.
LOGIT_MARGIN = 20.0

# Numbers that the prompts of a round start from. Short responses with their prompts stay within a block, so none is ever preempted. Long
# ones need three each, 54 in all: more than engines of either size have, even if some begin a hundred steps after others.
SHORT, LONG = range(12, 25), range(290, 311)
GROUP_SIZE, PROMPTS = 2, 9

REWARD = '''"""The share of numbers that follow each other."""


def reward(sample):
    numbers = [int(word) for word in sample.text.split()]
    return sum(a - b == 1 for a, b in zip(numbers, numbers[1:])) / max(1, len(numbers))
'''


def write_data(folder: Path, datasets: Mapping[str, Iterable[range]]) -> None:
    """Writes model, reward function and datasets below `folder`/countdown, in files that every user may read.

    A dataset has `PROMPTS` rows for each round, in order.
    """
    folder = folder / "countdown"
    _write_model(folder / "model")
    (folder / "reward.py").write_text(REWARD)
    rng = random.Random(0)
    for name, rounds in datasets.items():
        rows = [{"prompt": f"count down from {rng.choice(numbers)}"} for numbers in rounds for _ in range(PROMPTS)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in (path for path in folder.rglob("*") if path.is_file()):
        file.chmod(0o644)


def spec(runtime: str, dataset: str, rounds: Mapping[str, Any], **rollout: Any) -> dict[str, Any]:
    """Makes an RLJob's spec, by default of rollout pods of two devices; `rounds` and `rollout` go into its fields of these names."""
    data = "/data/countdown"
    return {
        "runtimeRef": {"name": runtime},
        "model": {"path": f"{data}/model", "dtype": "Float32"},
        "dataset": {"files": {"paths": [f"{data}/{dataset}.jsonl"]}, "shuffle": False},
        "algorithm": {"name": "GRPO", "groupSize": GROUP_SIZE},
        "rounds": {"promptsPerRound": PROMPTS, **rounds},
        "rollout": {
            "enginesPerPod": 2,
            "tensorParallel": 1,
            "parallelism": {"mode": "Adaptive", "minTensorParallel": 1, "maxTensorParallel": 2},
            "deviceMemory": "160Mi",
            "sampling": {"maxTokens": MAX_LENGTH - PROMPT},
            "enforceEager": True,
            **rollout,
        },
        "rewards": [{"name": "countdown", "function": f"{data}/reward.py:reward", "timeoutSeconds": 600}],
        # So slow that what the model was made for stays.
        "trainer": {"optimizer": {"learningRate": 1e-8}, "maxTokensPerBin": 1024},
        "checkpoint": {"everySteps": 1, "export": False, "graceSeconds": 60},
    }


def _write_model(folder: Path) -> None:
    """Writes a model of 25 million parameters, most of them random, whose embeddings make the next word depend on little but the last.

    The input embeddings of all words are orthogonal and long against what the layers add. So the output embedding of a word may say
    which words it follows, and how likely.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=320,
        intermediate_size=3008,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
        basis = torch.nn.init.orthogonal_(torch.empty(len(WORDS), config.hidden_size))
        length = math.sqrt(config.hidden_size)
        model.model.embed_tokens.weight.copy_(length * basis)
        following = torch.zeros(len(WORDS), len(WORDS))  # [last word, next word]: logit
        for word in range(2, LARGEST + 2):
            following[word, word - 1] = LOGIT_MARGIN + math.log(1 - SLIPS)
            if word > 2:
                following[word, word - 2] = LOGIT_MARGIN + math.log(SLIPS)
        model.lm_head.weight.copy_(following.T @ basis / length)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
    model.save_pretrained(folder)
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    inner.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:2]])
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=WORDS[0],
        eos_token=WORDS[1],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(folder)
