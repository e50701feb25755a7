"""Trainer groups as the driver has them: actors on a Ray of their own."""

import asyncio
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.checkpoint.files import FilesDamaged
from longboat_runtime.checkpoint.manifest import FileEntry
from longboat_runtime.checkpoint.store import CheckpointStore
from longboat_runtime.local.ray import start_ray
from longboat_runtime.store.actor import start_store
from longboat_runtime.store.client import StoreClient
from longboat_runtime.trainer.actor import TrainerActor
from longboat_runtime.trainer.errors import NotStreamed, TrainerLost
from longboat_runtime.trainer.group import RayTrainerGroup
from longboat_runtime.trainer.protocol import ChunkRequest
from longboat_runtime.weights.publication import PublicationGone
from longboat_runtime.weights.source import WeightSource
from tests.support.checkpoints import bytes_read, described
from tests.support.publications import pack
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import make_request, make_samples, make_spec

SAMPLES = make_samples(8)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    start_ray({"longboat-store": 1, "longboat-trainer": 2}, object_store=80_000_000)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def store(cluster: None) -> StoreClient:
    store = StoreClient(start_store())
    asyncio.run(store.put(SAMPLES))
    return store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"), hidden=64)


class HeldWriter(TrainerActor):
    """Writes nothing while a file `hold` beside the directory is locked."""

    @ray.method(concurrency_group="write")
    def write(self, directory: Path) -> tuple[FileEntry, ...]:
        with suppress(OSError), directory.with_name("hold").open() as hold:
            fcntl.flock(hold, fcntl.LOCK_SH)
        return super().write(directory)


async def whole(source: WeightSource) -> dict[str, torch.Tensor]:
    """Fetches all buckets of a publication, as an engine does that comes late."""
    contents = [await (await source.bucket(number)).fetch() for number in range(len(source))]
    return {name: tensor for bucket in contents for name, tensor in bucket.tensors()}


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Keeps ranks from writing into `directory` within the block."""
    with (directory / "hold").open("w") as hold:
        fcntl.flock(hold, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def group(store: StoreClient, model: Path) -> Iterator[RayTrainerGroup]:
    """Two ranks, loaded once: a test leaves them able to train."""
    group = RayTrainerGroup(make_spec(model, trainer={"replicas": 2}), store)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longboat_runtime.trainer.group.TrainerActor", HeldWriter)
        asyncio.run(group.load())
        yield group


async def test_a_group_trains_publishes_saves_restores_and_exports(
    group: RayTrainerGroup, model: Path, tmp_path: Path
) -> None:
    report = await group.train(make_request(SAMPLES))
    assert report.step == 1
    assert report.metrics["actor/grad_norm"] > 0

    await group.snapshot()
    with held(tmp_path):
        writing = asyncio.create_task(group.write(tmp_path / "trainer"))
        publication = await group.publish(1)
        checksum = await group.published()
        another = asyncio.create_task(group.snapshot())
        await group.train(make_request(SAMPLES, step=2))
        assert not another.done(), "there is one copy, and it is being written"
    await writing
    await another
    await group.restore(tmp_path / "trainer", described(tmp_path / "trainer"))
    again = await group.publish(1)
    published = await whole(again.payload)
    assert await group.published() == again.payload.checksum == checksum == pack(published.items()).checksum
    assert again.probe_logprobs == publication.probe_logprobs
    assert await group.checksum() == checksum

    await group.export(tmp_path / "export", tmp_path / ".export.1.partial")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    parameters = dict(exported.named_parameters())
    assert published.keys() == parameters.keys()
    assert all(torch.equal(parameters[name], published[name]) for name in published)
    ids = torch.tensor([publication.probe_ids])
    logprobs = exported(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    np.testing.assert_allclose(publication.probe_logprobs, logprobs.tolist(), atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "export").decode([70, 71]) == AutoTokenizer.from_pretrained(
        model
    ).decode([70, 71])
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in (tmp_path / "export").iterdir())


async def test_a_late_engine_gets_the_published_version_while_the_trainer_trains(group: RayTrainerGroup) -> None:
    """From what each sender keeps of its part; only the next publication replaces it."""
    first = await group.publish(1)
    checksum = await group.published()
    senders = {bucket.sender for bucket in group._layout}
    assert len(senders) == 1 + (len(group._layout) > 1)
    await group.train(make_request(SAMPLES, step=2))
    assert await group.holds_publication()
    assert pack((await whole(first.payload)).items()).checksum == checksum
    second = await group.publish(2)
    with pytest.raises(PublicationGone, match="version 1 has been replaced by version 2"):
        await whole(first.payload)
    assert pack((await whole(second.payload)).items()).checksum == await group.published() != checksum


async def test_the_driver_reads_nothing_of_what_ranks_write(group: RayTrainerGroup, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, 2, 1)
    await group.snapshot()
    before = bytes_read()
    saved = await store.save(10, {}, group.write)
    found = CheckpointStore(tmp_path, 2, 2).newest()
    assert found is not None
    await group.restore(found.model, found.model_files)
    own = bytes_read() - before
    written = sum(entry.size for entry in saved.model_files)
    assert {entry.path for entry in found.model_files} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert own < min(1 << 20, written / 4)


async def test_one_damaged_file_sends_all_ranks_back_to_the_older_checkpoint(
    group: RayTrainerGroup, tmp_path: Path
) -> None:
    store, checksums = CheckpointStore(tmp_path, 2, 1), []
    for step in (10, 20):
        await group.train(make_request(SAMPLES, step=step))
        await group.snapshot()
        await store.save(step, {}, group.write)
        checksums.append(await group.checksum())
    newest = store.newest()
    assert newest is not None
    file = newest.model / "__1_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(FilesDamaged, match=r"__1_0.distcp is not as it was written \(rank 1\)") as damage:
        await group.restore(newest.model, newest.model_files)
    assert await group.checksum() == checksums[1], "the ranks live, and have restored nothing"
    store.pass_over(newest, str(damage.value))
    older = store.newest()
    assert older is not None
    assert older.step == 10
    await group.restore(older.model, older.model_files)
    assert await group.checksum() == checksums[0]


@pytest.mark.extended
async def test_a_group_whose_ranks_live_writes_what_it_has_copied_before_it_is_lost(
    group: RayTrainerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, written = asyncio.Event(), group._written

    async def noted() -> None:
        failed.set()
        await written()

    await group.train(make_request(SAMPLES))
    await group.snapshot()
    expected = await group.train(make_request(SAMPLES, step=2))
    with held(tmp_path):
        writing = asyncio.create_task(group.write(tmp_path / "trainer"))
        failing = asyncio.create_task(group._call("train", "no request"))
        with monkeypatch.context() as patch:
            patch.setattr(group, "_written", noted)
            await failed.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not failing.done(), "ranks live until they have written"
    await writing
    with pytest.raises(TrainerLost):
        await failing
    await group.load()
    await group.restore(tmp_path / "trainer", described(tmp_path / "trainer"))
    again = await group.train(make_request(SAMPLES, step=2))
    assert again.metrics["actor/pg_loss"] == expected.metrics["actor/pg_loss"]
    assert again.metrics["actor/grad_norm"] == expected.metrics["actor/grad_norm"]


async def test_a_killed_rank_is_told_and_the_group_starts_again_in_its_place(
    group: RayTrainerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was being written is lost with it, and not waited for."""
    await group.train(make_request(SAMPLES))
    await group.snapshot()
    await group.write(tmp_path / "trainer")
    expected = await group.train(make_request(SAMPLES, step=2))
    monkeypatch.setattr("longboat_runtime.trainer.group.ANSWER_SECONDS", 0.5)
    await group.snapshot()
    with held(tmp_path):
        writing = asyncio.create_task(group.write(tmp_path / "another"))
        ray.kill(group._actors[1])
        with pytest.raises(TrainerLost):
            await group.train(make_request(SAMPLES, step=3))
        with pytest.raises(TrainerLost):
            await writing
    with pytest.raises(TrainerLost):
        await group.train(make_request(SAMPLES, step=3))
    await group.load()
    await group.restore(tmp_path / "trainer", described(tmp_path / "trainer"))
    again = await group.train(make_request(SAMPLES, step=2))
    assert again.metrics["actor/pg_loss"] == expected.metrics["actor/pg_loss"]
    assert again.metrics["actor/grad_norm"] == expected.metrics["actor/grad_norm"]


