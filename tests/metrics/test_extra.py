"""The numbers that reward functions give besides scores."""

from longboat_runtime.metrics.batch import ExtraMetrics
from longboat_runtime.rounds.records import SampleRecord


def record(**metrics: float) -> SampleRecord:
    return SampleRecord(0, metrics={name.replace("__", "/"): value for name, value in metrics.items()})


def test_means_are_over_the_samples_that_have_the_number() -> None:
    samples = [record(math__acc=1.0, math__steps=3.0), record(math__acc=0.0), record()]
    assert ExtraMetrics().means(samples) == {"reward/extra/math/acc/mean": 0.5, "reward/extra/math/steps/mean": 3.0}


def test_a_function_has_as_many_keys_as_a_job_can_show_whatever_it_gives() -> None:
    extra, names = ExtraMetrics(), set[str]()
    for step in range(100):
        samples = [SampleRecord(0, metrics={f"f/{step}.{i}.{k}": 1.0 for k in range(8)}) for i in range(4)]
        names |= extra.means([*samples, record(g__ok=1.0)]).keys()
    assert len(names) == 32 + 1 + 1
    assert extra.means(samples)["reward/extra/f/left_out/mean"] == 8.0
    assert "reward/extra/g/ok/mean" in names


def test_huge_numbers_have_a_mean() -> None:
    assert ExtraMetrics().means([record(f__x=1e308), record(f__x=1e308)]) == {"reward/extra/f/x/mean": 1e308}
