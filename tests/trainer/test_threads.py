import pytest

from longboat_runtime.trainer.threads import thread_count


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"), [(None, 8, 8), (2.0, 8, 2), (1.5, 8, 1), (0.2, 8, 1), (16.0, 4, 4)]
)
def test_whole_cpus_of_the_quota_within_the_affinity(
    quota: float | None, affinity: int, expected: float | None
) -> None:
    assert thread_count(quota, affinity) == expected


@pytest.mark.parametrize(
    ("quota", "affinity", "ranks", "expected"), [(None, 8, 2, 4), (16.0, 64, 8, 2), (3.5, 8, 2, 1), (2.0, 8, 4, 1)]
)
def test_ranks_of_a_pod_share_its_cpus(quota: float | None, affinity: int, ranks: int, expected: int) -> None:
    assert thread_count(quota, affinity, ranks) == expected
