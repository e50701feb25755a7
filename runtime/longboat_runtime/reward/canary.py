"""Canaries: responses whose worth is known, which show whether a reward can tell right from wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import CANARY_STEPS, RewardSpec
from longboat_runtime.reward.tasks import is_shaping
from longboat_runtime.samples import FinishReason, GeneratedSample, Row, SampleId, Sampling
from longboat_runtime.scores import all_equal, exceeds
from longboat_runtime.special_tokens import special_texts, special_tokens
from longboat_runtime.templates import TEMPLATE_ERRORS, compiled

if TYPE_CHECKING:
    import jinja2
    from transformers import PreTrainedTokenizerBase

# No answer of any task, and no program.
_WRONG_ANSWER, _WRONG_PROGRAM = "-", "raise SystemExit(1)"


@dataclass(frozen=True, slots=True)
class Canary:
    """The canary of one reward: templates over a row's columns for a response that is right and one that is wrong.

    `field` is the path of the reward in the spec.
    """

    reward: RewardSpec
    field: str
    right: jinja2.Template
    wrong: jinja2.Template
    every_steps: int

    def texts(self, row: Row) -> tuple[str, str] | None:
        """Renders the right and the wrong response to a row; None if the row has no answer. Raises ValueError if a template fails."""
        columns = {"ground_truth": row.ground_truth, **row.columns}
        if (
            self.reward.kind is RewardKind.REASONING_GYM
            and self.reward.canary is None
            and row.columns.get("answer") is None
        ):
            return None
        if self.reward.domains and row.domain not in self.reward.domains:
            return None
        texts = []
        for name, template in (("right", self.right), ("wrong", self.wrong)):
            try:
                texts.append(template.render(columns))
            except TEMPLATE_ERRORS as error:
                message = f"the canary's template {name!r} fails for row {row.prompt.row}: {error}; the row has {', '.join(columns)}"
                raise ValueError(message) from error
        return texts[0], texts[1]


def canaries(rewards: Sequence[RewardSpec]) -> list[Canary]:
    """Makes the canaries of a job: those in the spec, and those that kinds of rewards have by themselves.

    ReasoningGym has the row's own answer, in its tag; Sandbox has the program in the column `sandbox.solution`. Raises SpecProblem for a
    template that can't be compiled.
    """
    made = []
    for index, reward in enumerate(rewards):
        field = f"spec.rewards[{index}]"
        every_steps = reward.canary.every_steps if reward.canary else CANARY_STEPS
        if is_shaping(reward, rewards) or not every_steps or (templates := _templates(reward)) is None:
            continue
        right, wrong = (
            compiled(text, f"{field}.canary.{name}", Reason.SPEC_INVALID)
            for name, text in zip(("right", "wrong"), templates, strict=True)
        )
        made.append(Canary(reward, field, right, wrong, every_steps))
    return made


def _templates(reward: RewardSpec) -> tuple[str, str] | None:
    if reward.canary is not None and reward.canary.right is not None and reward.canary.wrong is not None:
        return reward.canary.right, reward.canary.wrong
    if reward.kind is RewardKind.REASONING_GYM:
        tag = reward.parameters.get("tag")
        begin, end = (f"<{tag}>", f"</{tag}>") if tag else ("", "")
        return f"{begin}{{{{ answer }}}}{end}", f"{begin}{_WRONG_ANSWER}{end}"
    if reward.sandbox is not None and (solution := reward.sandbox.solution):
        return f"```\n{{{{ {_column(solution)} }}}}\n```", f"```\n{_WRONG_PROGRAM}\n```"
    return None


def _column(path: str) -> str:
    first, *rest = path.split(".")
    return first + "".join(f"[{part!r}]" for part in rest)


def as_response(
    sample: SampleId, prompt: Sequence[int], text: str, tokenizer: PreTrainedTokenizerBase, sampling: Sampling
) -> GeneratedSample:
    """Makes the sample that an engine would return had the model drawn this text: ended by what ends a response, without special tokens."""
    special = special_texts(tokenizer)
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    stops = {*sampling.stop_token_ids, tokenizer.eos_token_id}
    if (end := next((place for place, token in enumerate(ids) if token in stops), None)) is not None:
        ids = ids[: end + 1]
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    shown = decode(ids)
    ends = [(place, stop) for stop in sampling.stop if (place := shown.find(stop)) >= 0]
    if ends:
        place, stop = min(ends)
        shown = shown[: place + len(stop) if sampling.include_stop else place]
    return GeneratedSample(
        sample,
        np.array(prompt, np.int32),
        np.array(ids, np.int32),
        np.zeros(len(ids), np.float32),
        (),
        FinishReason.STOP,
        shown,
        "canary",
        evaluation=True,
        special=special_tokens(ids, shown, special, decode),
    )


@dataclass(frozen=True, slots=True)
class CanaryScores:
    """The scores that a reward gave the canaries of one row: a right response, the same one again, a wrong one and an empty one.

    A score is None if there is none: the grade timed out, failed, or doesn't apply.
    """

    row: int
    right: float | None
    again: float | None
    wrong: float | None
    empty: float | None


def suspicion(checked: Iterable[CanaryScores]) -> str | None:
    """Says why a reward is suspect; None if it isn't.

    It is suspect if a response graded twice got different scores. It also is if for at least half of the rows the right response got no more
    than the wrong one, or than the empty one: half, since some rows of most datasets have wrong answers.
    """
    whole = [scores for scores in checked if None not in (scores.right, scores.again, scores.wrong, scores.empty)]
    for scores in whole:
        if not all_equal([scores.right, scores.again]):  # type: ignore[list-item]
            return f"one response to row {scores.row} got {scores.right:g} and then {scores.again:g}"
    for name, response in (("wrong", "a wrong response"), ("empty", "an empty response")):
        alike = [scores for scores in whole if not exceeds(scores.right, getattr(scores, name))]  # type: ignore[arg-type]
        if alike and 2 * len(alike) >= len(whole):
            first = alike[0]
            return (
                f"in {len(alike)} of {len(whole)} rows {response} got at least as much as a right one (row {first.row}: {getattr(first, name):g} and "
                f"{first.right:g})"
            )
    return None
