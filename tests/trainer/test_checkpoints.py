"""Ranks that hash what they write and check what they read."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.checkpoint import sharded
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.checkpoints import bytes_read, described
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, local, make_request, make_samples, make_spec, only_rank, run_ranks

SAMPLES = make_samples(8)
DAMAGES = ("torn", "missing", "swapped", "one byte changed", "places")


def files_of_all(entries: Iterable[FileEntry]) -> list[FileEntry]:
    """The files of all ranks, as the driver gathers them."""
    gathered: list[tuple[FileEntry, ...]] = [()] * dist.get_world_size()
    dist.all_gather_object(gathered, tuple(entries))
    return [entry for of_rank in gathered for entry in of_rank]


def bytes_of_part(rank: TrainerRank) -> int:
    """What a rank saves."""
    return sum(local(tensor).nbytes for tensor in rank.snapshot().values())


def damage(directory: Path, other: Path, kind: str) -> None:
    """Damages the file of rank 1; `other` is another checkpoint."""
    file = directory / "__1_0.distcp"
    content = file.read_bytes()
    match kind:
        case "torn":
            file.write_bytes(content[: len(content) // 2])
        case "missing":
            file.unlink()
        case "swapped":
            file.write_bytes((other / file.name).read_bytes())
        case "one byte changed":
            middle = len(content) // 2
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        case "places":
            (directory / ".metadata").write_bytes((other / ".metadata").read_bytes())


def work_of_two(rank: TrainerRank, directory: Path) -> None:
    """Saves, resumes, and resumes from damaged files; notes what that took and came to."""
    part = bytes_of_part(rank)
    # What is imported on the first use isn't counted.
    rank.restore(directory / "older", files_of_all(sharded.write(rank.snapshot(), directory / "older")))
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    before = bytes_read()
    entries = files_of_all(sharded.write(rank.snapshot(), directory / "newer"))
    saving = bytes_read() - before
    probe = rank.probe([1, 2, 3])
    rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
    before = bytes_read()
    rank.restore(directory / "newer", entries)
    resuming = bytes_read() - before
    assert rank.probe([1, 2, 3]) == probe
    outcomes, described_as = {}, {}
    for kind in DAMAGES:
        damaged = directory / kind
        entries = files_of_all(sharded.write(rank.snapshot(), damaged))
        described_as[kind] = [entry.model_dump() for entry in entries]
        if rank.rank == 0:
            damage(damaged, directory / "older", kind)
        dist.barrier()
        rank.train(make_request(SAMPLES, step=2), fetch_from(SAMPLES))
        trained = rank.probe([1, 2, 3])
        try:
            rank.restore(damaged, entries)
        except (FilesDamaged, FileNotFoundError) as error:
            outcomes[kind] = str(error)
        assert rank.probe([1, 2, 3]) == trained, "nothing is restored"
        rank.restore(directory / "newer", described(directory / "newer"))
        assert rank.probe([1, 2, 3]) == probe
    record = {"part": part, "saving": saving, "resuming": resuming, "outcomes": outcomes, "probe": probe}
    record["entries"] = described_as
    (directory / f"rank-{rank.rank}").write_text(json.dumps(record))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=256, layers=4)


@pytest.fixture(scope="module")
def of_two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    run_ranks(2, work_of_two, make_spec(model), directory)
    return directory


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_reads_its_own_part_once_to_save_it_and_once_to_resume(of_two: Path, number: int) -> None:
    record = json.loads((of_two / f"rank-{number}").read_text())
    assert record["part"] > 4 << 20
    assert record["saving"] <= 1.05 * record["part"]
    assert record["resuming"] <= 1.05 * record["part"]


def test_all_ranks_find_one_damaged_file_and_none_restores_anything(of_two: Path) -> None:
    first, second = (json.loads((of_two / f"rank-{number}").read_text())["outcomes"] for number in (0, 1))
    assert first == second
    assert first.keys() == {*DAMAGES}
    assert "__1_0.distcp has" in first["torn"]
    assert "__1_0.distcp" in first["missing"]
    for kind in ("swapped", "one byte changed"):
        assert first[kind] == f"{of_two / kind}: __1_0.distcp is not as it was written (rank 1)"
    assert ".metadata" in first["places"]


def test_another_number_of_ranks_checks_every_file(of_two: Path, model: Path) -> None:
    record = json.loads((of_two / "rank-0").read_text())
    probe = pytest.approx(record["probe"], abs=1e-6)
    with only_rank(make_spec(model)) as rank:
        size = sum(file.stat().st_size for file in (of_two / "newer").iterdir())
        before = bytes_read()
        rank.restore(of_two / "newer", described(of_two / "newer"))
        assert bytes_read() - before < 2.1 * size, "once for `described`, and once to resume"
        assert rank.probe([1, 2, 3]) == probe
        for kind, entries in record["entries"].items():
            with pytest.raises((FilesDamaged, FileNotFoundError)):
                rank.restore(of_two / kind, [FileEntry(**entry) for entry in entries])
        assert rank.probe([1, 2, 3]) == probe


@given(st.integers(1, 40), st.integers(1, 40))
def test_each_file_is_checked_by_one_rank_and_by_its_own_on_as_many(written: int, ranks: int) -> None:
    paths = {f"__{number}_0.distcp" for number in range(written)}
    by_rank = [sharded.files_of_rank(paths, rank, ranks) for rank in range(ranks)]
    assert sorted(path for of_rank in by_rank for path in of_rank) == sorted(paths)
    assert max(map(len, by_rank)) <= -(-written // ranks)
    if written == ranks:
        assert by_rank == [[f"__{rank}_0.distcp"] for rank in range(ranks)]
