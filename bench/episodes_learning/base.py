"""Makes the rows of the game, and a tiny Qwen3 that has seen it played by people who mostly guess."""

from __future__ import annotations

import itertools
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.episodes_learning.environment import PLACES, WAYS

# Pieces of text that are one token each, so that a tool call has four tokens.
CALLS = {way: f'<tool_call>{{"name": "{tool}", "arguments": {{"place": "' for way, tool in WAYS.items()}
END_CALL = '"}}</tool_call>'
TURNS = ("<tools>", "<user>", "<tool>", "<assistant>")
TEMPLATE = (
    "{% for tool in tools or [] %}{{ '<tools>' if loop.first }}{{ tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "<tool_call>{\"name\": \"{{ call['function']['name'] }}\", \"arguments\": {{ call['function']['arguments'] | tojson }}}</tool_call>"
    "{% endfor %}<eos>"
    "{% else %}<{{ message['role'] }}>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HOPS = (2, 3)
# How often those who showed the game guess a digit instead of travelling on.
GUESSES = 0.6
LENGTH = 1024
STEPS, BATCH, RATE = 600, 32, 3e-3
TRAINING, HELD_OUT = 4096, 128


def row(rng: random.Random) -> dict[str, Any]:
    """Returns a row: the first road, what lies at the end of each road, and the answer. Roads off the way end at digits too."""
    hops = rng.choice(HOPS)
    way = list(zip(rng.choices([*WAYS], k=hops), rng.sample(PLACES, hops), strict=True))
    roads = {tool: {place: rng.choice(string.digits) for place in PLACES} for tool in WAYS.values()}
    for (travel, place), onward in itertools.pairwise(way):
        roads[WAYS[travel]][place] = "".join(onward)
    travel, place = way[-1]
    return {"prompt": "".join(way[0]), "roads": roads, "answer": roads[WAYS[travel]][place]}


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Returns `count` rows, which `seed` decides."""
    rng = random.Random(seed)
    return [row(rng) for _ in range(count)]


def played(task: dict[str, Any], rng: random.Random) -> Iterator[tuple[str, bool]]:
    """Yields the parts of an episode that a careless person plays: each part's text, and whether the player wrote it."""
    content = task["prompt"]
    yield f"<tools>{''.join(WAYS.values())}<user>{content}<assistant>", False
    while not content.isdigit():
        if rng.random() < GUESSES:
            yield f"{rng.choice(string.digits)}<eos>", True
            return
        way, place = content
        yield f"{CALLS[way]}{place}{END_CALL}<eos>", True
        content = task["roads"][WAYS[way]][place]
        yield f"<tool>{content}<assistant>", False
    yield f"{content}<eos>", True


def tokenizer() -> Any:
    """Returns a tokenizer with a token for each letter, digit and piece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *TURNS, *CALLS.values(), END_CALL, *string.ascii_lowercase, *string.digits]
    inner = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<eos>", *TURNS)])
    inner.add_tokens([AddedToken(name, special=False, normalized=False) for name in (*CALLS.values(), END_CALL)])
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        model_max_length=LENGTH,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


def build(directory: Path, steps: int = STEPS) -> None:
    """Writes model, train.jsonl and heldout.jsonl into a directory. Takes about 40 seconds of one CPU.

    After a third of the `steps` the model calls the tools as it should, but can't yet repeat the digit that they find.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    words = tokenizer()
    learner = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            dtype="float32",
        )
    )
    optimizer, rng = torch.optim.AdamW(learner.parameters(), lr=RATE, weight_decay=0.0), random.Random(1)
    for step in range(1, steps + 1):
        batch = [_encoded(words, row(rng), rng) for _ in range(BATCH)]
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([own + [0] * (longest - len(own)) for own, _ in batch])
        labels = torch.tensor([own + [-100] * (longest - len(own)) for _, own in batch])
        optimizer.zero_grad()
        cross_entropy(learner(ids[:, :-1]).logits.transpose(1, 2), labels[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 20)
        optimizer.step()
    learner.save_pretrained(directory / "model")
    words.save_pretrained(directory / "model")
    for name, seed, count in (("train", 0, TRAINING), ("heldout", 7, HELD_OUT)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows(seed, count)))


def _encoded(words: Any, task: dict[str, Any], rng: random.Random) -> tuple[list[int], list[int]]:
    """Returns the ids of an episode, and its labels: -100 for what the player didn't write."""
    ids, labels = [], []
    for text, own in played(task, rng):
        part = words.encode(text, add_special_tokens=False)
        ids += part
        labels += part if own else [-100] * len(part)
    return ids, labels
