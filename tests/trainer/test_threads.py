import pytest

from longboat_runtime.trainer.threads import thread_count


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"), [(None, 8, 8), (2.0, 8, 2), (1.5, 8, 1), (0.2, 8, 1), (16.0, 4, 4)]
)
def test_whole_cpus_of_the_quota_within_the_affinity(
    quota: float | None, affinity: int, expected: float | None
) -> None:
    assert thread_count(quota, affinity) == expected
