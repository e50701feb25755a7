"""Kills a process before each file operation of an export, and prints what is left of exports, as JSON lines.

A script of its own, as `crash_points` is.
"""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from longboat_runtime.checkpoint.export import export
from longboat_runtime.checkpoint.exports import Exports, aside
from tests.checkpoint.crash_points import dies


def written(root: Path, source: Path, incarnation: int, step: int, value: float) -> None:
    """Exports a step, whose weights all have this value, and keeps the two newest exports."""
    exports = Exports(root, 2, incarnation)
    directory = exports.path(step)
    tensors = {name: torch.full((64,), value) for name in ("first", "second")}
    export(source, tensors.items(), "float32", directory, aside(directory, incarnation))
    exports.prune(step)


def found(directory: Path) -> float | None:
    """The value of an export's weights; None if it isn't whole."""
    try:
        json.loads((directory / "config.json").read_text())
        json.loads((directory / "tokenizer.json").read_text())
        tensors = load_file(directory / "model.safetensors")
    except (OSError, ValueError, SafetensorError):
        return None
    values = {value for tensor in tensors.values() for value in tensor.tolist()}
    return values.pop() if len(values) == 1 and len(tensors) == 2 else None


def main(scratch: Path) -> None:
    """For each kind of death and each operation: die there, look, then tidy up as the next driver does, and look again."""
    source, template = scratch / "source", scratch / "template"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_text("{}")
    for incarnation in (1, 2):
        (template / "incarnations" / str(incarnation)).mkdir(parents=True)
    for step in (10, 20, 30):
        written(template, source, 2, step, float(step))
    for power in (False, True):
        for step in (30, 40):
            died, operation = True, 0
            while died:
                operation += 1
                root = scratch / "root"
                shutil.copytree(template, root)
                died = dies(partial(written, root, source, 2, step, -1.0), root, operation, power=power)
                left = {path.name: found(path) for path in (root / "exports").glob("step-*")}
                Exports(root, 2, 3).tidy()
                hidden = [path.name for path in (root / "exports").glob(".*")]
                line = {"power": power, "step": step, "died": died, "left": left, "hidden": hidden}
                print(json.dumps(line))
                shutil.rmtree(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
