"""What the step benchmark says of its repeats."""

import math

import pytest

from bench.step.summary import faster, lower_bound


def line(system: str, repeat: int, step: float, generate: float) -> dict:
    return {
        "kind": "step",
        "case": "even-0.6M-32",
        "system": system,
        "repeat": repeat,
        "seconds": {"step": step, "generate": generate},
    }


def test_each_repeat_is_compared_by_its_medians() -> None:
    lines = [line("trl", 0, step, 0.5) for step in (1.0, 1.5, 9.0)] + [line("longboat", 0, 1.0, 0.5)]
    lines += [line("trl", 1, 2.0, 1.0), line("longboat", 1, 1.0, 0.75), line("trl", 2, 1.0, 0.5)]
    assert faster(lines, "even-0.6M-32") == {"step": [1.5, 2.0], "rest": [2.0, 4.0]}


def test_the_bound_is_the_t_interval_of_logarithms() -> None:
    assert lower_bound([2.0]) is None
    assert lower_bound([1.5, 1.5, 1.5]) == pytest.approx(1.5)
    # Mean log 0, standard deviation log 2.
    assert lower_bound([0.5, 1.0, 2.0]) == pytest.approx(math.exp(-2.920 * math.log(2) / math.sqrt(3)))
    assert lower_bound([1.0, 1.2] * 10) < 1.1