async def test_chunks_that_ranks_lost_with_their_start_leave_the_whole_batch_to_be_trained(
    group: RayTrainerGroup,
) -> None:
    whole = make_request(SAMPLES)
    first, second = whole.samples[:4], whole.samples[4:]
    left = replace(whole, samples=second, chunks=1)
    await group.accumulate(ChunkRequest(1, first, whole.denominator))
    await group.load()
    for refused in (group.accumulate(ChunkRequest(1, second, whole.denominator, chunks=1)), group.train(left)):
        with pytest.raises(NotStreamed):
            await refused
    assert (await group.train(whole)).step == 1
    await group.accumulate(ChunkRequest(2, first, whole.denominator))
    assert (await group.train(replace(left, step=2))).metrics["actor/loss_tokens"] == sum(
        sample.size.trained for sample in whole.samples
    )
    await group.accumulate(ChunkRequest(3, first, whole.denominator))
    await group.train(replace(whole, step=3))
    with pytest.raises(NotStreamed):
        await group.train(replace(left, step=3))


async def test_samples_the_store_has_lost_leave_the_trainer_as_it_was(group: RayTrainerGroup) -> None:
    gone = replace(SAMPLES[3], id=SAMPLES[3].id._replace(row=99))
    with pytest.raises(KeyError) as missing:
        await group.train(make_request([*SAMPLES[:3], gone]))
    assert missing.value.args == (gone.id,)
    assert (await group.train(make_request(SAMPLES))).step == 1


async def test_a_volume_that_cannot_be_written_leaves_the_trainer_as_it_was(
    group: RayTrainerGroup, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    await group.snapshot()
    with pytest.raises(OSError, match="file"):
        await group.write(tmp_path / "file" / "trainer")
    assert (await group.train(make_request(SAMPLES))).step == 1


async def test_stacks_name_every_rank(group: RayTrainerGroup) -> None:
    stacks = await group.stacks()
    assert stacks.keys() == {"trainer-0", "trainer-1"}
    assert "Thread" in stacks["trainer-0"]


@pytest.mark.extended
async def test_a_model_that_is_not_there_is_a_problem_of_the_spec(group: RayTrainerGroup, store: StoreClient) -> None:
    await group.close()
    without = RayTrainerGroup(make_spec(Path("/nowhere/model")), store)
    with pytest.raises(SpecProblem) as problem:
        await without.load()
    assert problem.value.reason == Reason.MODEL_NOT_FOUND
    await without.close()
