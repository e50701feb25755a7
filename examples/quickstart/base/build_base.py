"""Makes what the quickstart trains on: a tiny Qwen3 that has learned to count down from careless people, and its prompts.

    python build_base.py DIRECTORY [--steps STEPS]

writes DIRECTORY/model (a Hugging Face directory), train.jsonl and heldout.jsonl. A short supervised warm-up gives reinforcement
learning something to reinforce. It stops early and its demonstrations hold slips, which the model imitates: one in seven
numbers is left out, so that few long answers come out right, as with models trained on what people wrote.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from countdown import SYMBOLS, answer, demonstration, draw, held_out, number_of, training
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<pad>", "<eos>")
LENGTH = 256
STEPS = 160
BATCH = 32
MICRO_BATCH = 4  # of like length: little padding
PROMPT = 4  # tokens
# This many prompts of a batch have every number equally likely: else large ones would hardly be seen.
EVEN = 6
SLIPS = 1 / 7
LEARNING_RATE = 3e-3
HELD_OUT = 256
TRAINING = 40_000


def tokenizer() -> PreTrainedTokenizerFast:
    """Every symbol of the task is one token."""
    vocabulary = {name: number for number, name in enumerate([*SPECIAL, *SYMBOLS])}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        model_max_length=LENGTH,
        clean_up_tokenization_spaces=False,
    )


def model(vocabulary: int, layers: int = 2, hidden: int = 128) -> Qwen3ForCausalLM:
    """0.3 million parameters, unless another shape is asked for; `hidden` is a multiple of 64."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            head_dim=32,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            dtype="float32",
        )
    )


def warm_up(
    learner: Qwen3ForCausalLM,
    words: PreTrainedTokenizerFast,
    excluded: list[str],
    rate: float = LEARNING_RATE,
    steps: int = STEPS,
) -> None:
    """Supervised steps on demonstrations for prompts that are not held out."""
    rng = random.Random(1)
    without = set(excluded)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=rate, weight_decay=0.0)
    for step in range(1, steps + 1):
        drawn = (draw(rng, evenly=number < EVEN) for number in range(2 * BATCH))
        prompts = [prompt for prompt in drawn if prompt not in without][:BATCH]
        batch = sorted(([*words.encode(p + demonstration(p, rng, SLIPS)), 1] for p in prompts), key=len)
        answers = sum(map(len, batch)) - PROMPT * len(batch)
        optimizer.zero_grad()
        loss = 0.0
        for rows in (batch[first : first + MICRO_BATCH] for first in range(0, BATCH, MICRO_BATCH)):
            ids = torch.tensor([row + [0] * (len(rows[-1]) - len(row)) for row in rows])
            labels = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
            labels[:, : PROMPT - 1] = -100
            part = cross_entropy(learner(ids[:, :-1]).logits.transpose(1, 2), labels, reduction="sum") / answers
            part.backward()
            loss += part.item()
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / 20)
        optimizer.step()
        if step % 10 == 0:
            print(f"warm-up step {step}/{steps}: loss {loss:.3f}", flush=True)


def write_rows(file: Path, prompts: list[str], longest: int) -> None:
    """One JSON object per line; `length` is the domain."""
    rows = (
        {"prompt": p, "answer": answer(p), "length": "longest" if number_of(p) >= longest else "usual"} for p in prompts
    )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Write model and data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS, help="number of warm-up steps (default: %(default)s)")
    options = parser.parse_args()
    directory: Path = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(
        1
    )  # operations this small gain nothing from a second one, and lose much where CPUs are shared
    kept_apart = held_out(HELD_OUT)
    words = tokenizer()
    learner = model(len(words))
    warm_up(learner, words, kept_apart, steps=options.steps)
    learner.save_pretrained(directory / "model")
    words.save_pretrained(directory / "model")
    longest = sorted(number_of(prompt) for prompt in kept_apart)[-(HELD_OUT // 10)]
    write_rows(directory / "heldout.jsonl", kept_apart, longest)
    write_rows(directory / "train.jsonl", training(TRAINING, kept_apart), longest)
    for file in [*directory.glob("*.jsonl"), *(directory / "model").iterdir()]:
        file.chmod(0o644)  # pods run under another user
    print(f"wrote {directory}: the longest decile of the held-out prompts starts at {longest}", flush=True)


if __name__ == "__main__":
    main()
