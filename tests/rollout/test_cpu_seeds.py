"""Seeds drawn many at a time are those drawn one by one."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from longboat_runtime.rollout import cpu_seeds

ROWS, VOCABULARY = 5, 50
STEPS = 2 * cpu_seeds.DRAWN + 3


def sampler() -> TopKTopPSampler:
    """Without the rest of an engine, which its constructor asks for its configuration."""
    made = TopKTopPSampler.__new__(TopKTopPSampler)
    torch.nn.Module.__init__(made)
    made.use_fp64_gumbel, made.logprobs_mode = False, "processed_logprobs"
    return made


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_workers_extension_makes_vllm_draw_so() -> None:
    import longboat_runtime.weights.backend  # noqa: F401

    assert TopKTopPSampler.forward_cpu is cpu_seeds._forward


@pytest.mark.parametrize("seeded", [range(ROWS), (0, 3)], ids=["all", "some"])
def test_tokens_are_those_of_vllm(seeded: range | tuple[int, ...]) -> None:
    """Also where requests change places, and where others in the batch have no seed."""
    random = torch.Generator().manual_seed(1)
    ours, theirs = ({row: generator(row) for row in seeded} for _ in range(2))
    for _ in range(STEPS):
        logits = torch.randn(ROWS, VOCABULARY, generator=random)
        found, kept = cpu_seeds._forward(sampler(), logits, ours, None, None)
        expected, expected_kept = cpu_seeds._by_vllm(sampler(), logits, theirs, None, None)
        assert torch.equal(found[list(seeded)], expected[list(seeded)])
        assert torch.equal(kept, expected_kept)
        order = torch.randperm(len(seeded), generator=random).tolist()
        ours, theirs = (
            {row: list(each.values())[place] for row, place in zip(seeded, order, strict=True)}
            for each in (ours, theirs)
        )


def test_a_generator_that_is_gone_leaves_nothing() -> None:
    before = len(cpu_seeds._seeds)
    mine = generator(7)
    cpu_seeds.seed(mine)
    assert len(cpu_seeds._seeds) == before + 1
    del mine
    assert len(cpu_seeds._seeds) == before
