"""Turns rows into prompt text and token ids: templates, the model's tokenizer and its context length."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_camel

from longboat_crds.dataset import Columns, DatasetSpec, EvaluationSpec
from longboat_crds.model import ModelSpec
from longboat_crds.problems import SpecProblem, suggestion
from longboat_crds.reasons import Reason
from longboat_runtime.data.chat import Chat
from longboat_runtime.data.messages import Message, arguments, holds_messages, normalised, tools
from longboat_runtime.model_config import language_model, longest_sequence, read_model
from longboat_runtime.templates import TEMPLATE_ERRORS, compiled
from longboat_runtime.tracebacks import cause_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of a prompt. `chat` says that a chat template made it, so it has all special tokens.

    `messages` are those of a row that has messages, `prefill` is the part of the text with which the response begins. `arguments` are those
    of the chat template for this row, the job's included.
    """

    text: str
    chat: bool = False
    messages: Sequence[Message] | None = None
    prefill: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Prompts:
    """Renders rows with `promptTemplate`, with a chat template, or as plain text, and checks their length.

    `limit` is the longest prompt in tokens: what the model's `context` and a bin of the trainer (`bin_tokens`) leave beside maxTokens.
    Templates that ask for the time get `started`. `chat` renders messages. `own` are the fields of the dataset, and maxTokens, that the
    spec of the evaluation gives: errors name them there. Of rows that `episodes` are played with, the prompt alone has to fit: maxTokens is
    for all of their turns, whose contexts environments make.
    """

    def __init__(
        self,
        dataset: DatasetSpec,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        max_tokens: int,
        bin_tokens: int,
        started: datetime.datetime,
        own: Collection[str] = (),
        *,
        episodes: bool = False,
    ) -> None:
        self._own, self._episodes = own, episodes
        max_tokens = 1 if episodes else max_tokens
        self.max_tokens_field = self.field("maxTokens") if "maxTokens" in own else "spec.rollout.sampling.maxTokens"
        if max_tokens >= context:
            raise SpecProblem(
                Reason.MAX_LENGTH_EXCEEDED,
                self.max_tokens_field,
                f"Responses of {max_tokens} tokens leave no room for a prompt in the model's {context} tokens. Lower maxTokens.",
            )
        self._dataset, self.tokenizer = dataset, tokenizer
        self.started, self._max_tokens, self._longest = started, max_tokens, min(context, bin_tokens)
        self._context, self._limiting = (
            context,
            "trainer.maxTokensPerBin" if bin_tokens < context else "model.maxLength",
        )
        template, reason = dataset.prompt_template, Reason.PROMPT_TEMPLATE_INVALID
        self._template = None if template is None else compiled(template, self.field("promptTemplate"), reason)
        chat = dataset.chat_template
        self.chat = Chat(tokenizer, chat.text if chat is not None else None, started)
        try:
            self._own_arguments = arguments(dataset.chat_template_arguments)
        except ValueError as error:
            raise SpecProblem(Reason.SPEC_INVALID, "spec.dataset.chatTemplateArguments", f"It {error}.") from error

    @property
    def limit(self) -> int:
        return self._longest - self._max_tokens

    @property
    def limiting(self) -> str:
        """The field of the spec that allows no longer prompts."""
        return f"spec.{self._limiting}"

    @property
    def columns(self) -> Columns:
        return self._dataset.columns

    def field(self, name: str) -> str:
        """Returns the path in the spec of a field of the dataset, such as `columns.prompt`."""
        return f"spec.dataset.{'evaluation.' if name.partition('.')[0] in self._own else ''}{name}"

    def held_out(self, evaluation: EvaluationSpec) -> Prompts:
        """Returns what renders the rows of `evaluation`, which are never trained: the trainer's bin doesn't limit them.

        The evaluation's own fields take precedence over the dataset's. Raises SpecProblem.
        """
        own = {name: value for name in _EVALUATION_FIELDS if (value := getattr(evaluation, name)) is not None}
        names = [to_camel(name) for name in own]
        max_tokens = own.pop("max_tokens", self._max_tokens)
        if "prompt_template" in own:
            own["prompt_template"] = own["prompt_template"] or None
        dataset, context = self._dataset.model_copy(update=own), self._context
        return Prompts(
            dataset, self.tokenizer, context, max_tokens, context, self.started, names, episodes=self._episodes
        )

    def prompt(self, record: Mapping[str, Any], place: str) -> Prompt:
        """Renders a row. Raises SpecProblem if it has no prompt, has it in a form that isn't taken, or a template fails for it."""
        dataset = self._dataset
        if self._template is not None:
            try:
                value: Any = self._template.render(record)
            except TEMPLATE_ERRORS as error:
                raise SpecProblem(
                    Reason.PROMPT_TEMPLATE_INVALID,
                    self.field("promptTemplate"),
                    f"The template fails for {place}: {error}. The row has the columns {', '.join(record)}.",
                ) from error
        else:
            value = column(record, dataset.columns.prompt, self.field("columns.prompt"), place)
        conversational = not isinstance(value, str)
        if not conversational:
            if self._template is None and value.lstrip().startswith("[") and holds_messages(value):
                raise self._invalid(
                    "columns.prompt",
                    f"{dataset.columns.prompt!r} of {place} is text that holds messages as JSON. Write the messages themselves, as a list "
                    "(in Python: `json.loads`).",
                )
            if not dataset.as_messages:
                self._check_not_for_chats(place)
                return Prompt(value, arguments=self._arguments(record, place) if self._episodes else {})
            value = [{"role": "user", "content": value}]
        own = self._arguments(record, place)
        text, messages = self._rendered(value, record, place, own)
        prefill = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
        if not text.endswith(prefill):  # the template has trimmed it
            prefill = prefill.strip()
        return Prompt(text, True, messages if conversational else None, prefill, own)

    def _arguments(self, record: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """Returns the chat template's arguments for a row: the job's, and the row's own, which take precedence. Raises SpecProblem."""
        name = self._dataset.columns.chat_template_arguments
        own = self._optional(arguments, record, name, "chat_template_kwargs", "chatTemplateArguments", place)
        return {**self._own_arguments, **(own or {})}

    def _check_not_for_chats(self, place: str) -> None:
        """Raises SpecProblem if the spec asks for something that only prompts made of messages can have."""
        dataset = self._dataset
        values = {
            "systemPrompt": dataset.system_prompt,
            "chatTemplate": dataset.chat_template,
            "chatTemplateArguments": dataset.chat_template_arguments,
            "columns.tools": dataset.columns.tools,
            "columns.chatTemplateArguments": dataset.columns.chat_template_arguments,
        }
        if named := [name for name, value in values.items() if value]:
            raise self._invalid(
                named[0],
                f"The prompt of {place} is text, which goes to the model as it is. Set spec.dataset.asMessages, so that it becomes a user's "
                f"message, or remove {', '.join(named)}.",
            )

    def _rendered(
        self, value: Any, record: Mapping[str, Any], place: str, own: Mapping[str, Any]
    ) -> tuple[str, Sequence[Message]]:
        columns = self._dataset.columns
        messages = self._checked(normalised, value, "columns.prompt", columns.prompt, place)
        if system := self._dataset.system_prompt:
            if messages[0]["role"] == "system":
                raise self._invalid(
                    "systemPrompt",
                    f"{place} has a system message of its own. Remove that, or spec.dataset.systemPrompt.",
                )
            messages.insert(0, {"role": "system", "content": system})
        if not self.chat.has_template:
            raise SpecProblem(
                Reason.PROMPT_TEMPLATE_INVALID,
                self.field("chatTemplate"),
                f"{place} is a list of messages, but the tokenizer has no chat template. Add chat_template.jinja to the model's "
                "directory, or set spec.dataset.chatTemplate or spec.dataset.promptTemplate.",
            )
        schemas = self._optional(tools, record, columns.tools, "tools", "tools", place)
        try:
            return self.chat.text(messages, schemas, own), messages
        except TEMPLATE_ERRORS as error:
            raise SpecProblem(
                Reason.PROMPT_TEMPLATE_INVALID,
                self.field("chatTemplate" if self._dataset.chat_template else "columns.prompt"),
                f"The chat template fails for {place}: {error}.",
            ) from error

    def _optional(
        self,
        read: Callable[[Any], Any],
        record: Mapping[str, Any],
        name: str | None,
        usual: str,
        field: str,
        place: str,
    ) -> Any:
        """Reads a column that rows needn't have: by its usual name where the spec names none, not at all where it names the empty one."""
        if name == "" or (name is None and usual not in record):
            return None
        value = column(record, name or usual, self.field(f"columns.{field}"), place)
        return None if value is None else self._checked(read, value, f"columns.{field}", name or usual, place)

    def tokens(self, prompt: Prompt, place: str) -> tuple[int, ...]:
        """Returns the token ids of a rendered prompt. Raises SpecProblem when empty or too long.

        Text that already begins with the tokenizer's BOS token gets no second one.
        """
        begin = self.tokenizer.bos_token
        whole = prompt.chat or (begin is not None and prompt.text.startswith(begin))
        ids = tuple(self.tokenizer(prompt.text, add_special_tokens=not whole)["input_ids"])
        if not ids:
            raise SpecProblem(
                Reason.DATASET_INVALID, "spec.dataset", f"The prompt of {place} has no tokens. Remove the row."
            )
        if len(ids) > self.limit:
            raise SpecProblem(
                Reason.PROMPT_TOO_LONG,
                self.limiting,
                f"The prompt of {place} has {len(ids)} tokens; {self._longest} ({self._limiting}) - {self._max_tokens} (maxTokens) leaves "
                f"{self.limit}. Remove or shorten the row, set spec.dataset.tooLongPrompts to Skip, lower {self.max_tokens_field}, or raise "
                f"{self.limiting}.",
            )
        return ids

    def check(self, record: Mapping[str, Any], place: str) -> None:
        """Raises SpecProblem if the row can't be launched."""
        prompt = self.prompt(record, place)
        # A token covers at least one byte, so a text this short can't be too long and needn't be tokenized.
        if not prompt.text or len(prompt.text.encode()) + _SPECIAL_TOKENS > self.limit:
            self.tokens(prompt, place)

    def _checked(self, read: Callable[[Any], Any], value: Any, field: str, name: str, place: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise self._invalid(field, f"{name!r} of {place} {error}.") from error

    def _invalid(self, field: str, message: str) -> SpecProblem:
        return SpecProblem(Reason.DATASET_INVALID, self.field(field), message)


# Fields of the dataset that its evaluation may have too, and one of sampling.
_EVALUATION_FIELDS = ("columns", "prompt_template", "chat_template", "max_tokens")

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


def context_length(model: ModelSpec) -> int:
    """Returns the length in tokens that prompt plus response may have at most (`model_config.longest_sequence`).

    Raises SpecProblem if there is no config.json, or no valid length.
    """
    return longest_sequence(language_model(read_model(Path(model.path))), model.max_length, model.path)


def load_tokenizer(model: ModelSpec) -> PreTrainedTokenizerBase:
    """Loads the tokenizer in the model's directory; downloads nothing.

    Raises SpecProblem if there is no model, or no tokenizer of it. Without files transformers makes some architectures' tokenizers
    out of their special tokens alone: those encode every text as nothing.
    """
    context_length(model)  # gives a clearer error if there is no model
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise _no_tokenizer(model, cause_in(error)) from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise _no_tokenizer(model, "it has no tokens but special ones")
    return tokenizer


def _no_tokenizer(model: ModelSpec, why: str) -> SpecProblem:
    return SpecProblem(
        Reason.MODEL_INVALID,
        "spec.model.path",
        f"{model.path} has no tokenizer that can be loaded ({why.rstrip('.')}). Put tokenizer.json and tokenizer_config.json next to "
        "config.json.",
    )
