"""The benchmark of sizes, with models so small that CPUs run it."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from bench.record import of_kind, read
from bench.size import measure, predicted, summary


def test_every_case_is_measured_and_summarised(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    measure.add_arguments(parser)
    options = ["--shapes", "tiny", "--layers", "2", "--tokens", "32", "--device", "cpu", "--no-compiled"]
    raw = tmp_path / "size.jsonl"
    measure.run(parser.parse_args(options), raw)
    lines = [*read(raw)]
    measured = of_kind(lines, "case")
    assert [(line["case"]["fused"], line["case"]["offloaded"]) for line in measured] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert all(
        line["peak"] > 0 and line["seconds"] > 0 and line["mfu"]["palm"] > line["mfu"]["causal"] for line in measured
    )
    predictions = of_kind(lines, "predicted")
    assert [line["case"] for line in predictions] == [line["case"] for line in measured]
    assert all(line["held"] > 0 and line["peak"] > 0 for line in predictions)
    summary.write(raw)
    page = raw.with_suffix(".md").read_text()
    assert page.count("| tiny | 32 | eager |") == 3


def test_a_prediction_that_fails_is_an_error(tmp_path: Path) -> None:
    spec = measure.Case("tiny", 32, compiled=False, fused=True, offloaded=False).spec(tmp_path / "none")
    with (
        pytest.raises(RuntimeError, match="exit status 1"),
        predicted.started([(spec, True)]) as predictions,
    ):
        next(predictions)


def test_neither_ray_nor_vllm_is_imported() -> None:
    script = (
        "import sys; sys.modules |= dict.fromkeys(('ray', 'vllm')); import bench.size.measure, bench.size.predicted"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_case_begins_that_would_end_too_late(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    measure.add_arguments(parser)
    options = ["--shapes", "tiny", "--tokens", "32", "--device", "cpu", "--minutes", "0"]
    raw = tmp_path / "size.jsonl"
    measure.run(parser.parse_args(options), raw)
    assert len(of_kind([*read(raw)], "skipped")) == len(measure.cases(["tiny"], [32], compiled=True))
    summary.write(raw)


def test_a_peak_far_from_the_prediction_misses_the_bar_on_a_gpu() -> None:
    run = {"kind": "run", "settings": {"gpu": "H200"}}

    def lines(peak: int, *, compiled: bool) -> list[dict]:
        case = {"shape": "8B", "compiled": compiled}
        return [
            run,
            {"kind": "case", "case": case, "held": 50, "peak": peak},
            {"kind": "predicted", "case": case, "held": 50, "peak": 50},
        ]

    assert summary.missed(lines(54, compiled=False)) == summary.missed(lines(46, compiled=False)) == []
    assert len(summary.missed(lines(56, compiled=False))) == len(summary.missed(lines(44, compiled=False))) == 1
    assert len(summary.missed(lines(56, compiled=True))) == 1
    assert summary.missed(lines(30, compiled=True)) == []
