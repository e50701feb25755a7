from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.samples import SampleId, continued_seed, sample_seed


def test_a_seed_never_changes() -> None:
    """A job must be able to resume under a later release: the value is part of the checkpoint's meaning."""
    assert sample_seed("job", 0, SampleId(0, 0, 0, 0)) == 1403355663
    assert sample_seed("job", 7, SampleId(1, 20, 3, 4)) == 759178425


def test_a_sample_continues_by_another_seed_each_time() -> None:
    assert continued_seed(1403355663, 0) == 1403355663
    assert len({continued_seed(1403355663, begun) for begun in range(1000)}) == 1000
    assert continued_seed(1403355663, 7) == 1723439078


@given(st.text(max_size=20), st.integers(0), st.tuples(*[st.integers(-3, 1000)] * 4))
def test_a_seed_has_31_bits(job: str, seed: int, sample: tuple[int, int, int, int]) -> None:
    assert 0 <= sample_seed(job, seed, SampleId(*sample)) < 2**31


def test_every_part_of_the_name_matters() -> None:
    names = [
        ("a", 0, (0, 0, 0, 0)),
        ("b", 0, (0, 0, 0, 0)),
        ("a", 1, (0, 0, 0, 0)),
        ("a", 0, (1, 0, 0, 0)),
        ("a", 0, (0, 1, 0, 0)),
        ("a", 0, (0, 0, 1, 0)),
        ("a", 0, (0, 0, 0, 1)),
        ("a", 0, (0, 0, 1, 1)),
    ]
    assert len({sample_seed(job, seed, SampleId(*sample)) for job, seed, sample in names}) == len(names)
