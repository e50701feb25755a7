"""A recorder without a model: tokenizers with chat templates of known families, and an engine that draws by the seed of a turn."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from longboat_runtime.data.chat import Chat
from longboat_runtime.recorder.contexts import Contexts
from longboat_runtime.recorder.parameters import read_request
from longboat_runtime.recorder.record import Call, Launch, Limits, Record
from longboat_runtime.samples import FinishReason, SampleId, Sampling, VersionSpan
from longboat_runtime.turns import TurnReply, TurnRequest
from tests.data.opening import STARTED

MODEL = "policy"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Says {name}.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        },
    }
    for name in ("look", "move")
]
# The tokens that end a turn of a model with the template, by TRL's name of the template.
STOPS = {
    "deepseekv3": ["<\uff5cend▁of▁sentence\uff5c>"],
    "gemma3": ["<end_of_turn>"],
    "gemma4": ["<turn|>", "<|tool_response>"],
    "glm4moe": ["<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|call|>"],
    "lfm2_v2": ["<|im_end|>"],
    "llama3_1": ["<|eot_id|>", "<|eom_id|>"],
    "nemotron_3_nano": ["<|im_end|>"],
    "phi3": ["<|end|>"],
    "qwen2_5": ["<|im_end|>"],
    "qwen3": ["<|im_end|>"],
    "qwen3_5_think": ["<|im_end|>"],
}
_MORE_SPECIAL = ("<|im_start|>", "<|endoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|assistant|>")


# Templates that render one tool call of a message, or none.
ONE_CALL, NO_CALLS = {"gptoss", "llama3_1"}, {"deepseekv3", "gemma3", "phi3"}


def template(name: str) -> str:
    return Path(trl.__file__).parent.joinpath("chat_templates", f"{name}.jinja").read_text()


def stops_of(name: str) -> list[str]:
    """The texts of the tokens that end a turn, the usual one first."""
    usual = ("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|end|>", "<turn|>", "<|tool_response>", "<end_of_turn>")
    return STOPS.get(name) or [*(token for token in usual if token in template(name)), "<eos>"]


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that has learned from this repository's documentation, with the template of that name."""
    text = template(name)
    special = [*{*stops_of(name), *(token for token in _MORE_SPECIAL if token in text), "<bos>", "<eos>"}]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([Path("docs/rewards.md").read_text(), text], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(special)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = text
    return fast


def stop_ids(name: str) -> list[int]:
    return [tokenizer_of(name).convert_tokens_to_ids(token) for token in stops_of(name)]


@cache
def contexts_of(name: str) -> Contexts:
    tokenizer = tokenizer_of(name)
    return Contexts(Chat(tokenizer, None, STARTED), tokenizer, stop_ids(name))


# Turns that nothing ends, or another token than usual; that have tokens which the tokenizer wouldn't make of their text; and others.
KINDS = ("text", "text", "call", "calls", "cut", "odd", "spaces", "reasoning", "other stop")


@dataclass
class Engine:
    """Draws a turn by its seed alone, and keeps a record of its own: what it drew behind which tokens.

    `kinds` are those of turns that it draws.
    """

    name: str
    kinds: Sequence[str]
    drawn: list[tuple[TurnRequest, list[int]]] = field(default_factory=list)

    def draw(self, request: TurnRequest) -> TurnReply:
        dice = random.Random(request.seed)
        tokenizer, stops = tokenizer_of(self.name), stop_ids(self.name)
        kind, word = dice.choice(self.kinds), dice.choice(["yes", "no", "left", "right"])
        message: dict[str, Any] = {"role": "assistant", "content": word}
        text = word
        if kind in ("call", "calls"):
            names = [dice.choice(["look", "move"]) for _ in range(1 if kind == "call" else 2)]
            arguments = json.dumps({"x": word, "n": dice.randint(0, 9)})
            text = "".join(f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>' for name in names)
            functions = [{"name": name, "arguments": arguments} for name in names]
            calls = [{"type": "function", "function": function} for function in functions]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        elif kind == "reasoning":
            text = f"<think>\nwell {word}\n</think>\n\n{word}"
            message["reasoning"] = f"well {word}"
        elif kind == "spaces":
            message["content"] = text = f"\n  {word} \n"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if kind == "odd":  # tokens that no tokenizer would make of their text
            ids = [dice.randrange(256) for _ in range(dice.randint(1, 6))]
            message["content"] = tokenizer.decode(ids)
        reason = FinishReason.LENGTH if kind == "cut" else FinishReason.STOP
        if kind != "cut":
            ids = [*ids, stops[-1] if kind == "other stop" else stops[0]]
        if len(ids) > request.sampling.max_tokens:
            ids, reason = ids[: request.sampling.max_tokens], FinishReason.LENGTH
            message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
        self.drawn.append((request, ids))
        logprobs = np.asarray([-dice.random() for _ in ids], np.float32)
        spans = (VersionSpan(request.number, 0, len(ids)),)
        return TurnReply(np.asarray(ids, np.int32), logprobs, spans, reason, tokenizer.decode(ids), message)

    async def turn(self, request: TurnRequest) -> TurnReply:
        return self.draw(request)


def launch_of(**changes: Any) -> Launch:
    sampling = changes.pop("sampling", Sampling(100_000, temperature=0.7, stop=("STOP",)))
    limits = changes.pop("limits", Limits(100_000))
    return Launch(SampleId(0, 3, 1, 2), changes.pop("seed", 17), sampling, limits, **changes)


def says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def body_of(messages: Sequence[Any], **more: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages, **more}).encode()


class Client:
    """A client of a record, without a network."""

    def __init__(self, record: Record, engine: Engine) -> None:
        self.record, self.engine = record, engine

    def begin(self, body: bytes, *, retried: bool = False) -> tuple[Call, TurnRequest | None]:
        launch = self.record.launch
        request = read_request(json.loads(body), MODEL, launch.sampling, launch.arguments, self.record.messages)
        return self.record.begin(body, request, retried)

    def complete(self, call: Call, turn: TurnRequest | None) -> None:
        if turn is not None:
            self.record.complete(call, self.engine.draw(turn), 0.1)

    def ask(self, messages: Sequence[Any], *, delivered: bool = True, **more: Any) -> Call:
        """Sends messages and takes the answer, or closes the connection before."""
        call, turn = self.begin(body_of(messages, **more))
        self.complete(call, turn)
        (self.record.deliver if delivered else self.record.close)(call)
        return call


def client_of(name: str = "qwen3", kinds: Sequence[str] | None = None, **launch: Any) -> Client:
    left_out = {"call", "calls"} if name in NO_CALLS else {"calls"} if name in ONE_CALL else set()
    engine = Engine(name, [kind for kind in KINDS if kind not in left_out] if kinds is None else kinds)
    return Client(Record(launch_of(**launch), contexts_of(name)), engine)
