"""The record of one launch of a sample: its calls, which of them were delivered, and what is trained of them. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from longboat_runtime.data.messages import Message
from longboat_runtime.recorder.contexts import Contexts, not_appended
from longboat_runtime.recorder.messages import (
    SentMessage,
    compared,
    digests,
    first_digest,
    reasoning_of,
    template_message,
)
from longboat_runtime.recorder.parameters import ChatRequest, turn_sampling
from longboat_runtime.recorder.refusals import BUDGET_SPENT, CONTEXT_FULL, Refused
from longboat_runtime.samples import FinishReason, IntArray, SampleId, Sampling
from longboat_runtime.trajectories import Turn
from longboat_runtime.turns import TurnReply, TurnRequest

_NOTHING: IntArray = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a sample. None: no bound.

    `context` is the tokens of a segment: what model and trainer's bin hold. `turns` and `segments` bound the sample, and `computed_tokens`
    the sum over its segments. What it draws in all turns is bounded by the job's `Sampling.max_tokens`.
    """

    context: int
    turns: int | None = None
    segments: int | None = None
    computed_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a sample. `append` says that the environment wants each list of tools to be one that the template appends to."""

    sample: SampleId
    seed: int
    sampling: Sampling
    limits: Limits
    arguments: Mapping[str, Any] = field(default_factory=dict)
    append: bool = False
    evaluation: bool = False


class Beginning(StrEnum):
    """Says why a request began a new segment.

    FIRST: there was none before. TOOLS: tools or template arguments are new. MESSAGES: its messages aren't an earlier call's, its reply and
    new ones. TEMPLATE: they are, but the chat template doesn't append the new ones.
    """

    FIRST = "first"
    TOOLS = "tools"
    MESSAGES = "messages"
    TEMPLATE = "template"


@dataclass(slots=True, eq=False)
class Call:
    """One request, whose `new` messages are those that its parent doesn't have, and what became of it.

    It was drawn behind `context` or, if it continues a `parent`, behind all tokens of that and then `context`; these are `length` tokens in
    all. `capped` says that the sample's bounds limit the turn, not the request. `differs` is the number of the first message that no earlier
    call has. `connections` are those that wait for the answer. `hashed` has all tokens before the turn, and then the turn's.
    """

    number: int
    body: bytes
    request: ChatRequest
    parent: Call | None
    context: IntArray
    length: int
    new: Sequence[Message]
    digest: bytes
    reasoning: tuple[str, ...]
    capped: bool = False
    seed: int = 0
    beginning: Beginning | None = None
    differs: int | None = None
    children: int = 0
    connections: int = 1
    hashed: blake2b = field(default_factory=lambda: blake2b(digest_size=16))
    reply: TurnReply | None = None
    message: Message = field(default_factory=dict)
    refusal: Refused | None = None
    delivered: bool = False
    seconds: float = 0.0

    @property
    def drawn(self) -> IntArray:
        return _NOTHING if self.reply is None else self.reply.token_ids

    @property
    def ids(self) -> IntArray:
        """All tokens before the turn."""
        parts, call = [self.context], self.parent
        while call is not None:
            parts += [call.drawn, call.context]
            call = call.parent
        return np.concatenate(parts[::-1])


class Exchange(NamedTuple):
    """A delivered turn, for people and rewards: `new` are the messages before it that the turn that it continues doesn't have."""

    new: Sequence[Message]
    message: Message
    text: str
    tokens: int
    finish_reason: FinishReason
    seconds: float
    continues: int | None
    beginning: str | None
    differs: int | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What a launch has recorded: the delivered turns, in the order of their requests, and counts.

    `truncated`: a budget of the sample was spent, or its last turn had no more room. `undelivered` counts turns that nobody received,
    `ignored` keys of requests that don't hold.
    """

    turns: tuple[Turn, ...]
    exchanges: tuple[Exchange, ...]
    truncated: bool
    undelivered: int
    repeats: int
    ignored: Mapping[str, int]

    @property
    def finish_reason(self) -> FinishReason:
        """LENGTH if the sample is truncated, else that of its last turn."""
        return FinishReason.LENGTH if self.truncated or not self.exchanges else self.exchanges[-1].finish_reason


def turn_seed(seed: int, context: bytes, earlier: int) -> int:
    """Returns 31 bits of blake2b over the sample's seed, how many turns of the launch were drawn behind this context, and its digest.

    So a launch that is played again draws the same, whatever the order of its requests; equal requests draw different turns.
    """
    data = f"{seed}/{earlier}/".encode() + context
    return int.from_bytes(blake2b(data, digest_size=4).digest(), "big") >> 1


class Record:
    """Keeps the calls of one launch, and decides what each request is."""

    def __init__(self, launch: Launch, contexts: Contexts) -> None:
        self.launch, self._contexts = launch, contexts
        # Those of the calls, by their digests as they were sent: calls share them, and a request isn't read but for what is new in it.
        self.messages: dict[bytes, SentMessage] = {}
        self._calls: list[Call] = []
        # Complete calls by the digest of their conversation, reply included; those by body whose answer nobody has received.
        self._complete: dict[bytes, list[Call]] = defaultdict(list)
        self._undelivered: dict[bytes, list[Call]] = defaultdict(list)
        self._prefixes: set[bytes] = set()
        self._contexts_before: Counter[bytes] = Counter()
        self._ignored: Counter[str] = Counter()
        self._drawn = self._computed = self._segments = self._repeats = 0
        # Whether a budget was spent; whether the last turn had no more room.
        self._spent = self._full = False

    def begin(self, body: bytes, request: ChatRequest, retried: bool) -> tuple[Call, TurnRequest | None]:
        """Begins a call, and returns what is to be drawn; None if the request repeats a call, which gets the same answer.

        A request repeats a call whose body it has and whose answer wasn't delivered: one that no connection waits for any more or, if the
        client says that it has `retried`, any. Raises Refused.
        """
        body = blake2b(body, digest_size=16).digest()
        undelivered = self._undelivered.get(body, [])
        waiting = [call for call in undelivered if not call.connections]
        if retried and not waiting:
            waiting = [call for call in undelivered if call.connections == 1]
        if waiting:
            self._repeats += 1
            waiting[0].connections += 1
            return waiting[0], None
        start = first_digest(request.tools, request.arguments)
        prefixes = digests(start, [sent.compared for sent in request.messages])
        call = self._new_call(body, request, start, prefixes)
        turn = self._turn(call, call.ids)
        self._accept(call)
        self._prefixes.update((start, *prefixes))
        return call, turn

    def _new_call(self, body: bytes, request: ChatRequest, start: bytes, prefixes: Sequence[bytes]) -> Call:
        """Returns the call of a request that repeats none: what it continues, and its context.

        `start` and `prefixes` are the digests of its messages. A request continues a call if only new messages, none of the assistant, follow
        that call's messages and its reply. Of several such calls, the newest that was delivered is meant.
        """
        messages = [sent.message for sent in request.messages]
        if (
            self.launch.append
            and start not in self._prefixes
            and not self._contexts.appends(messages, request.tools, request.arguments)
        ):
            raise not_appended()
        replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        new = replies[-1] + 1 if replies else 0
        reasoning = tuple(reasoning_of(messages[number]) for number in replies)
        equal = self._complete.get(prefixes[new - 1], []) if new else []
        unlike = [_first_unlike(call.reasoning, reasoning) for call in equal]
        candidates = [call for call, number in zip(equal, unlike, strict=True) if number is None]
        parent = max(candidates, key=lambda call: (call.delivered, call.number), default=None)
        context = beginning = differs = None
        if parent is not None and parent.reply is not None:
            context = self._contexts.suffix(messages, new, request.tools, request.arguments, parent.reply)
            if context is None and self.launch.append:
                raise not_appended()
        if context is None:
            beginning, differs = self._difference(start, prefixes, parent is not None)
            if equal and parent is None and unlike[-1] is not None:
                differs = replies[unlike[-1]]
            context = self._contexts.whole(messages, request.tools, request.arguments)
            parent, new = None, 0
        return Call(
            number=len(self._calls),
            body=body,
            request=request,
            parent=parent,
            context=context,
            length=len(context) + (0 if parent is None else parent.length + len(parent.drawn)),
            new=messages[new:],
            digest=prefixes[-1],
            reasoning=reasoning if parent is None else parent.reasoning,
            beginning=beginning,
            differs=differs,
        )

    def _difference(self, start: bytes, prefixes: Sequence[bytes], continues: bool) -> tuple[Beginning, int | None]:
        """Says why a request begins a segment, and which of its messages is the first that no earlier call has."""
        if not self._calls:
            return Beginning.FIRST, None
        if start not in self._prefixes:
            return Beginning.TOOLS, None
        if continues:
            return Beginning.TEMPLATE, None
        return Beginning.MESSAGES, next((n for n, digest in enumerate(prefixes) if digest not in self._prefixes), None)

    def _turn(self, call: Call, ids: IntArray) -> TurnRequest:
        """Returns what is drawn for a call. Raises Refused if a bound leaves no room for it."""
        launch, limits = self.launch, self.launch.limits
        if limits.turns is not None and len(self._calls) >= limits.turns:
            raise self._budget("turns", "maxTurns", limits.turns)
        if self._drawn >= launch.sampling.max_tokens:
            raise self._budget("drawn tokens", "maxTokens", launch.sampling.max_tokens)
        if call.length >= limits.context:
            self._full = True
            raise Refused(
                f"The context has {call.length} tokens; with its replies it may have {limits.context}, which is what the model and a bin of "
                "the trainer hold. Send fewer or shorter messages.",
                code=CONTEXT_FULL,
                param="messages",
            )
        branches = call.parent is None or call.parent.children > 0
        if branches and limits.segments is not None and self._segments >= limits.segments:
            raise self._budget("segments", "maxSegments", limits.segments)
        room = [launch.sampling.max_tokens - self._drawn, limits.context - call.length]
        if limits.computed_tokens is not None:
            room.append(limits.computed_tokens - self._computed - (call.length if branches else len(call.context)))
            if room[-1] < 1:
                raise self._budget("computed tokens", "maxComputedTokens", limits.computed_tokens)
        sampling = turn_sampling(launch.sampling, call.request, min(room))
        call.capped = call.request.max_tokens is None or call.request.max_tokens > sampling.max_tokens
        if call.parent is not None:
            call.hashed = call.parent.hashed.copy()
        call.hashed.update(np.ascontiguousarray(call.context, "<i4").tobytes())
        context = call.hashed.digest()
        call.seed = turn_seed(launch.seed, context, self._contexts_before[context])
        self._contexts_before[context] += 1
        return TurnRequest(
            sample=launch.sample,
            number=call.number,
            prompt_ids=ids,
            seed=call.seed,
            sampling=sampling,
            evaluation=launch.evaluation,
            tools=call.request.tools or (),
            template_arguments=call.request.arguments,
        )

    def _budget(self, what: str, name: str, limit: int) -> Refused:
        self._spent = True
        return Refused(
            f"The episode has no more {what}: {name} is {limit}. Return what the episode is worth so far.",
            code=BUDGET_SPENT,
        )

    def _accept(self, call: Call) -> None:
        branches = call.parent is None or call.parent.children > 0
        self._segments += branches
        self._computed += call.length if branches else len(call.context)
        if call.parent is not None:
            call.parent.children += 1
        self._ignored.update(call.request.ignored)
        self.messages.update((sent.as_sent, sent) for sent in call.request.messages)
        # `new` and the parents have the messages, the engine has the rest: what each request brings anew isn't kept for each call.
        call.request = replace(call.request, messages=(), tools=None, arguments={})
        self._calls.append(call)
        self._undelivered[call.body].append(call)

    def complete(self, call: Call, reply: TurnReply, seconds: float) -> None:
        """Takes the turn that was drawn for a call, in `seconds`.

        If turns that were drawn meanwhile have spent a budget, this one is refused: it is neither sent nor trained.
        """
        limits, launch = self.launch.limits, self.launch
        self._drawn += len(reply.token_ids)
        self._computed += len(reply.token_ids)
        self._full = call.capped and reply.finish_reason is FinishReason.LENGTH
        if self._drawn > launch.sampling.max_tokens:
            call.refusal = self._budget("drawn tokens", "maxTokens", launch.sampling.max_tokens)
        elif limits.computed_tokens is not None and self._computed > limits.computed_tokens:
            call.refusal = self._budget("computed tokens", "maxComputedTokens", limits.computed_tokens)
        call.seconds, call.reply, call.message = seconds, reply, self._identified(call, reply.message)
        call.hashed.update(np.ascontiguousarray(reply.token_ids, "<i4").tobytes())
        if call.refusal is None:
            message = template_message(call.message, "message")  # as a later request has it
            [call.digest] = digests(call.digest, [compared(message)])
            call.reasoning = (*call.reasoning, reasoning_of(message))
            self._prefixes.add(call.digest)
            self._complete[call.digest].append(call)

    def _identified(self, call: Call, message: Message) -> Message:
        """Gives tool calls ids: nine letters and digits, as some chat templates want them, and the same when a launch is played again."""
        if not (calls := message.get("tool_calls")):
            return message
        ids = [blake2b(f"{call.seed}/{n}".encode(), digest_size=5).hexdigest()[:9] for n in range(len(calls))]
        return {
            **message,
            "tool_calls": [
                {**tool_call, "id": id_, "type": "function"} for tool_call, id_ in zip(calls, ids, strict=True)
            ],
        }

    def deliver(self, call: Call) -> None:
        """Notes that a client has received the answer of a call."""
        call.connections -= 1
        call.delivered = call.refusal is None
        waiting = self._undelivered[call.body]
        if call in waiting:
            waiting.remove(call)
        if not waiting:
            del self._undelivered[call.body]

    def close(self, call: Call) -> None:
        """Notes that a connection has closed before all of the answer was written: the next request with this body gets it."""
        call.connections -= 1

    def recording(self) -> Recording:
        """Returns what the launch has recorded so far."""
        delivered = [call for call in self._calls if call.delivered]
        numbers = {call.number: number for number, call in enumerate(delivered)}
        turns, exchanges = [], []
        for call in delivered:
            assert call.reply is not None
            context, new, first, parent = [call.context], [call.new], call, call.parent
            while parent is not None and not parent.delivered:
                context += [parent.drawn, parent.context]
                new += [[parent.message], parent.new]
                first, parent = parent, parent.parent
            continues = None if parent is None else numbers[parent.number]
            reply = call.reply
            turns.append(Turn(np.concatenate(context[::-1]), reply.token_ids, reply.logprobs, reply.spans, continues))
            exchanges.append(
                Exchange(
                    new=[message for messages in reversed(new) for message in messages],
                    message=call.message,
                    text=reply.text,
                    tokens=len(reply.token_ids),
                    finish_reason=reply.finish_reason,
                    seconds=call.seconds,
                    continues=continues,
                    beginning=None if first.beginning is None else str(first.beginning),
                    differs=first.differs,
                )
            )
        undelivered = sum(call.reply is not None and not call.delivered for call in self._calls)
        return Recording(
            turns=tuple(turns),
            exchanges=tuple(exchanges),
            truncated=self._spent or self._full,
            undelivered=undelivered,
            repeats=self._repeats,
            ignored=dict(self._ignored),
        )


def _first_unlike(drawn: Sequence[str], sent: Sequence[str]) -> int | None:
    """Returns the first number at which a client sends other reasoning than a call has. It may leave reasoning out."""
    pairs = enumerate(zip(drawn, sent, strict=True))
    return next((number for number, (mine, yours) in pairs if mine and yours and mine != yours), None)
