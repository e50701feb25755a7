"""Times the same steps of `longboat run` with and without `spec.samples`, in turn: the same prompts, seeds and so tokens."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench.record import Recorder
from bench.step import longboat_step
from bench.step.cases import case_named

# Steps of a run that don't count: caches fill, memory is taken.
WARM_UP = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=sample_files`."""
    cases = [case_named("even-0.6M-32"), case_named("even-4M-128")]
    parser.add_argument("--cases", nargs="*", default=cases, type=case_named, help="of bench/step, such as even-4M-128")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run that count")
    parser.add_argument("--every", nargs="*", type=int, default=[1, 10], help="values of samples.everySteps")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each setting in each case, taking turns")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`. `every` of a run without files is null."""
    recorder = Recorder(path, steps=arguments.steps, repeats=arguments.repeats, engines=arguments.engines)
    settings = [None, *arguments.every]
    for case in arguments.cases:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            case.module.build_model(case.size, model := Path(folder) / "model")
            for repeat in range(arguments.repeats):
                for turn in range(len(settings)):
                    every = settings[(repeat + turn) % len(settings)]
                    samples = {"everySteps": every} if every else None
                    steps = WARM_UP + arguments.steps
                    setting = longboat_step.Setting(arguments.engines)
                    rows = longboat_step.measure(case, model, Path(folder), steps, repeat, setting, samples=samples)
                    for number, row in enumerate(rows[WARM_UP:]):
                        values = {"case": case.name, "every": every, "repeat": repeat, "number": number}
                        recorder.write("step", **values, load=os.getloadavg()[0], seconds=row)
    recorder.close()
