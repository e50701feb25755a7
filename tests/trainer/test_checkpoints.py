"""Ranks that hash what they write and check what they read."""

import errno
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint import files, sharded
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


def change_byte(file: Path) -> None:
    """Changes a byte in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


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
            change_byte(file)
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
    outcomes_of_one, read_whole = of_one_rank(rank, directory / "of one rank")
    record = {"part": part, "saving": saving, "resuming": resuming, "outcomes": outcomes, "probe": probe}
    record |= {"entries": described_as, "of one rank": outcomes_of_one, "read whole": read_whole}
    record["unhashed"] = unhashed(rank, directory / "unhashed")
    record["unreadable"] = unreadable(rank, directory / "unreadable")
    (directory / f"rank-{rank.rank}").write_text(json.dumps(record))


def of_one_rank(rank: TrainerRank, directory: Path) -> tuple[dict[str, float | str], list[str]]:
    """Resumes from what one rank has written, and then from what is damaged of it. Returns results, and the files that this rank checks."""
    read_whole, checked = sharded.SavedTensors._read_whole, []

    def noted(saved: sharded.SavedTensors, entry: FileEntry, *others: object) -> None:
        checked.append(entry.path)
        read_whole(saved, entry, *others)

    entries = described(directory)
    sharded.SavedTensors._read_whole = noted
    rank.restore(directory, entries)
    sharded.SavedTensors._read_whole = read_whole
    outcomes: dict[str, float | str] = {"probe": rank.probe([1, 2, 3])[0]}
    dist.barrier()
    if rank.rank == 0:
        change_byte(directory / "__0_0.distcp")
    dist.barrier()
    rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
    trained = rank.probe([1, 2, 3])
    with pytest.raises(FilesDamaged) as damaged:
        rank.restore(directory, entries)
    assert rank.probe([1, 2, 3]) == trained, "nothing is restored"
    return {**outcomes, "damaged": str(damaged.value)}, checked


def unhashed(rank: TrainerRank, directory: Path) -> int | None:
    """Returns the number of the error that a rank raises if rank 1 can't read what it has written."""

    def broken(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with pytest.MonkeyPatch.context() as patch:
        if rank.rank == 1:
            patch.setattr(files, "checksum", broken)
        with pytest.raises(OSError, match="Input/output error") as failed:
            sharded.write(rank.snapshot(), directory)
    return failed.value.errno


def unreadable(rank: TrainerRank, directory: Path) -> list[str]:
    """Returns the problem of a checkpoint that is as it was written, by a torch whose classes this one lacks."""
    sharded.write(rank.snapshot(), directory)
    if rank.rank == 0:
        (directory / ".metadata").write_bytes(b"ctorch.distributed.checkpoint\nNoSuchClass\n.")
    dist.barrier()
    with pytest.raises(SpecProblem) as problem:
        rank.restore(directory, described(directory))
    return [problem.value.reason, str(problem.value)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=256, layers=4)


@pytest.fixture(scope="module")
def of_two(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    with only_rank(make_spec(model)) as rank:
        rank.train(make_request(SAMPLES), fetch_from(SAMPLES))
        sharded.write(rank.snapshot(), directory / "of one rank")
        (directory / "probe of one rank").write_text(json.dumps(rank.probe([1, 2, 3])))
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


def test_more_ranks_than_files_check_each_once_and_find_damage_together(of_two: Path) -> None:
    records = [json.loads((of_two / f"rank-{number}").read_text()) for number in (0, 1)]
    assert [record["read whole"] for record in records] == [["__0_0.distcp"], []]
    probe, *_ = json.loads((of_two / "probe of one rank").read_text())
    for record in records:
        outcomes = record["of one rank"]
        assert outcomes["probe"] == pytest.approx(probe, abs=1e-6)
        assert outcomes["damaged"] == f"{of_two / 'of one rank'}: __0_0.distcp is not as it was written (rank 0)"


def test_a_file_that_can_not_be_read_back_to_hash_it_fails_on_all_ranks(of_two: Path) -> None:
    assert [json.loads((of_two / f"rank-{number}").read_text())["unhashed"] for number in (0, 1)] == [errno.EIO] * 2


def test_a_checkpoint_of_another_torch_is_a_problem_of_the_spec_on_all_ranks(of_two: Path) -> None:
    first, second = (json.loads((of_two / f"rank-{number}").read_text())["unreadable"] for number in (0, 1))
    assert first == second
    assert first[0] == Reason.CHECKPOINT_MISMATCH
    assert "resume with the trainer's image" in first[1]
    assert "NoSuchClass" in first[1]


@given(st.integers(1, 40), st.integers(1, 40))
def test_each_file_is_checked_by_one_rank_and_by_its_own_on_as_many(written: int, ranks: int) -> None:
    paths = {f"__{number}_0.distcp" for number in range(written)}
    by_rank = [sharded.files_of_rank(paths, rank, ranks) for rank in range(ranks)]
    assert sorted(path for of_rank in by_rank for path in of_rank) == sorted(paths)
    assert max(map(len, by_rank)) <= -(-written // ranks)
    if written == ranks:
        assert by_rank == [[f"__{rank}_0.distcp"] for rank in range(ranks)]
