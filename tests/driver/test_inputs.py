"""Digests of what a job trains from: found where they should be, and nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat_crds.checkpoint import TrainingInput
from longboat_crds.job import RLJobSpec
from longboat_runtime.checkpoint.digests import Digests, differences
from longboat_runtime.data.references import resolved
from longboat_runtime.data.source import open_evaluation, open_prompts, open_source
from longboat_runtime.driver.inputs import digests_of, model_digests
from tests.support.tiny_model import build_tiny_model

ROWS = [{"prompt": [{"role": "user", "content": letter}], "answer": letter} for letter in "abcdefgh"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
# As large as the file of weights may be whose header alone is read, in bytes.
LARGE = 65 << 30


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_tiny_model(folder / "model", max_length=64)
    for name, rows in (("train.jsonl", ROWS), ("test.jsonl", ROWS[:2])):
        write_rows(folder / name, rows)
    config_map = folder / "maps" / "..2026" / "templates"
    config_map.mkdir(parents=True)
    (config_map / "chat").write_text(TEMPLATE)
    (folder / "maps" / "templates").symlink_to("..2026/templates")
    return folder


@pytest.fixture
def site(original: Path, tmp_path: Path) -> Path:
    """A copy elsewhere, with other times, whose files were made in another order."""
    for path in sorted(original.rglob("*"), reverse=True):
        if path.is_file() and not path.is_symlink():
            target = tmp_path / path.relative_to(original)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            os.utime(target, (1, 1))
    (tmp_path / "maps" / "templates").symlink_to("..2026/templates", target_is_directory=True)
    return tmp_path


def digests(folder: Path) -> Digests:
    spec = resolved(
        RLJobSpec.model_validate(
            {
                "runtimeRef": {"name": "local"},
                "model": {"path": str(folder / "model")},
                "dataset": {
                    "files": {"paths": [str(folder / "train.jsonl")]},
                    "columns": {"groundTruth": "answer"},
                    "chatTemplate": {"configMap": {"name": "templates", "key": "chat"}},
                    "evaluation": {"files": {"paths": [str(folder / "test.jsonl")]}},
                },
                "rounds": {"steps": 1, "promptsPerRound": 1},
                "rollout": {"sampling": {"maxTokens": 8}},
                "rewards": [{"name": "main", "function": "rewards:main"}],
            }
        ),
        folder / "maps",
    )
    prompts = open_prompts(spec)
    return digests_of(spec, open_source(spec.dataset, prompts), open_evaluation(spec.dataset, prompts))


def test_places_times_and_the_order_of_files_change_nothing(original: Path, site: Path) -> None:
    assert digests(site) == digests(original)
    assert list(digests(site)) == [TrainingInput.MODEL, TrainingInput.TOKENIZER, TrainingInput.DATA]


def edit_config(site: Path) -> None:
    path = site / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": 1}))


def edit_weights(site: Path) -> None:
    build_tiny_model(site / "other", max_length=64, hidden=64)
    shutil.copy(site / "other" / "model.safetensors", site / "model" / "model.safetensors")


def edit_tokenizer(site: Path) -> None:
    path = site / "model" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")


def edit_row(site: Path) -> None:
    write_rows(site / "train.jsonl", [*ROWS[:5], {**ROWS[5], "answer": "x"}, *ROWS[6:]])


def edit_held_out_row(site: Path) -> None:
    write_rows(site / "test.jsonl", [{**ROWS[0], "answer": "x"}, ROWS[1]])


def edit_template(site: Path) -> None:
    """As a kubelet does: the name leads elsewhere."""
    newer = site / "maps" / "..2027" / "templates"
    newer.mkdir(parents=True)
    (newer / "chat").write_text(TEMPLATE + "!")
    (site / "maps" / "templates").unlink()
    (site / "maps" / "templates").symlink_to("..2027/templates")


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (edit_config, "Model: config.json has changed"),
        (edit_weights, "Model: model.safetensors has changed"),
        (edit_tokenizer, "Tokenizer: tokenizer.json has changed"),
        (edit_template, "Tokenizer: chat template has changed"),
        (edit_row, "Data: row 5 has changed"),
        (edit_held_out_row, "Data: the evaluation has changed"),
    ],
)
def test_an_edit_is_the_only_difference(original: Path, site: Path, edit: Callable[[Path], None], text: str) -> None:
    before = digests(original)
    edit(site)
    assert [str(each) for each in differences(before, digests(site))] == [text]


def bytes_read() -> int:
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar:")]
    return int(line.split()[1])


def test_of_weights_only_headers_are_read(tmp_path: Path) -> None:
    header = json.dumps({"layer": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "config.json").write_text("{}")
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {"weight_map": {"a": names[1], "b": names[0]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        with (tmp_path / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(LARGE)
    model_digests(tmp_path)
    before = bytes_read()
    found = model_digests(tmp_path)
    assert bytes_read() - before < 1 << 20, "buffers and what Python itself reads"
    assert list(found) == ["config.json", *names]
    assert all(found[name].endswith(f" {LARGE} bytes") for name in names)
    os.truncate(tmp_path / names[0], LARGE - 1)
    assert {name for name, value in model_digests(tmp_path).items() if value != found[name]} == {names[0]}


def test_what_can_not_be_read_is_left_to_whoever_loads_it(tmp_path: Path) -> None:
    assert model_digests(tmp_path) == {}
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    assert list(model_digests(tmp_path)) == ["model.safetensors"]
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert model_digests(tmp_path) == {}
