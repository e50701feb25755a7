"""Conversions between our requests and samples and those of vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from longboat_runtime.samples import (
    FinishReason,
    FloatArray,
    GeneratedSample,
    IntArray,
    Repetition,
    SampleRequest,
    Segment,
    VersionSpan,
    continued_seed,
    first_tokens,
    joined,
)
from longboat_runtime.special_tokens import response_text
from longboat_runtime.turns import TurnReply, TurnRequest

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensInput
    from vllm.outputs import WeightVersionSpan

# Lower goes first: the parity probe runs before samples that wait.
PROBE_PRIORITY = -1

# What an engine draws for, and the first part of it that another engine has drawn.
Request = SampleRequest | TurnRequest
Part = GeneratedSample | TurnReply


def check_request(request: Request, max_length: int, vocabulary: int) -> None:
    """Raises ValueError if the engine could not draw a single token."""
    name, ids = _name(request), np.asarray(request.prompt_ids)
    if not len(ids):
        raise ValueError(f"{name} has an empty prompt")
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise ValueError(f"{name} has prompt tokens outside the vocabulary of {vocabulary}")
    if len(ids) >= max_length:
        raise ValueError(f"{name} has a prompt of {len(ids)} tokens; prompt and response may have {max_length}")


def check_sampling(request: Request, begun: Part | None) -> None:
    """Raises ValueError for parameters that vLLM refuses. Its own error would end the engine, and others would have to import its class."""
    from vllm.exceptions import VLLMValidationError

    try:
        sampling_params(request, begun)
    except (ValueError, VLLMValidationError) as error:
        raise ValueError(f"{_name(request)}: {error}") from None


def _name(request: Request) -> str:
    if isinstance(request, SampleRequest):
        return f"sample {request.id}"
    return f"turn {request.number} of sample {request.sample}"


def tokens(ids: Sequence[int]) -> TokensInput:
    """Makes vLLM's prompt of token ids."""
    from vllm.inputs import TokensInput

    return TokensInput(type="token", prompt_token_ids=list(ids))


def prompt_of(request: Request, begun: Part | None) -> TokensInput:
    """Returns what the engine continues: the prompt, and the part of the response that there is."""
    prompt = request.prompt_ids.tolist() if isinstance(request, TurnRequest) else request.prompt_ids
    return tokens([*prompt, *(begun.token_ids.tolist() if begun else ())])


def sampling_params(request: Request, begun: Part | None = None) -> SamplingParams:
    """Makes vLLM's parameters for a request.

    They ask for the final output only: it has all tokens drawn for the request, their log-probs and version spans, also if it is aborted.
    Text is decoded by vLLM only if it has to look for stop strings, since that costs time at every token. That of a turn has special
    tokens.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind

    sampling, loop = request.sampling, request.sampling.repetition
    drawn = len(begun.token_ids) if begun else 0
    if isinstance(request, TurnRequest):
        seed, special = continued_seed(request.seed, drawn), True
    else:
        seed, special = request.next_seed, False
    return SamplingParams(
        max_tokens=sampling.max_tokens - drawn,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        include_stop_str_in_output=sampling.include_stop,
        seed=seed,
        repetition_detection=RepetitionDetectionParams(loop.pattern_tokens, 1, loop.count) if loop else None,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        skip_special_tokens=not special,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def continue_text(state: Any, request: Request, begun: Part | None) -> None:
    """Makes vLLM look for stop strings in the whole response, of which `begun` is the first part. `state` is its RequestState."""
    if begun is not None and request.sampling.stop:
        state.detokenizer.output_text = begun.text + state.detokenizer.output_text


def probe_params() -> SamplingParams:
    """Makes parameters that ask for the log-probs of a prompt, and for one token that is thrown away."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def generated_sample(
    request: SampleRequest,
    begun: GeneratedSample | None,
    output: RequestOutput,
    engine: str,
    tokenizer: Any,
    special: Mapping[int, str],
) -> GeneratedSample:
    """Makes the sample of a request that began with the tokens of `begun`, if that is given. `output` is its final output.

    `special` are the texts of the tokenizer's special tokens, by id.
    """
    drawn = _drawn(request, begun, output)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    vllm_text = drawn.text if request.sampling.stop else None
    ids, reason = drawn.token_ids.tolist(), drawn.reason
    text, left_out = response_text(ids, vllm_text, reason, request.sampling, special, decode)
    prompt_ids = np.asarray(request.prompt_ids, dtype=np.int32)
    return GeneratedSample(
        id=request.id,
        segments=(Segment.single_turn(prompt_ids, drawn.token_ids, drawn.logprobs, drawn.spans),),
        finish_reason=reason,
        text=text,
        engine=engine,
        evaluation=request.evaluation,
        special=left_out,
    )


