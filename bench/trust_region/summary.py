"""Tables and plot of the trust-region benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.picture import picture
from bench.record import read
from bench.rounds.estimates import Estimate, mean
from bench.trust_region.protocol import (
    BEFORE,
    CANDIDATES,
    DEFAULT,
    LOSS,
    PROMPTS,
    SETTINGS,
    STEPS,
    SYNCHRONOUS,
    WINDOW,
    Setting,
    best,
)

# The lower end of the difference to synchronous training must be above this, in points.
WORST_DIFFERENCE = -5.0

Lines = Sequence[Mapping[str, Any]]


def write(raw: Path) -> None:
    """Writes `trust_region.md` and `trust_region.svg` beside the raw file."""
    lines = list(read(raw))
    trainings = [line for line in lines if line["kind"] == "training"]
    untrained = next((line for line in lines if line["kind"] == "untrained"), None)
    if untrained is None:
        return
    runs = [line for line in lines if line["kind"] == "run"]
    commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
    versions = ", ".join(f"{package} {value}" for package, value in runs[-1]["versions"].items())
    parts = [
        "# Trust regions of off-policy rounds",
        "",
        f"{runs[-1]['machine']['processor']}. {versions}. Commits {commits}.",
        (
            f"Model, data and rewards of the quickstart, {PROMPTS} prompts x 8 responses a step, {STEPS} steps; every token is as old as "
            "maxStaleness allows. What a collapse is, and the order of the measurement, is in `bench/trust_region/__init__.py`. The "
            f"untrained model has reward {untrained['reward']:.3f} and {100 * np.mean(untrained['held_out']):.1f} % right answers to the "
            "held-out prompts."
        ),
        "",
        *_search(_of_phase(trainings, "search")),
        *_select(_of_phase(trainings, "select"), _of_phase(trainings, "search")),
        *_confirm(_of_phase(trainings, "confirm")),
        *_compare(_of_phase(trainings, "compare")),
    ]
    raw.with_suffix(".md").write_text("\n".join(parts))
    plot(trainings, untrained["reward"], raw.with_suffix(".svg"))


def _of_phase(trainings: Lines, phase: str) -> Lines:
    return [line for line in trainings if line["phase"] == phase]


def _search(lines: Lines) -> list[str]:
    text = [
        "## Search",
        "",
        "The loss as it was: truncated importance weights, cap 2, one minibatch. A setting is left as soon as its answer is certain.",
        "",
        "| learning rate | maxStaleness | collapsed | of seeds |",
        "|---|---|---|---|",
    ]
    for setting in SETTINGS:
        trainings = _at(lines, setting)
        if trainings:
            text.append(
                f"| {setting.rate:g} | {setting.staleness} | {sum(line['collapsed'] for line in trainings)} | {len(trainings)} |"
            )
    return [*text, ""]


def _select(lines: Lines, before: Lines) -> list[str]:
    text: list[str] = []
    for setting in SETTINGS:
        own = _at(lines, setting)
        if own:
            seeds = {line["seed"] for line in own}
            beside = [line for line in _at(before, setting) if line["seed"] in seeds]
            text += [
                *([] if text else ["## Candidates", ""]),
                f"At rate {setting.rate:g} and maxStaleness {setting.staleness}, on the same seeds.",
                "",
                *_table([*beside, *own]),
                "",
            ]
            if {line["arm"] for line in own} >= CANDIDATES.keys():
                text += [f"Chosen by the rule: {chosen(own)}.", ""]
    return text


def _at(lines: Lines, setting: Setting) -> Lines:
    return [line for line in lines if Setting(*line["setting"]) == setting]


def _table(lines: Lines) -> list[str]:
    """Returns the lines of a table with one row for each arm."""
    text = [
        "| loss | collapsed | of seeds | right held-out answers of those that held, % | clipped, % | masked, % |",
        "|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(line["arm"] for line in lines):
        own = [line for line in lines if line["arm"] == arm]
        accuracies = sorted(100 * float(np.mean(line["held_out"])) for line in own if line["held_out"])
        text.append(
            f"| {arm} | {sum(line['collapsed'] for line in own)} | {len(own)} | {', '.join(f'{right:.0f}' for right in accuracies) or '-'} | "
            f"{100 * _step_mean(own, 'clipped'):.1f} | {100 * _step_mean(own, 'masked'):.1f} |"
        )
    return text


def chosen(lines: Lines) -> str:
    """Returns the candidate that `best` takes, given trainings of phase `select`; a collapsed one counts as without correct answers."""
    arms = {line["arm"] for line in lines}
    own = {arm: [line for line in lines if line["arm"] == arm] for arm in CANDIDATES if arm in arms}
    return best(
        {arm: sum(line["collapsed"] for line in trainings) for arm, trainings in own.items()},
        {
            arm: float(np.mean([np.mean(line["held_out"] or [0.0]) for line in trainings]))
            for arm, trainings in own.items()
        },
    )


def _step_mean(lines: Lines, name: str) -> float:
    return float(np.mean([value for line in lines for value in line[name]]))


def _confirm(lines: Lines) -> list[str]:
    if not lines:
        return []
    setting = Setting(*lines[0]["setting"])
    return [
        "## Confirmation",
        "",
        f"At rate {setting.rate:g} and maxStaleness {setting.staleness}, on fresh seeds.",
        "",
        *_table(lines),
        "",
    ]


def _compare(lines: Lines) -> list[str]:
    differences = differences_of(lines)
    if len(differences) < 2:
        return []
    setting = Setting(*lines[0]["setting"])
    estimate = mean([*differences.values()])
    shown = ", ".join(f"{100 * difference:+.1f}" for difference in differences.values())
    return [
        "## Against synchronous training",
        "",
        (
            f"At the quickstart's rate {setting.rate:g}, with maxStaleness {setting.staleness}: share of right held-out answers after {STEPS} steps "
            f"less that of synchronous training on the same prompts, in points: {_points(estimate)}, 95 % interval over "
            f"{estimate.count} seeds ({shown}). Its lower end is {'' if 100 * estimate.low > WORST_DIFFERENCE else 'not '}above "
            f"{WORST_DIFFERENCE:g}."
        ),
        "",
    ]


def differences_of(lines: Lines) -> dict[int, float]:
    """Returns by seed the share of correct held-out answers of the default less that of synchronous training.

    Seeds without both are left out. A collapsed training counts as without correct answers.
    """
    right = {(line["arm"], line["seed"]): float(np.mean(line["held_out"] or [0.0])) for line in lines}
    return {
        seed: right[DEFAULT, seed] - right[SYNCHRONOUS, seed]
        for arm, seed in sorted(right)
        if arm == DEFAULT and (SYNCHRONOUS, seed) in right
    }


def _points(estimate: Estimate) -> str:
    return estimate.text("+.1f", lambda share: 100 * share)


def plot(trainings: Lines, untrained: float, path: Path) -> None:
    """Draws the smoothed reward over the steps of each training of `confirm` and `compare`, in a panel for each arm of a phase."""
    panels = [
        ("the former loss", [line for line in _of_phase(trainings, "confirm") if line["arm"] == BEFORE]),
        ("the default", [line for line in _of_phase(trainings, "confirm") if line["arm"] == DEFAULT]),
        ("the default, usual setting", [line for line in _of_phase(trainings, "compare") if line["arm"] == DEFAULT]),
        ("synchronous, usual rate", [line for line in _of_phase(trainings, "compare") if line["arm"] == SYNCHRONOUS]),
    ]
    with picture(path, columns=len(panels), width=3.2, height=3.0) as (_, axes):
        for axis, (title, lines) in zip(axes[0], panels, strict=True):
            for line in lines:
                if len(line["reward"]) < WINDOW:
                    continue
                smooth = np.convolve(line["reward"], np.ones(WINDOW) / WINDOW, "valid")
                steps = np.arange(WINDOW, WINDOW + len(smooth))
                axis.plot(steps, smooth, color="#c2785c" if line["collapsed"] else "#7aa6c2", linewidth=1)
            axis.axhline(untrained, color="#555555", linewidth=0.8)
            axis.axhline(untrained - LOSS, color="#555555", linewidth=0.8, linestyle="dotted")
            axis.set_title(title, fontsize=10)
            axis.set_xlabel("step")
            axis.set_ylim(0, 1)
            axis.set_xlim(0, STEPS)
        axes[0][0].set_ylabel(f"reward, mean of {WINDOW} steps")
