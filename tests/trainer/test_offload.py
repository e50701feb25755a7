"""Activations in host memory: the same bits, and little on the device."""

import mmap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.multiprocessing.reductions import StorageWeakRef

from longboat_crds.problems import SpecProblem
from longboat_crds.trainer import TrainerSpec
from longboat_runtime.trainer import logprobs, sharding
from longboat_runtime.trainer.batch import WeightedSegment, build_batch
from longboat_runtime.trainer.copies import HostCopies, pinned
from longboat_runtime.trainer.forward import response_logprobs
from longboat_runtime.trainer.machine import Machine
from longboat_runtime.trainer.offload import Offload
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.sharding import layers
from tests.support.architectures import tiny_config
from tests.support.tiny_model import build_tiny_experts, build_tiny_model, save_random_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank, run_ranks

STEPS = [make_samples(9, seed=seed) for seed in range(2)]
KL = {"klCoefficient": 0.1}


def trained(rank: TrainerRank) -> dict[str, Tensor]:
    """Weights after two steps of several bins, and the gradient of a third."""
    for number, samples in enumerate(STEPS, start=1):
        rank.train(make_request(samples, step=number), fetch_from(samples))
    _, [batches] = rank._minibatches(make_request(STEPS[0]), fetch_from(STEPS[0]))
    assert len(batches) > 1
    reference = [[torch.zeros(len(batch.targets)) for batch in batches]][0]
    rank.updates.accumulate(batches, None, reference)
    weights = rank.updates.parameters
    return {name: full(weight.detach()).clone() for name, weight in weights.items()} | {
        f"gradient of {name}": full(weight.grad).clone() for name, weight in weights.items()
    }


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def gpt2(directory: Path) -> Path:
    from transformers import AutoModelForCausalLM

    return save_random_model(AutoModelForCausalLM.from_config, tiny_config("gpt2"), directory)


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("build", [build_tiny_model, build_tiny_experts, gpt2])
def test_training_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, *, fsdp: bool
) -> None:
    monkeypatch.setattr(sharding, "needs_fsdp", lambda *_: fsdp)
    model, results = build(tmp_path / "model"), []
    for offloaded in (False, True):
        trainer = {"gradientCheckpointing": True, "offloadActivations": offloaded}
        with only_rank(make_spec(model, trainer=trainer, algorithm=KL)) as rank:
            results.append(trained(rank))
    assert_same_bits(*results)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.extended)])
def test_compiled_layers_give_the_same_bits_and_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    logprobs._compiled.cache_clear()
    model, results, graphs = build_tiny_model(tmp_path / "model", hidden=64, layers=3), [], []
    for offloaded in (False, True):
        torch._dynamo.reset()
        counters.clear()
        trainer = {"compile": True, "gradientCheckpointing": True, "offloadActivations": offloaded}
        with only_rank(make_spec(model, trainer=trainer)) as rank:
            results.append(trained(rank))
        graphs.append(counters["stats"]["unique_graphs"])
    assert_same_bits(*results)
    assert graphs[1] == graphs[0] > 0


def train_and_save(rank: TrainerRank, directory: Path) -> None:
    result = trained(rank)
    if rank.rank == 0:
        torch.save(result, directory / f"offloaded-{rank.spec.trainer.offload_activations}")


