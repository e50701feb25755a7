"""Times a synchronous step of Longboat and of TRL on the same model, prompts, reward and batch, one after the other."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.record import Recorder
from bench.step import longboat_step, trl_step
from bench.step.cases import CASES, Case, case_named
from bench.step.longboat_step import Setting

# Steps of a run that don't count: caches fill, memory is taken.
WARM_UP = 2
# Steps of a run that only chooses TRL's micro-batch; its last one counts.
TRIAL = 2
SLOWER = 1.1
MICRO_BATCHES = (4, 8, 16, 32, 64, 128)
# Longboat's engines, and whether they are eager; where there is a compiler, both are tried.
ENGINES = (1, 2)
HAS_COMPILER = shutil.which("g++") is not None
EAGER = (True, False) if HAS_COMPILER else (True,)
# How many of the longest samples a bin of Longboat's trainer holds.
BIN_SAMPLES = (8, 32)
# Whether its layers are compiled.
COMPILE_LAYERS = (False, True) if HAS_COMPILER else (False,)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=step`."""
    parser.add_argument("--cases", nargs="*", default=CASES, type=case_named, help="such as tail-4M-64")
    parser.add_argument("--steps", type=int, default=6, help="steps of a run that count")
    parser.add_argument("--micro-batch", type=int, help="TRL's; default: the best, searched for")
    parser.add_argument("--engines", type=int, help="Longboat's; default: the best, searched for")
    parser.add_argument(
        "--eager", action=argparse.BooleanOptionalAction, help="Longboat's; default: the best, searched for"
    )
    parser.add_argument("--bin-samples", type=int, help="Longboat's; default: the best, searched for")
    parser.add_argument(
        "--compile-layers",
        action=argparse.BooleanOptionalAction,
        help="the trainer's, Longboat's; default: the best, searched for",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each system in each case, taking turns")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Chooses each system's best setting for a case, then lets them take turns. Appends to `path`."""
    recorder = Recorder(
        path, cases=[case.name for case in arguments.cases], steps=arguments.steps, repeats=arguments.repeats
    )
    for case in arguments.cases:
        with tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder:
            scratch = Path(folder)
            case.module.build_model(case.size, model := scratch / "model")
            micro_batch = arguments.micro_batch or _best_micro_batch(recorder, case, model)
            setting = _best_setting(recorder, case, model, scratch, arguments)
            for repeat in range(arguments.repeats):
                steps = WARM_UP + arguments.steps
                rows = _trl(case, model, micro_batch, steps, repeat)[WARM_UP:]
                _write(recorder, case, "trl", repeat, rows, micro_batch=micro_batch)
                rows = longboat_step.measure(case, model, scratch, steps, repeat, setting)[WARM_UP:]
                _write(recorder, case, "longboat", repeat, rows, **asdict(setting))
    recorder.close()


def _best_micro_batch(recorder: Recorder, case: Case, model: Path) -> int:
    """Finds the size with the fastest step apart from generation; tries from small to large until one is clearly slower.

    The curve has one valley (overhead, then cache misses).
    """
    best_seconds: dict[int, float] = {}
    for size in MICRO_BATCHES:
        if size > case.samples:
            break
        rows = _trl(case, model, size, TRIAL, seed=99)[-1:]
        # Generation doesn't depend on it, and varies more than the rest.
        best_seconds[size] = min(row["step"] - row["generate"] for row in rows)
        recorder.write("setting", case=case.name, system="trl", micro_batch=size, seconds=best_seconds[size])
        if best_seconds[size] > SLOWER * min(best_seconds.values()):
            break
    return min(best_seconds, key=lambda size: best_seconds[size])


def _best_setting(recorder: Recorder, case: Case, model: Path, scratch: Path, arguments: argparse.Namespace) -> Setting:
    """Finds the best engines, with them the best bins, and with both whether layers are to be compiled.

    Values that `arguments` give are taken as they are.
    """
    tried: dict[str, Sequence[Any]] = {
        "engines": ENGINES,
        "eager": EAGER,
        "bin_samples": BIN_SAMPLES,
        "compile_layers": COMPILE_LAYERS,
    }
    for name in tried:
        if (chosen_value := getattr(arguments, name)) is not None:
            tried[name] = [chosen_value]
    first = Setting(**{name: values[0] for name, values in tried.items()})
    seconds: dict[Setting, float] = {}

    def best(settings: Iterable[Setting]) -> Setting:
        for setting in settings:
            if setting not in seconds:
                seconds[setting] = _trial(recorder, case, model, scratch, setting)
        return min(seconds, key=lambda setting: seconds[setting])

    if all(len(values) == 1 for values in tried.values()):
        return first
    chosen = best(
        replace(first, engines=engines, eager=eager) for engines in tried["engines"] for eager in tried["eager"]
    )
    chosen = best(replace(chosen, bin_samples=samples) for samples in tried["bin_samples"])
    return best(replace(chosen, compile_layers=compiled) for compiled in tried["compile_layers"])


def _trial(recorder: Recorder, case: Case, model: Path, scratch: Path, setting: Setting) -> float:
    rows = longboat_step.measure(case, model, scratch, WARM_UP + 2, 99, setting)[WARM_UP:]
    seconds = min(row["step"] for row in rows)
    recorder.write("setting", case=case.name, system="longboat", **asdict(setting), seconds=seconds)
    return seconds


def _trl(case: Case, model: Path, micro_batch: int, steps: int, seed: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", trl_step.__name__, case.name, str(model)]
    options = {"micro-batch": micro_batch, "steps": steps}
    command += [f"--{name}={value}" for name, value in {**options, "seed": seed}.items()]
    threads = str(len(os.sched_getaffinity(0)))
    environment = os.environ | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    rows: list[dict[str, float]] = json.loads(output.strip().splitlines()[-1])
    return rows


def _write(
    recorder: Recorder, case: Case, system: str, repeat: int, rows: list[dict[str, float]], **setting: Any
) -> None:
    for number, row in enumerate(rows):
        values = {"case": case.name, "system": system, "repeat": repeat, "seed": repeat, "number": number}
        recorder.write("step", **values, setting=setting, load=os.getloadavg()[0], seconds=row)
