"""Token ids of contexts: those of a whole list of messages, and those that a chat template puts behind a reply."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longboat_runtime.data.chat import Chat, has_content
from longboat_runtime.data.messages import Message
from longboat_runtime.recorder.refusals import Refused, invalid
from longboat_runtime.samples import FinishReason, IntArray, Sampling, SpecialToken
from longboat_runtime.special_tokens import response_text, special_texts
from longboat_runtime.templates import TEMPLATE_ERRORS
from longboat_runtime.turns import TurnReply

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Tools = Sequence[Mapping[str, Any]] | None

# Stands for a reply in a rendered text. No message has it, since it is random and never leaves this process.
_MARK = f"reply{secrets.token_hex(12)}"


class Contexts:
    """Renders and tokenizes what the model reads.

    `stop_token_ids` are all tokens that end a turn: those of the tokenizer, of the model's generation config and of the job.
    """

    def __init__(self, chat: Chat, tokenizer: PreTrainedTokenizerBase, stop_token_ids: Collection[int]) -> None:
        self._chat, self._tokenizer = chat, tokenizer
        # Those with a text that only they have: a template's text is searched for them.
        special = tokenizer.added_tokens_decoder
        self._stops = [special[token].content for token in stop_token_ids if token in special]

    def whole(self, messages: Sequence[Message], tools: Tools, arguments: Mapping[str, Any]) -> IntArray:
        """Returns the ids of all messages and of the beginning of the model's turn.

        Raises Refused if the template fails for them, or leaves out messages, tools or arguments.
        """
        try:
            ids = self._ids(self._chat.text(messages, tools, arguments))
        except TEMPLATE_ERRORS as error:
            raise invalid(
                "messages", f"can't be rendered: the model's chat template fails for them, {error}."
            ) from error
        if not len(ids):
            raise invalid("messages", "have no tokens.")
        return ids

    def suffix(
        self,
        messages: Sequence[Message],
        new: int,
        tools: Tools,
        arguments: Mapping[str, Any],
        drawn: TurnReply,
    ) -> IntArray | None:
        """Returns what the template puts behind a reply: the end of its turn, the messages from `new` on, the beginning of the next turn.

        The reply is the message before. The token that ends its turn is left out if it was `drawn`. Reasoning and white space that the
        template would drop from messages before aren't looked at: the context keeps what was drawn.

        None if the template doesn't append: if it fails, if what follows the reply can't be told apart, or if it lacks a new message.
        """
        ids = self._behind(messages, new, tools, arguments)
        if ids is None:
            return None
        stopped = drawn.finish_reason is FinishReason.STOP and len(ids) and len(drawn.token_ids)
        return ids[1:] if stopped and ids[0] == drawn.token_ids[-1] else ids

    def _behind(
        self, messages: Sequence[Message], new: int, tools: Tools, arguments: Mapping[str, Any]
    ) -> IntArray | None:
        """Returns the ids behind the reply, from the token that ends its turn on."""
        reply = messages[new - 1]
        calls = reply.get("tool_calls")
        marked: Message = {**reply, "content": _MARK}
        if calls:
            last = {**calls[-1], "function": {**calls[-1]["function"], "arguments": {"text": _MARK}}}
            marked = {**reply, "tool_calls": [*calls[:-1], last]}
        try:
            text = self._chat.unchecked_text([*messages[: new - 1], marked, *messages[new:]], tools, arguments)
        except TEMPLATE_ERRORS:
            return None
        _, mark, tail = text.rpartition(_MARK)
        if not mark:
            return None
        ends = [place for stop in self._stops if (place := tail.find(stop)) >= 0]
        # Behind a tool call, the template first closes it, as the model has done, and then ends the turn.
        tails = [tail[min(ends) :]] if ends else []
        tails += [] if calls else [tail]
        whole = (text for text in tails if all(has_content(text, message) for message in messages[new:]))
        text = next(whole, "")
        return self._ids(text) if text else None

    def appends(self, messages: Sequence[Message], tools: Tools, arguments: Mapping[str, Any]) -> bool:
        """Whether the template appends the result of a tool to these messages and a call of it or, without tools, a user's message."""
        reply: Message = {"role": "assistant", "content": ""}
        new: Message = {"role": "user", "content": "text"}
        if tools:
            call = {"id": "call00000", "type": "function", "function": {"name": tools[0]["function"]["name"]}}
            reply, new = (
                {**reply, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call00000", "content": "text"},
            )
        return self._behind([*messages, reply, new], len(messages) + 1, tools, arguments) is not None

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Returns the text of each token."""
        return [str(self._tokenizer.decode([token])) for token in token_ids]

    def response(
        self, token_ids: Sequence[int], text: str, reason: FinishReason, sampling: Sampling
    ) -> tuple[str, tuple[SpecialToken, ...]]:
        """Returns the text of a turn without special tokens, and those; `text` has them, and ends before what ended the turn."""
        special = special_texts(self._tokenizer)
        for token in special.values():
            text = text.replace(token, "")

        def decode(ids: Sequence[int]) -> str:
            return str(self._tokenizer.decode(ids, skip_special_tokens=True))

        return response_text(token_ids, text, reason, sampling, special, decode)

    def _ids(self, text: str) -> IntArray:
        try:
            return np.asarray(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        except (TypeError, UnicodeError) as error:  # half of a surrogate pair
            raise invalid("messages", "have text that isn't Unicode.") from error


def not_appended() -> Refused:
    """Returns the refusal of a request whose context can't be appended to, where the environment wants nothing else."""
    return Refused(
        "The model's chat template doesn't append these messages to the reply before them, with these tools, and the environment has "
        "`history: Append`. Remove that, so that each request is trained in a context of its own, or give the model a template that appends.",
        code="history_not_appended",
        param="messages",
    )
