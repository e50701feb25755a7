"""Canaries: responses that are known to be right or wrong, which show whether a reward can tell the two apart. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import CANARY_STEPS, RewardSpec
from longboat_runtime.data.prompts import column
from longboat_runtime.reward.tasks import is_shaping
from longboat_runtime.samples import FinishReason, GeneratedSample, Row, SampleId, Sampling, Segment
from longboat_runtime.scores import all_equal, exceeds
from longboat_runtime.special_tokens import response_text
from longboat_runtime.templates import TEMPLATE_ERRORS, compiled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# No answer of any task, and no program.
_WRONG_ANSWER, _WRONG_PROGRAM = "-", "raise SystemExit(1)"
_FENCE = "```"

# Makes the right and the wrong response to a row; None for a row that has no answer. Raises ValueError if that fails.
Responses = Callable[[Row], tuple[str, str] | None]


@dataclass(frozen=True, slots=True)
class Canary:
    """The canary of one reward, whose path in the spec is `field`."""

    reward: RewardSpec
    field: str
    responses: Responses
    every_steps: int


def canaries(rewards: Sequence[RewardSpec], *, implied: bool = True) -> list[Canary]:
    """Makes the canaries of a job: those in the spec and, if `implied`, those that kinds of rewards have by themselves.

    Jobs with environments have no implied ones: what is graded there is an episode, not a response. ReasoningGym has the row's own answer,
    in its tag; Sandbox has the program in the column `sandbox.solution`. Raises SpecProblem for a template that can't be compiled.
    """
    made = []
    for index, reward in enumerate(rewards):
        field = f"spec.rewards[{index}]"
        every_steps = reward.canary.every_steps if reward.canary else CANARY_STEPS
        if (
            every_steps
            and not is_shaping(reward, rewards)
            and (responses := _responses(reward, field, implied=implied)) is not None
        ):
            made.append(Canary(reward, field, responses, every_steps))
    return made


def _responses(reward: RewardSpec, field: str, *, implied: bool) -> Responses | None:
    if (canary := reward.canary) is not None and canary.right is not None and canary.wrong is not None:
        return _from_templates(canary.right, canary.wrong, f"{field}.canary")
    if not implied:
        return None
    if reward.kind is RewardKind.REASONING_GYM:
        return partial(_from_answer, tag=str(reward.parameters.get("tag") or ""))
    if reward.sandbox is not None and (solution := reward.sandbox.solution):
        return partial(_from_solution, path=solution, field=f"{field}.sandbox.solution")
    return None


def _from_templates(right: str, wrong: str, field: str) -> Responses:
    templates = {
        name: compiled(text, f"{field}.{name}", Reason.SPEC_INVALID)
        for name, text in (("right", right), ("wrong", wrong))
    }

    def responses(row: Row) -> tuple[str, str]:
        columns, texts = {"ground_truth": row.ground_truth, **row.columns}, []
        for name, template in templates.items():
            try:
                texts.append(template.render(columns))
            except TEMPLATE_ERRORS as error:
                message = f"the canary's template {name!r} fails for row {row.prompt.row}: {error}; the row has {', '.join(columns)}"
                raise ValueError(message) from error
        return texts[0], texts[1]

    return responses


def _from_answer(row: Row, tag: str) -> tuple[str, str] | None:
    begin, end = (f"<{tag}>", f"</{tag}>") if tag else ("", "")
    answer = row.columns.get("answer")
    return None if answer is None else (f"{begin}{answer}{end}", f"{begin}{_WRONG_ANSWER}{end}")


def _from_solution(row: Row, path: str, field: str) -> tuple[str, str] | None:
    try:
        program = column(row.columns, path, field, f"row {row.prompt.row}")
    except SpecProblem as problem:
        raise ValueError(problem.message) from problem
    if not isinstance(program, str) or not program.strip():
        return None
    return program if _FENCE in program else _fenced(program), _fenced(_WRONG_PROGRAM)


def _fenced(program: str) -> str:
    return f"{_FENCE}\n{program}\n{_FENCE}"


def as_response(
    sample: SampleId,
    prompt: Sequence[int],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
    special: Mapping[int, str],
    sampling: Sampling,
) -> GeneratedSample:
    """Makes the sample that an engine would return had the model drawn this text, and then the end of its response.

    `special` are the texts of the tokenizer's special tokens, by id.
    """
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    end = tokenizer.eos_token_id
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], *([] if end is None else [end])]
    ids = _until_stop_token(ids, {*sampling.stop_token_ids, end})
    ids, shown = _until_stop_text(ids, decode, sampling)
    reason = FinishReason.LENGTH if len(ids) > sampling.max_tokens else FinishReason.STOP
    if reason is FinishReason.LENGTH:
        ids, shown = ids[: sampling.max_tokens], None
    shown, left_out = response_text(ids, shown, reason, sampling, special, decode)
    segment = Segment.single_turn(
        np.array(prompt, np.int32), np.array(ids, np.int32), np.zeros(len(ids), np.float32), ()
    )
    return GeneratedSample(
        sample,
        (segment,),
        reason,
        shown,
        "canary",
        evaluation=True,
        special=left_out,
    )


def _until_stop_token(ids: list[int], stops: Collection[int | None]) -> list[int]:
    end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
    return ids[: end + 1]


def _until_stop_text(
    ids: list[int], decode: Callable[[Sequence[int]], str], sampling: Sampling
) -> tuple[list[int], str | None]:
    """Returns the tokens up to the one that completes a stop text, and the text that is left then; all and None without a stop text."""
    whole = decode(ids)
    ends = [(place, stop) for stop in sampling.stop if (place := whole.find(stop)) >= 0]
    if not ends:
        return ids, None
    place, stop = min(ends)
    # The first tokens whose text has it: the more tokens, the longer the text.
    count = bisect_left(range(len(ids)), True, key=lambda count: stop in decode(ids[:count]))
    return ids[:count], whole[: place + len(stop) if sampling.include_stop else place]


@dataclass(frozen=True, slots=True)
class CanaryScores:
    """The scores that a reward gave the canaries of one row: a right response, the same one again, a wrong one and an empty one.

    A score is None if there is none: the grade timed out, failed, or doesn't apply. `message` says why the right response has none.
    """

    row: int
    right: float | None
    again: float | None
    wrong: float | None
    empty: float | None
    message: str = ""


def suspicion(checked: Sequence[CanaryScores]) -> str | None:
    """Says why a reward is suspect; None if it isn't.

    It is suspect if a response graded twice got different scores, or if no right response got a score. It also is if for at least half of
    the rows the right response got no more than the wrong one, or than the empty one. Half, since some rows of most datasets are wrong.
    """
    scored = [(scores, scores.right) for scores in checked if scores.right is not None]
    if checked and not scored:
        return f"none of {len(checked)} right responses got a score ({checked[0].message or 'it timed out, or the reward gave none'})"
    for scores, right in scored:
        if scores.again is not None and not all_equal([right, scores.again]):
            return f"one response to row {scores.row} got {right:g} and then {scores.again:g}"
    for response, others in (
        ("a wrong response", [(scores.row, right, scores.wrong) for scores, right in scored]),
        ("an empty response", [(scores.row, right, scores.empty) for scores, right in scored]),
    ):
        pairs = [(row, right, other) for row, right, other in others if other is not None]
        alike = [pair for pair in pairs if not exceeds(pair[1], pair[2])]
        if alike and 2 * len(alike) >= len(pairs):
            row, right, other = alike[0]
            return f"in {len(alike)} of {len(pairs)} rows {response} got at least as much as a right one (row {row}: {other:g} and {right:g})"
    return None
