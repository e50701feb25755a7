"""Digests of what a job trains from: its model, its tokenizer with the chat template, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longboat_crds.checkpoint import TrainingInput
from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.digests import EVALUATION, Digests, digest
from longboat_runtime.data.source import TablePrompts, rows_digest
from longboat_runtime.model_config import weight_files, weights_header
from longboat_runtime.samples import Row

# The files from which tokenizers and their chat templates are loaded, below the model's directory.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)
_TEMPLATES = "additional_chat_templates"
_CONFIG = "config.json"


def digests_of(spec: RLJobSpec, source: TablePrompts, evaluation: Sequence[Row]) -> Digests:
    """Digests everything but the rewards, which graders digest, and the weights, whose checksum the trainer knows.

    Of weight files only header and size are read. `spec` has the text of the chat template, not its file (`data.references`).
    Raises OSError.
    """
    directory = Path(spec.model.path)
    own, others = spec.dataset.chat_template, sorted((directory / _TEMPLATES).glob("*.jinja"))
    files = _files(directory, [*TOKENIZER_FILES, *(str(path.relative_to(directory)) for path in others)])
    template = {} if own is None or own.text is None else {"chat template": digest(own.text)}
    held_out = {EVALUATION: rows_digest(row.columns for row in evaluation)} if evaluation else {}
    return {
        TrainingInput.MODEL: model_digests(directory),
        TrainingInput.TOKENIZER: {**files, **template},
        TrainingInput.DATA: {**source.digests, **held_out},
    }


def model_digests(directory: Path) -> dict[str, str]:
    """Digests the config whole, and header and size of each weight file; one that isn't there is left out. Raises OSError.

    Whoever loads the model says what is wrong with it.
    """
    digests = _files(directory, [_CONFIG])
    try:
        names = weight_files(directory)
    except (ValueError, KeyError, TypeError, AttributeError):
        return digests
    for name in names:
        file = directory / name
        if file.is_file():
            try:
                header = weights_header(file)
            except ValueError:
                header = b""
            digests[name] = f"{digest(header)} {file.stat().st_size} bytes"
    return digests


def _files(directory: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: digest((directory / name).read_bytes()) for name in names if (directory / name).is_file()}
