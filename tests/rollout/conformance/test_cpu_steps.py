"""Engines on CPUs do less for each sequence, with the results that vLLM has."""

from random import Random

import pytest
import torch

pytest.importorskip("vllm")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from longboat_runtime import cpu
from longboat_runtime.cpu import steps

ROWS, VOCABULARY = 5, 50
STEPS = 2 * steps.DRAWN + 3


def sampler() -> TopKTopPSampler:
    """Without the rest of an engine, which its constructor asks for its configuration."""
    made = TopKTopPSampler.__new__(TopKTopPSampler)
    torch.nn.Module.__init__(made)
    made.use_fp64_gumbel, made.logprobs_mode = False, "processed_logprobs"
    return made


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_workers_extension_makes_vllm_do_so() -> None:
    resolve_obj_by_qualname(cpu.WORKER_EXTENSION)

    assert TopKTopPSampler.forward_cpu is steps._sample
    assert KVCacheManager.allocate_slots is steps._allocate


@pytest.mark.parametrize("seeded", [range(ROWS), (0, 3)], ids=["all", "some"])
def test_tokens_are_those_of_vllm(seeded: range | tuple[int, ...]) -> None:
    """Also where requests change places, and where others in the batch have no seed."""
    random = torch.Generator().manual_seed(1)
    ours, theirs = ({row: generator(row) for row in seeded} for _ in range(2))
    for _ in range(STEPS):
        logits = torch.randn(ROWS, VOCABULARY, generator=random)
        found, kept = steps._sample(sampler(), logits, ours, None, None)
        expected, expected_kept = steps._sample_by_vllm(sampler(), logits, theirs, None, None)
        assert torch.equal(found[list(seeded)], expected[list(seeded)])
        assert torch.equal(kept, expected_kept)
        order = torch.randperm(len(seeded), generator=random).tolist()
        ours, theirs = (
            {row: list(each.values())[place] for row, place in zip(seeded, order, strict=True)}
            for each in (ours, theirs)
        )


def test_a_generator_that_is_gone_leaves_nothing() -> None:
    before = len(steps._seeds)
    mine = generator(7)
    steps.seed(mine)
    assert len(steps._seeds) == before + 1
    del mine
    assert len(steps._seeds) == before


BLOCK, BLOCKS, LONGEST = 4, 24, 40


def manager(*, caching: bool) -> KVCacheManager:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, LONGEST, BLOCK, BLOCK, enable_caching=caching)


def prompted(name: str, prompt: list[int]) -> Request:
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, prompt, SamplingParams(max_tokens=LONGEST), None, block_hasher=hasher)


@pytest.mark.parametrize("caching", [False, True])
def test_blocks_are_those_of_vllm(*, caching: bool) -> None:
    """Of requests that begin, some with a common prefix, grow by one or several tokens, and end or are preempted at random."""
    init_none_hash(sha256)
    random = Random(0)
    quick = 0
    both = manager(caching=caching), manager(caching=caching)
    running: dict[str, tuple[Request, Request]] = {}
    for number in range(2000):
        if len(running) < 6 and random.random() < 0.2:
            prompt = [random.choice([7, 8])] * BLOCK + random.choices(range(100), k=random.randint(1, 9))
            pair = prompted(str(number), prompt), prompted(str(number), prompt)
            hits = [each.get_computed_blocks(request) for each, request in zip(both, pair, strict=True)]
            found = [
                allocate(each, request, request.num_tokens - hit[1], hit[1], hit[0])
                for allocate, each, request, hit in zip(ALLOCATE, both, pair, hits, strict=True)
            ]
            assert (found[0] is None) == (found[1] is None)
            if found[0] is None:
                continue
            assert found[0].get_block_ids() == found[1].get_block_ids()
            running[str(number)] = pair
            for request in pair:
                request.num_computed_tokens = request.num_tokens
        for name, pair in list(running.items()):
            drawn = random.choices(range(100), k=random.choice([1, 1, 1, 2]))
            for request in pair:
                request.append_output_token_ids(drawn)
            quick += steps.has_slots(both[0], pair[0], len(drawn))
            found = [
                allocate(each, request, len(drawn), num_lookahead_tokens=0)
                for allocate, each, request in zip(ALLOCATE, both, pair, strict=True)
            ]
            assert (found[0] is None) == (found[1] is None)
            ends = found[0] is None or pair[0].num_tokens > LONGEST - 2 or random.random() < 0.05
            if found[0] is not None:
                assert found[0].get_block_ids() == found[1].get_block_ids()
            for each, request in zip(both, pair, strict=True):
                request.num_computed_tokens += len(drawn)
                if ends:
                    each.free(request)
            if ends:
                del running[name]
        first, second = (each.coordinator.single_type_managers[0] for each in both)
        assert first.num_cached_block == second.num_cached_block
        assert both[0].block_pool.get_num_free_blocks() == both[1].block_pool.get_num_free_blocks()
    assert quick > 1000, "most steps need no block"


ALLOCATE = steps._allocate, steps._allocate_by_vllm
