import os
import subprocess
import sys
from pathlib import Path

from bench.engine_step.measure import bands
from bench.engine_step.processes import cpu_seconds, innermost, used
from bench.engine_step.summary import table
from tests.support.waiting import eventually


def test_only_decode_steps_of_about_the_size_count() -> None:
    steps = [(1, 0, 0.001, 0.001), (1, 7, 9.0, 9.0), (9, 0, 0.002, 0.001), (10, 0, 9.0, 9.0), (30, 0, 0.004, 0.003)]
    assert bands(steps) == {"1": [[0.001, 0.001]], "8": [[0.002, 0.001]], "32": [[0.004, 0.003]]}


def test_cpu_of_a_child_is_counted_under_its_name() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        name, _ = eventually(lambda: cpu_seconds(os.getpid()).get(child.pid, ("", 0.0)), lambda seen: seen[1] > 0.0)
    finally:
        child.kill()
        child.wait()
    assert name == Path(sys.executable).name
    before = {1: ("driver", 1.0), 2: ("engine", 2.0)}
    assert used(before, before | {1: ("driver", 1.5), 3: ("engine", 0.25)}) == {"driver": 0.5, "engine": 0.25}


def test_samples_are_counted_by_the_innermost_function() -> None:
    assert innermost(["main (a.py:1);step (b.py:2) 3", "step (b.py:2) 4"]) == {"step (b.py:2)": 7}


def test_the_table_compares_medians() -> None:
    run = {
        "machine": {"processor": "a", "cpus": 2, "load": 0.0},
        "settings": {"turns": 1, "rounds": 2},
        "commit": "c",
    }
    job = {"cpu": {"driver": 3.0}, "functions": {}, "wall": 6.0, "step": [2.0, 4.0], "rollout": [1.0], "update": [1.0]}
    alone = {"kind": "arm", "arm": "alone", "bands": {"1": [[0.001, 0.001], [0.002, 0.001], [0.009, 0.001]]}}
    inside = {"kind": "arm", "arm": "job", "bands": {"1": [[0.003, 0.002]]}, **job}
    text = table(run, alone, inside)
    assert "| 1 | 3, 1 | 2.00 | 1.00 | 1.00 | 3.00 | 2.00 | 1.00 | 1.50x |" in text
    assert "| driver | 1.500 | 25.0% |" in text
