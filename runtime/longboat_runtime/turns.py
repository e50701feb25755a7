"""Turns of a sample: what a recorder asks of an engine, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from longboat_runtime.data.messages import Message
from longboat_runtime.samples import FinishReason, FloatArray, IntArray, SampleId, Sampling, VersionSpan


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Holds what an engine needs to draw one turn: number `number`, from 0, of those that this launch of the sample has requested.

    `prompt_ids` are all tokens before the turn; `seed` is that of its first token. `sampling.max_tokens` counts the tokens of this turn
    alone, and `sampling.stop` is the request's. `tools` are those that the model may call, as the request has them, and
    `template_arguments` those of the chat template: some parsers read replies by both.
    """

    sample: SampleId
    number: int
    prompt_ids: IntArray
    seed: int
    sampling: Sampling
    evaluation: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnReply:
    """Holds what the model drew in a turn, and how the engine's parsers read it.

    `text` has special tokens. `message` is the assistant's: `content`, `reasoning` and `tool_calls`, whose arguments are JSON text. What
    can't be parsed is its content.
    """

    token_ids: IntArray
    logprobs: FloatArray
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    text: str
    message: Message


class EngineDeaths(Exception):
    """So many engines have died with a turn that it is given up: the same seed would kill the next one."""


class Turns(Protocol):
    """Draws turns."""

    async def turn(self, request: TurnRequest) -> TurnReply:
        """Returns the turn, whole. The death of an engine, a drain or a reshape delays it and doesn't fail it.

        Raises ValueError for a turn that no engine can draw, and EngineDeaths.
        """
