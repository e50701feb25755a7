"""Replaces references in the spec: the file of a chat template by its text, stop texts that are special tokens by ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from longboat_crds.dataset import ChatTemplateSpec, DatasetSpec, EvaluationSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.reward_kinds import RewardKind
from longboat_crds.rewards import RewardSpec
from longboat_crds.rollout import SamplingSpec
from longboat_runtime.data.prompts import load_tokenizer
from longboat_runtime.special_tokens import special_texts

Rows = TypeVar("Rows", DatasetSpec, EvaluationSpec)

# Where ConfigMaps of the dataset are mounted, each under its name.
CONFIG_MAPS = Path("/etc/longboat/dataset")


def resolved(spec: RLJobSpec, config_maps: Path = CONFIG_MAPS) -> RLJobSpec:
    """Returns the spec with its references replaced. `config_maps` has a directory for each ConfigMap. Raises SpecProblem."""
    sampling = spec.rollout.sampling
    if (
        sampling.stop
        or sampling.stop_token_ids
        or any(reward.kind is RewardKind.REASONING_GYM and "tag" in reward.parameters for reward in spec.rewards)
    ):
        tokenizer = load_tokenizer(spec.model)
        special = special_texts(tokenizer)
        check_tags(spec.rewards, sampling, special.values())
        sampling = with_stop_tokens(sampling, special, len(tokenizer))
    rollout = spec.rollout.model_copy(update={"sampling": sampling})
    dataset = with_template_text(spec.dataset, config_maps)
    if dataset.evaluation is not None:
        evaluation = with_template_text(dataset.evaluation, config_maps, "spec.dataset.evaluation")
        dataset = dataset.model_copy(update={"evaluation": evaluation})
    return spec.model_copy(update={"dataset": dataset, "rollout": rollout})


def check_tags(rewards: Sequence[RewardSpec], sampling: SamplingSpec, special: Collection[str]) -> None:
    """Raises SpecProblem for a ReasoningGym `tag` that no response can have in its text: a stop text ends it, or it is a special token.

    `special` are the texts of special tokens. Pure.
    """
    for index, reward in enumerate(rewards):
        tag = reward.parameters.get("tag")
        if reward.kind is not RewardKind.REASONING_GYM or not isinstance(tag, str):
            continue
        field, end = f"spec.rewards[{index}].parameters.tag", f"</{tag}>"
        if stop := next((stop for stop in sampling.stop if stop in end and not sampling.include_stop), None):
            raise SpecProblem(
                Reason.SPEC_INVALID,
                field,
                f"Responses end before the stop text {stop!r}, so none has {end}, and all would have the wrong form. Set "
                "spec.rollout.sampling.includeStop, or remove the stop text.",
            )
        if lost := [text for text in (f"<{tag}>", end) if text in special and not reward.special_tokens]:
            raise SpecProblem(
                Reason.SPEC_INVALID,
                field,
                f"{lost[0]} is a special token, which the text of a response doesn't have. Set spec.rewards[{index}].specialTokens, or "
                "another tag.",
            )


def with_template_text(rows: Rows, config_maps: Path, section: str = "spec.dataset") -> Rows:
    """Reads the file of the rows' own chat template, if they have one, into the spec. Raises SpecProblem if it can't be read.

    `config_maps` has a directory for each ConfigMap; `section` is the path of `rows` in the spec.
    """
    template = rows.chat_template
    if template is None or template.text is not None:
        return rows
    if template.file is not None:
        path, field = Path(template.file), "file"
    else:
        assert template.config_map is not None
        path, field = config_maps / template.config_map.name / template.config_map.key, "configMap"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecProblem(
            Reason.PROMPT_TEMPLATE_INVALID,
            f"{section}.chatTemplate.{field}",
            f"{path} can't be read ({error}). Name a UTF-8 file that the driver pod sees, or a key that the ConfigMap has.",
        ) from error
    return rows.model_copy(update={"chat_template": ChatTemplateSpec(text=text)})


def with_stop_tokens(sampling: SamplingSpec, special: Mapping[int, str], vocabulary: int) -> SamplingSpec:
    """Makes stop texts that are special tokens `stopTokenIds`: engines look for stop texts in text that has no special tokens.

    `special` are the texts of special tokens, by id. Raises SpecProblem for a stop text that has a special token and more, and for an id
    that isn't in the `vocabulary`. Pure.
    """
    ids = {text: token_id for token_id, text in special.items()}
    for index, text in enumerate(sampling.stop):
        within = [name for name in ids if name in text]
        if within and text not in ids:
            raise SpecProblem(
                Reason.SPEC_INVALID,
                f"spec.rollout.sampling.stop[{index}]",
                f"{text!r} has the special token {max(within, key=len)!r} and more, so it would never end a response. Give the token alone, "
                "or text without it.",
            )
    for index, token_id in enumerate(sampling.stop_token_ids):
        if token_id >= vocabulary:
            raise SpecProblem(
                Reason.SPEC_INVALID,
                f"spec.rollout.sampling.stopTokenIds[{index}]",
                f"The tokenizer has {vocabulary} tokens, and none with the id {token_id}.",
            )
    tokens = [ids[text] for text in sampling.stop if text in ids]
    texts = [text for text in sampling.stop if text not in ids]
    return sampling.model_copy(update={"stop": texts, "stop_token_ids": [*sampling.stop_token_ids, *tokens]})
