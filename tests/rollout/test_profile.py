"""A profile is read strictly: one that is missing, broken or of other engines names its field and the cure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longboat_crds.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.measurement import filled, grid
from longboat_runtime.rollout.profile import ProfiledEngine, ProfileFile, identity, read_profile
from longboat_runtime.rollout.protocol import ReshapePhase

MODEL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
OF = identity(EngineConfig("e", "/models/m", "bfloat16"), MODEL)
ENGINE = ProfiledEngine(
    kv_tokens=100,
    prefill_seconds=0.001,
    sequences=(1, 4),
    contexts=(10,),
    seconds=((0.1,), (0.2,)),
    reshape_seconds={ReshapePhase.START: 3.0, ReshapePhase.END: 1.0},
)
FILE = ProfileFile(model="/models/m", engine=OF, engines={1: ENGINE, 2: ENGINE})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    FILE.write(tmp_path / "profile.json")
    found = read_profile(str(tmp_path / "profile.json"), OF, (1, 2))
    assert found.throughput[2] == ENGINE.model
    assert found.change_seconds == {1: 4.0, 2: 4.0}
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 2}, "version"),
        ({"more": 1}, "more"),
        ({"engine": {**OF, "dtype": "float32"}}, "dtype float32, the job has bfloat16"),
        ({"engine": {**OF, "hidden_size": 128}}, "hidden_size 128, the job has 64"),
        ({"engines": {"1": json.loads(ENGINE.model_dump_json())}}, "lacks engines of 2 devices"),
        ({"engines": {"1": {**json.loads(ENGINE.model_dump_json()), "sequences": [4, 1]}}}, "ascend"),
    ],
)
def test_a_profile_that_cannot_be_used_is_told(tmp_path: Path, change: dict[str, object], told: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**json.loads(FILE.model_dump_json()), **change}))
    with pytest.raises(SpecProblem, match=told) as caught:
        read_profile(str(path), OF, (1, 2))
    assert caught.value.field == "spec.rollout.parallelism.profile"
    assert "longboat profile" in caught.value.message


def test_a_file_that_is_missing_or_broken_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecProblem, match="can't be read"):
        read_profile(str(tmp_path / "none.json"), OF, (1,))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(SpecProblem, match="isn't a profile"):
        read_profile(str(tmp_path / "broken.json"), OF, (1,))


def test_the_grid_stays_within_the_cache() -> None:
    sequences, contexts = grid(4096, 16, 256)
    assert (sequences, contexts) == ((1, 4, 16), (32, 245))
    assert grid(64, 16, 256)[1][-1] < 64


def test_cells_that_were_not_measured_follow_the_others() -> None:
    cells = {(n, c): 0.01 + 0.001 * n + 1e-6 * n * c for n in (1, 4) for c in (10, 100)}
    cells[16, 10] = 0.01 + 0.016 + 1e-6 * 160
    rows = filled((1, 4, 16), (10, 100), cells)
    assert rows[2][1] == pytest.approx(0.01 + 0.016 + 1.6e-3, rel=0.01)
    assert rows[0][0] == cells[1, 10]


def test_the_spec_says_what_a_kv_cache_holds() -> None:
    profile = FILE.profile.with_kv_tokens({1: 140})
    assert {size: model.kv_tokens for size, model in profile.throughput.items()} == {1: 140, 2: 100}
    assert profile.throughput[1].seconds == ENGINE.seconds
