"""A Hugging Face directory of the trained model."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from longboat_runtime.checkpoint.files import fsync_directory, fsync_tree, make_directory, remove_tree

# The most bytes of weights in a file, unless a single weight is larger. The trainer's first pod holds a file's weights in host memory
# until it is written. Files smaller than 1 GiB would only be more of them.
FILE_BYTES = 1 << 30
CONFIG = "config.json"
# Where transformers looks for a chat template first.
CHAT_TEMPLATE = "chat_template.jinja"
_WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"}
_WEIGHT_INDEX = ".index.json"


def export(
    source: Path,
    tensors: Iterable[tuple[str, Tensor]],
    dtype: str,
    directory: Path,
    partial: Path,
    chat_template: str | None = None,
) -> None:
    """Writes `directory` whole or not at all: `tensors` as safetensors, and config and tokenizer of `source`.

    `tensors` are whole, with their Hugging Face names; only those of one file are in memory at a time, and the next one. `dtype` is
    torch's name of their number format, such as `bfloat16`. A `chat_template` replaces that of the source. Until the export is whole its
    name is `partial`, beside `directory`; then it replaces an earlier export. Everybody may read the files. Raises OSError, and leaves
    nothing then.
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
        # Renamed before it is removed: a crash must not leave a part of it that looks whole.
        directory.rename(replaced)
    partial.rename(directory)
    fsync_directory(directory.parent)
    remove_tree(replaced)


def _write(
    source: Path, tensors: Iterable[tuple[str, Tensor]], dtype: str, partial: Path, chat_template: str | None
) -> None:
    _write_weights(tensors, partial)
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


def _write_weights(tensors: Iterable[tuple[str, Tensor]], partial: Path) -> None:
    """Writes one file after another, and an index if there are several."""
    files: list[list[str]] = []
    pending: dict[str, Tensor] = {}
    total = size = 0

    def write() -> None:
        files.append([*pending])
        _write_file(pending, partial / f"{len(files)}.safetensors")
        pending.clear()

    for name, tensor in tensors:
        if pending and size + tensor.nbytes > FILE_BYTES:
            write()
            size = 0
        weight = tensor.detach().cpu().contiguous()
        # The experts of a layer are views of one tensor: safetensors refuses shared memory, and the whole tensor would stay allocated.
        pending[name] = weight if weight.untyped_storage().nbytes() == weight.nbytes else weight.clone()
        size += weight.nbytes
        total += weight.nbytes
        del tensor, weight
    write()
    if len(files) == 1:
        (partial / "1.safetensors").rename(partial / "model.safetensors")
        return
    places: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (partial / f"{number}.safetensors").rename(partial / file)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (partial / f"model.safetensors{_WEIGHT_INDEX}").write_text(json.dumps(index, indent=2))


def _write_file(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # Its message ends like "No space left on device (os error 28)" if the system refused to write.
        if number := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise


def _belongs_to_model(name: str) -> bool:
    """Whether a file of this name is neither weights, nor their index, nor the config: tokenizer, chat template and so on."""
    return name != CONFIG and not name.endswith(_WEIGHT_INDEX) and Path(name).suffix not in _WEIGHT_SUFFIXES