def turn_reply(request: TurnRequest, begun: TurnReply | None, output: RequestOutput, tokenizer: Any) -> TurnReply:
    """Makes the reply of a turn that began with the tokens of `begun`, if that is given. `output` is its final output.

    Its text has all but what ended it, as that of vLLM's chat endpoint: the end token, or a stop text, unless `Sampling.include_stop`.
    Its message isn't parsed yet: its content is that text.
    """
    drawn = _drawn(request, begun, output)
    text, ids, sampling = drawn.text, drawn.token_ids.tolist(), request.sampling
    if text is None or not drawn.stop_text:
        shown = drawn.reason is not FinishReason.STOP or (sampling.include_stop and ids[-1] in sampling.stop_token_ids)
        text = tokenizer.decode(ids if shown else ids[:-1], skip_special_tokens=False)
    message = {"role": "assistant", "content": text}
    return TurnReply(drawn.token_ids, drawn.logprobs, drawn.spans, drawn.reason, text, message)


class _Drawn(NamedTuple):
    """Holds what was drawn for a request, by all engines. `text` is vLLM's, or None; `stop_text`: a stop text has ended it."""

    token_ids: IntArray
    logprobs: FloatArray
    spans: tuple[VersionSpan, ...]
    reason: FinishReason
    text: str | None
    stop_text: bool


def _drawn(request: Request, begun: Part | None, output: RequestOutput) -> _Drawn:
    completion = output.outputs[0]
    token_ids = np.asarray(completion.token_ids, dtype=np.int32)
    logprobs, spans = _sampled_logprobs(completion.logprobs, len(token_ids)), _spans(completion.weight_versions or ())
    reason = FinishReason(completion.finish_reason)
    if begun is not None:
        token_ids = np.concatenate([begun.token_ids, token_ids])
        logprobs, spans = np.concatenate([begun.logprobs, logprobs]), joined(begun.spans, spans)
        if end := repetition_end(token_ids, len(begun.token_ids), request.sampling.repetition):
            cut = first_tokens(spans, end)
            return _Drawn(token_ids[:end], logprobs[:end], cut, FinishReason.REPETITION, None, stop_text=False)
    return _Drawn(token_ids, logprobs, spans, reason, completion.text, isinstance(completion.stop_reason, str))


def repetition_end(token_ids: IntArray, begun: int, loop: Repetition | None) -> int | None:
    """Returns after how many tokens a response that continued after `begun` tokens repeats itself; None without such an end or a `loop`.

    It looks at no more than `loop.pattern_tokens` x `loop.count` tokens after `begun`: no copies that began before reach further.

    vLLM sees only what it has drawn itself since then, so it ends such a response late: by the copies that came before. The rule is
    vLLM's: the last tokens are `count` copies of a pattern if as many of them as `count` - 1 copies have are equal to the token one
    pattern earlier.
    """
    if loop is None:
        return None
    longest = loop.pattern_tokens * loop.count
    first = max(0, begun + 1 - longest)
    window = token_ids[first : begun + longest]
    ends = []
    for period in range(1, min(loop.pattern_tokens, len(window) // loop.count) + 1):
        same = window[period:] == window[:-period]
        places = np.arange(len(same))
        in_a_row = places - np.maximum.accumulate(np.where(same, -1, places))
        repeated = np.flatnonzero(in_a_row >= period * (loop.count - 1)) + first + period + 1
        ends += repeated[repeated > begun][:1].tolist()
    return min(ends, default=None)


def unstarted_sample(request: SampleRequest, begun: GeneratedSample | None, engine: str) -> GeneratedSample:
    """Makes an aborted sample without a token of this engine: what `begun` has, if that is given."""
    if begun is not None:
        return replace(begun, engine=engine)
    segment = Segment.single_turn(
        np.asarray(request.prompt_ids, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32), ()
    )
    return GeneratedSample(
        id=request.id,
        segments=(segment,),
        finish_reason=FinishReason.ABORT,
        text="",
        engine=engine,
        evaluation=request.evaluation,
    )


def probe_logprobs(ids: Sequence[int], output: RequestOutput) -> list[float]:
    """Reads the log-probs of the probe's tokens, all but the first, from the output of a request made with `probe_params`."""
    scored = output.prompt_logprobs
    if scored is None or len(scored) != len(ids):
        raise RuntimeError(f"vLLM scored {0 if scored is None else len(scored)} of {len(ids)} probe tokens")
    return [float(scored[i][token].logprob) for i, token in enumerate(ids) if i > 0]


def _sampled_logprobs(flat: Any, count: int) -> np.ndarray:
    """Returns the log-probs of the `count` drawn tokens, each the first at its position."""
    if count == 0:
        return np.zeros(0, dtype=np.float32)
    positions = flat.start_indices
    if len(positions) != count:
        raise RuntimeError(f"vLLM gave {len(positions)} log-probs for {count} tokens")
    return np.asarray([flat.logprobs[i] for i in positions], dtype=np.float32)


def _spans(spans: Iterable[WeightVersionSpan]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(int(span.version), span.start, span.end) for span in spans)
