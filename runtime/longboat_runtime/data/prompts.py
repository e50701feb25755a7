"""Turns rows into prompt text and token ids: templates, the model's tokenizer and its context length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from longboat_crds.dataset import DatasetSpec
from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_runtime.model_config import language_model, longest_sequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompts:
    """Renders rows with `promptTemplate`, with the tokenizer's chat template, or as plain text, and checks their length.

    `limit` is the longest allowed prompt in tokens: context length minus maxTokens.
    """

    def __init__(self, dataset: DatasetSpec, tokenizer: PreTrainedTokenizerBase, context: int, max_tokens: int) -> None:
        if max_tokens >= context:
            raise SpecProblem(
                Reason.MAX_LENGTH_EXCEEDED,
                "spec.rollout.sampling.maxTokens",
                f"Responses of {max_tokens} tokens leave no room for a prompt in the model's {context} tokens. Lower maxTokens.",
            )
        self._column = dataset.columns.prompt
        self._tokenizer = tokenizer
        self._context, self._max_tokens, self.limit = context, max_tokens, context - max_tokens
        self._template = _compile(dataset.prompt_template)

    def text(self, record: Mapping[str, Any], place: str) -> tuple[str, bool]:
        """Returns the prompt text, and whether it already includes the tokenizer's special tokens (as a rendered chat does).

        Raises SpecProblem if the row has no such prompt, or a template fails for it.
        """
        if self._template is not None:
            try:
                return self._template.render(record), False
            except _TEMPLATE_ERRORS as error:
                raise SpecProblem(
                    Reason.PROMPT_TEMPLATE_INVALID,
                    "spec.dataset.promptTemplate",
                    f"The template fails for {place}: {error}. The row has the columns {', '.join(record)}.",
                ) from error
        prompt = column(record, self._column, "spec.dataset.columns.prompt", place)
        if isinstance(prompt, str):
            return prompt, False
        return self._chat(prompt, place), True

    def _chat(self, messages: Any, place: str) -> str:
        if not isinstance(messages, list) or not all(
            isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in messages
        ):
            raise SpecProblem(
                Reason.DATASET_INVALID,
                "spec.dataset.columns.prompt",
                f"{self._column!r} of {place} is neither text nor a list of messages with `role` and `content`.",
            )
        if self._tokenizer.chat_template is None:
            raise SpecProblem(
                Reason.PROMPT_TEMPLATE_INVALID,
                "spec.dataset.promptTemplate",
                f"{place} is a list of messages, but the tokenizer has no chat template. Add chat_template.jinja to the model's "
                "directory, or set spec.dataset.promptTemplate.",
            )
        try:
            return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except _TEMPLATE_ERRORS as error:
            raise SpecProblem(
                Reason.PROMPT_TEMPLATE_INVALID,
                "spec.dataset.columns.prompt",
                f"The tokenizer's chat template rejects {place}: {error}.",
            ) from error

    def tokens(self, text: str, special: bool, place: str) -> tuple[int, ...]:
        """Returns the token ids of a rendered prompt; `special` as `text` returned it. Raises SpecProblem when empty or too long."""
        ids = tuple(self._tokenizer(text, add_special_tokens=not special)["input_ids"])
        if not ids:
            raise SpecProblem(
                Reason.DATASET_INVALID, "spec.dataset", f"The prompt of {place} has no tokens. Remove the row."
            )
        if len(ids) > self.limit:
            raise SpecProblem(
                Reason.PROMPT_TOO_LONG,
                "spec.model.maxLength",
                f"The prompt of {place} has {len(ids)} tokens; {self._context} (model) - {self._max_tokens} (maxTokens) leaves "
                f"{self.limit}. Remove or shorten the row, set spec.dataset.tooLongPrompts to Skip, lower "
                "spec.rollout.sampling.maxTokens, or raise spec.model.maxLength.",
            )
        return ids

    def check(self, record: Mapping[str, Any], place: str) -> None:
        """Raises SpecProblem if the row can't be launched."""
        text, special = self.text(record, place)
        # A token covers at least one byte, so a text this short can't be too long and needn't be tokenized.
        if not text or len(text.encode()) + _SPECIAL_TOKENS > self.limit:
            self.tokens(text, special, place)


# Errors that a template's own expressions may raise.
_TEMPLATE_ERRORS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# An upper bound on the tokens that tokenizers add around a text (bos, eos).
_SPECIAL_TOKENS = 8


def column(record: Mapping[str, Any], path: str | None, field: str, place: str) -> Any:
    """Returns the column named `path`, or a value inside a column (`reward_model.ground_truth`); None if the spec names no column.

    Raises SpecProblem, which names the existing columns, if there is no such column or value.
    """
    if path is None:
        return None
    if path in record:
        return record[path]
    value: Any = record
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise SpecProblem(
                Reason.DATASET_COLUMN_MISSING,
                field,
                f"No column {path!r} in {place}.{suggestion(path, record)} It has {', '.join(record) or 'none'}.",
            )
        value = value[part]
    return value


def _compile(template: str | None) -> jinja2.Template | None:
    if template is None:
        return None
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise SpecProblem(
            Reason.PROMPT_TEMPLATE_INVALID, "spec.dataset.promptTemplate", f"Line {error.lineno}: {error.message}."
        ) from error


def context_length(model: ModelSpec) -> int:
    """Returns the length in tokens that prompt plus response may have at most (`model_config.longest_sequence`).

    Raises SpecProblem if there is no config.json, or no valid length.
    """
    path = Path(model.path) / "config.json"
    if not path.is_file():
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            "spec.model.path",
            f"{path} is not there. Give a Hugging Face directory that driver, rollout and trainer pods see at the same path.",
        )
    return longest_sequence(language_model(json.loads(path.read_text())), model.max_length, model.path)


def load_tokenizer(model: ModelSpec) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in the model's directory; downloads nothing. Raises SpecProblem if there is none that can be loaded."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.path",
            f"{model.path} has no tokenizer that can be loaded ({error}). Put "
            "tokenizer.json and tokenizer_config.json next to config.json.",
        ) from error
