"""Searches for a setting in which the former loss collapses, and measures the others there. About an hour of one CPU.

Trainings that the raw file has are not run again: an interrupted run resumes where it was. Remove the file after a change of
anything that is trained.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.record import Recorder, read
from bench.trust_region.protocol import (
    ARMS,
    BEFORE,
    CANDIDATES,
    CONFIRMATION_SEEDS,
    DEFAULT,
    PROMPTS,
    SEARCH_SEEDS,
    SELECTION_SEEDS,
    SETTINGS,
    STEPS,
    SYNCHRONOUS,
    USUAL,
    Setting,
    Training,
    collapsed,
    search_ended,
)
from bench.trust_region.training import Bench, open_bench

EACH = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=trust_region`."""
    phases = ("search", "select", "confirm", "compare")
    parser.add_argument("--phases", nargs="*", choices=phases, default=phases, help="only some, in this order")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Appends to `path`; prints the outcome of each training."""
    earlier = known_lines(path)
    recorder = Recorder(path, steps=STEPS, prompts=PROMPTS, each=EACH)
    with (
        tempfile.TemporaryDirectory(prefix="longboat-bench-") as folder,
        open_bench(Path(folder), STEPS, PROMPTS) as bench,
    ):
        measurement = Measurement(bench, recorder, earlier)
        setting = measurement.search() if set(arguments.phases) - {"compare"} else None
        if setting is not None:
            if "select" in arguments.phases:
                measurement.all("select", [*CANDIDATES], setting, SELECTION_SEEDS)
            if "confirm" in arguments.phases:
                measurement.all("confirm", [DEFAULT, BEFORE], setting, CONFIRMATION_SEEDS)
        if "compare" in arguments.phases:
            measurement.all("compare", [SYNCHRONOUS, DEFAULT], USUAL, CONFIRMATION_SEEDS)
    recorder.close()


def known_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of trainings, and of the untrained model; none if there is no file."""
    return [line for line in read(path) if line["kind"] != "run"] if path.exists() else []


class Measurement:
    """Runs the trainings that aren't known yet."""

    def __init__(self, bench: Bench, recorder: Recorder, earlier: list[dict[str, Any]]) -> None:
        self._bench, self._recorder = bench, recorder
        self._known = {training_of(line): line for line in earlier if line["kind"] == "training"}
        untrained = next((line for line in earlier if line["kind"] == "untrained"), None)
        if untrained is None:
            answers = bench.examine(None, EACH)
            untrained = {"reward": answers.reward, "held_out": answers.right}
            recorder.write("untrained", **untrained)
        self._untrained = untrained["reward"]

    def search(self) -> Setting | None:
        """Finds the mildest of SETTINGS in which the former loss collapses often enough; None if there is none."""
        for setting in SETTINGS:
            outcomes: list[bool] = []
            for seed in SEARCH_SEEDS:
                outcomes.append(self.collapses(Training("search", BEFORE, setting, seed)))
                ended = search_ended(outcomes)
                if ended is not None:
                    break
            if ended:
                return setting
        return None

    def all(self, phase: str, arms: list[str], setting: Setting, seeds: range) -> None:
        """Runs all trainings that aren't known yet, seed by seed: arms have about equally many even if this is interrupted."""
        for seed in seeds:
            for arm in arms:
                self.collapses(Training(phase, arm, setting, seed))

    def collapses(self, training: Training) -> bool:
        """Runs the training unless it is known; returns whether it collapsed."""
        if training not in self._known:
            began = time.process_time()
            staleness = 0 if training.arm == SYNCHRONOUS else training.setting.staleness
            spec = self._bench.spec(training.seed, training.setting, ARMS[training.arm])
            values = self._bench.train(spec, staleness, EACH, lambda rewards: collapsed(rewards, self._untrained))
            line = {**training._asdict(), "cpu_seconds": round(time.process_time() - began, 1), **values}
            self._recorder.write("training", **line)
            self._known[training] = line
            print(
                f"{training.phase} {training.arm} rate {training.setting.rate:g} staleness {training.setting.staleness} seed "
                f"{training.seed}: {'collapsed' if values['collapsed'] else 'held'} after {len(values['reward'])} steps, last reward "
                f"{[math.nan, *values['reward']][-1]:.2f}, {line['cpu_seconds']} CPU s",
                flush=True,
            )
        return bool(self._known[training]["collapsed"])


def training_of(line: dict[str, Any]) -> Training:
    """Returns the training that a raw line belongs to."""
    return Training(line["phase"], line["arm"], Setting(*line["setting"]), line["seed"])