@pytest.mark.extended
def test_two_ranks_give_the_same_bits(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model", hidden=64)
    for offloaded in (False, True):
        trainer = {"gradientCheckpointing": True, "offloadActivations": offloaded}
        run_ranks(2, train_and_save, make_spec(model, trainer=trainer), tmp_path)
    assert_same_bits(*(torch.load(tmp_path / f"offloaded-{offloaded}") for offloaded in (False, True)))


class Recorded(Machine):
    """A machine that notes what is pinned and copied. `host` are the pinned tensors' memory."""

    def __init__(self) -> None:
        self.pinned_bytes: list[int] = []
        self.host: set[int] = set()
        self.events: list[str] = []

    def pinned(self, size: int) -> Tensor:
        memory = super().pinned(size)
        self.pinned_bytes.append(size)
        self.host.add(memory.untyped_storage().data_ptr())
        return memory

    def copies(self) -> "Recorded":
        return self

    def start(self, target: Tensor, source: Tensor) -> int:
        HostCopies().start(target, source)
        leaves = target.untyped_storage().data_ptr() in self.host
        self.events.append("out" if leaves else "in")
        return len(self.events)

    def wait(self, done: int) -> None:
        self.events.append(f"wait {done}")


def offloading(model: Path, machine: Recorded, bin_tokens: int = 64) -> Any:
    """The context of a rank whose model offloads by `machine`."""
    world = only_rank(make_spec(model, trainer={"gradientCheckpointing": True}))
    rank = world.__enter__()
    Offload(machine, bin_tokens).install(rank.model)
    return world, rank


def test_the_device_holds_what_two_layers_were_given_and_fetches_one_ahead(tmp_path: Path) -> None:
    machine = Recorded()
    world, rank = offloading(build_tiny_model(tmp_path / "model", hidden=64, layers=5), machine, 256)
    try:
        inputs: list[StorageWeakRef] = []
        present: list[int] = []

        def note(_: Any, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(StorageWeakRef(arguments[0].untyped_storage()))
            present.append(sum(not storage.expired() for storage in inputs))
            machine.events.append("layer")

        for layer in layers(rank.model):
            layer.register_forward_pre_hook(note)
        batch = build_batch([WeightedSegment(STEPS[0][0], 1.0, 1.0)], rank.device)
        log_probs, _ = response_logprobs(rank.model, batch, platform=machine)
        assert machine.events.count("out") == 5
        assert len(machine.pinned_bytes) == 5
        # Each leaves while its layer computes, and is waited for when the next one leaves.
        assert machine.events[:5] == ["out", "layer", "wait 1", "out", "layer"]
        assert max(present) <= 2
        del machine.events[:]
        log_probs.sum().backward()
        assert max(present) <= 3
        computed = [event for event in machine.events if event in ("in", "layer")]
        assert computed == ["in", "in", "layer", "in", "layer", "in", "layer", "in", "layer", "layer"]
        # In later passes the memory is the same.
        response_logprobs(rank.model, batch, platform=machine)[0].sum().backward()
        assert len(machine.pinned_bytes) == 5
    finally:
        world.__exit__(None, None, None)


def test_memory_is_pinned_once_for_the_largest_bin(tmp_path: Path) -> None:
    machine = Recorded()
    world, rank = offloading(build_tiny_model(tmp_path / "model", hidden=64), machine, bin_tokens=1024)
    try:
        for count in (1, 4, 2):
            batch = build_batch([WeightedSegment(sample, 1.0, 1.0) for sample in STEPS[0][:count]], rank.device)
            response_logprobs(rank.model, batch, platform=machine)[0].sum().backward()
        assert machine.pinned_bytes == [1024 * 64 * 4] * 2
    finally:
        world.__exit__(None, None, None)


class Pages:
    """CUDA's table of pinned host memory, which refuses to pin a page twice."""

    def __init__(self) -> None:
        self.pinned: dict[int, set[int]] = {}
        self.error = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        pages = set(range(address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)))
        if self.error or any(pages & others for others in self.pinned.values()):
            return self.error or 712
        self.pinned[address] = pages
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        assert is_mapped(address), "it is unpinned before it is freed"
        del self.pinned[address]
        return 0


def is_mapped(address: int) -> bool:
    """Whether this process has memory at an address."""
    ranges = (line.split(maxsplit=1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    table = Pages()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: table)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return table


def test_pinned_memory_has_pages_of_its_own_until_nothing_uses_it(pages: Pages) -> None:
    sizes = [1, 100, mmap.PAGESIZE, mmap.PAGESIZE + 1, 1 << 26]
    buffers = [pinned(size) for size in sizes]
    assert [buffer.nbytes for buffer in buffers] == sizes
    assert all(buffer.data_ptr() in pages.pinned for buffer in buffers)
    assert all(buffer.data_ptr() % mmap.PAGESIZE == 0 for buffer in buffers)
    view = buffers.pop()[:64].view(torch.float32)
    del buffers[:]
    assert [*pages.pinned] == [view.data_ptr()]
    del view
    assert not pages.pinned


def test_a_host_that_pins_no_more_is_a_problem_of_the_spec(pages: Pages) -> None:
    pages.error = 2
    with pytest.raises(SpecProblem, match=r"can't pin 100 more bytes \(CUDA error 2\)"):
        pinned(100)
    assert not pages.pinned


class Pinned(Recorded):
    """A machine that pins memory as a GPU's does."""

    def pinned(self, size: int) -> Tensor:
        return pinned(size)


def test_memory_that_is_too_small_for_a_pass_is_replaced_and_unpinned(pages: Pages) -> None:
    offload = Offload(Pinned(), 4)
    for count in (4, 64, 4):
        weight = torch.nn.Parameter(torch.randn(count, 512))
        offload._begin(torch.nn.Module(), (), {"input_ids": torch.zeros(1, count)})
        offload._checkpoint(_product_sum, weight * 2, weight).backward()
        assert torch.equal(weight.grad, weight.detach() * 4)
        assert len(pages.pinned) == 1


def test_a_pass_without_a_backward_pass_is_forgotten_and_an_old_one_is_refused(tmp_path: Path) -> None:
    world, rank = offloading(build_tiny_model(tmp_path / "model", hidden=64), Recorded())
    try:
        batch = build_batch([WeightedSegment(STEPS[0][0], 1.0, 1.0)], rank.device)
        first, _ = response_logprobs(rank.model, batch, platform=rank.platform)
        second, _ = response_logprobs(rank.model, batch, platform=rank.platform)
        second.sum().backward()
        with pytest.raises(RuntimeError, match="no longer there"):
            first.sum().backward()
    finally:
        world.__exit__(None, None, None)


def _product_sum(first: Tensor, second: Tensor) -> Tensor:
    return (first.flatten() * second.flatten()).sum()


def test_weights_and_tables_stay_on_the_device() -> None:
    machine, table = Recorded(), torch.randn(4, 8)
    weight = torch.nn.Parameter(torch.randn(4, 8))
    offload = Offload(machine, 4)
    offload._begin(torch.nn.Module(), (), {"input_ids": torch.zeros(1, 4)})
    computed = weight * 2
    for first in (weight, weight.view(2, 16), table, computed):
        offload._checkpoint(_product_sum, first, weight).backward(retain_graph=True)
    assert machine.pinned_bytes == [computed.nbytes]


@pytest.mark.parametrize(
    ("trainer", "fits", "expected"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"gradientCheckpointing": False}, False, False),
        ({"gradientCheckpointing": True}, True, True),
        ({"offloadActivations": True}, True, True),
    ],
)
def test_layers_are_recomputed_where_the_spec_says_so_or_a_bin_does_not_fit(
    trainer: dict[str, bool], *, fits: bool, expected: bool
) -> None:
    assert TrainerSpec.model_validate(trainer).recomputes(fits=fits) is expected
