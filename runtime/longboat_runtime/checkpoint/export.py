"""A Hugging Face directory of the trained model."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from longboat_runtime.checkpoint.files import fsync_directory, fsync_tree, make_directory, remove_tree

CONFIG = "config.json"
# Where transformers looks for a chat template first.
CHAT_TEMPLATE = "chat_template.jinja"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_WEIGHT_INDEX = ".index.json"


def export(
    source: Path,
    tensors: Mapping[str, Tensor],
    dtype: str,
    directory: Path,
    partial: Path,
    chat_template: str | None = None,
) -> None:
    """Writes `directory` whole or not at all: `tensors` as safetensors, and config and tokenizer of `source`.

    `tensors` are whole, on the CPU, by their Hugging Face names; `dtype` is torch's name of their number format, such as
    `bfloat16`. A `chat_template` takes the place of the source's. Until it is whole it is `partial`, a name beside `directory`. What was
    exported to `directory` before is replaced. Everybody may read the files. Raises OSError, and leaves nothing then.
    """
    make_directory(directory.parent)
    remove_tree(partial)
    partial.mkdir()
    try:
        _write(source, tensors, dtype, partial, chat_template)
        fsync_tree(partial)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    replaced = partial.with_suffix(".removed")
    remove_tree(replaced)
    if directory.exists():
        # By its name first: what a crash leaves of it must not look whole.
        directory.rename(replaced)
    partial.rename(directory)
    fsync_directory(directory.parent)
    remove_tree(replaced)


def _write(source: Path, tensors: Mapping[str, Tensor], dtype: str, partial: Path, chat_template: str | None) -> None:
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    try:
        save_torch_state_dict(dict(tensors), partial, metadata={"format": "pt"})
    except SafetensorError as error:
        # Its message ends like "No space left on device (os error 28)" if the system refused to write.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(partial)) from error
        raise
    config = json.loads((source / CONFIG).read_text())
    config.pop("torch_dtype", None)
    (partial / CONFIG).write_text(json.dumps(config | {"dtype": dtype}, indent=2))
    for file in source.iterdir():
        if file.is_file() and _belongs_to_model(file.name):
            shutil.copyfile(file, partial / file.name)
    if chat_template is not None:
        (partial / CHAT_TEMPLATE).write_text(chat_template)
    for file in partial.iterdir():
        file.chmod(0o644)
    partial.chmod(0o755)


def _belongs_to_model(name: str) -> bool:
    """Whether a file of this name is neither weights, nor their index, nor the config: tokenizer, chat template and so on."""
    return name != CONFIG and not name.endswith(_WEIGHT_INDEX) and Path(name).suffix not in _WEIGHT_SUFFIXES
