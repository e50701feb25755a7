"""Table and plot of the step benchmark."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from bench.picture import picture
from bench.record import runs
from bench.step.cases import CASES

SYSTEMS = ("trl", "longboat")
# Student's t at 95 %, one-sided, for 1, 2, ... degrees of freedom; beyond them the last, which is larger than the right one.
T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)


def write(raw: Path) -> None:
    """Writes `step.md` and `step.svg` beside the raw file, from the last complete run of each case."""
    lines = last_runs(raw)
    raw.with_suffix(".md").write_text(table(lines))
    plot(lines, raw.with_suffix(".svg"))


def last_runs(raw: Path) -> list[dict[str, Any]]:
    """Finds for each case the last run that has steps of both systems.

    Returns the `run` line of the newest of these runs, then the steps of each case.
    """
    recorded = runs(raw)
    last = {case.name: run for case in CASES for run in recorded if _systems(run, case.name) == set(SYSTEMS)}
    steps = [line for name, run in last.items() for line in run if _is_step(line, name)]
    newest = [run for run in recorded if run in last.values()][-1]
    return [newest[0], *steps]


def _is_step(line: dict[str, Any], case: str) -> bool:
    return line["kind"] == "step" and line["case"] == case


def _systems(run: list[dict[str, Any]], case: str) -> set[str]:
    return {line["system"] for line in run if _is_step(line, case)}


def medians(lines: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, float]]:
    """Computes by case and system the medians over all steps: of each recorded value, and of what isn't generation (`rest`).

    `count` is the number of steps.
    """
    rows: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "step":
            seconds = line["seconds"]
            rest = {"rest": seconds["step"] - seconds["generate"]}
            rows[line["case"], line["system"]].append({**seconds, **rest})
    return {
        key: {name: median(row[name] for row in of_key) for name in of_key[0]} | {"count": len(of_key)}
        for key, of_key in rows.items()
    }


def faster(lines: list[dict[str, Any]], case: str) -> dict[str, list[float]]:
    """Returns how many times faster than TRL a step is, whole (`step`) and without generation (`rest`).

    There is a ratio of medians for each repeat that has both systems.
    """
    repeats = sorted({line["repeat"] for line in lines if _is_step(line, case)})
    by_repeat = [
        medians([line for line in lines if _is_step(line, case) and line["repeat"] == repeat]) for repeat in repeats
    ]
    both = [own for own in by_repeat if len(own) == len(SYSTEMS)]
    return {name: [own[case, "trl"][name] / own[case, "longboat"][name] for own in both] for name in ("step", "rest")}


def lower_bound(ratios: list[float]) -> float | None:
    """Computes the lower 95 % bound of the mean ratio over repeats, on a logarithmic scale by Student's t; None for fewer than two."""
    if len(ratios) < 2:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    t = T_95[min(len(logs) - 1, len(T_95)) - 1]
    return math.exp(mean(logs) - t * stdev(logs) / math.sqrt(len(logs)))


def table(lines: list[dict[str, Any]]) -> str:
    """Returns the page, as Markdown."""
    run, results = lines[0], medians(lines)
    cases = list(dict.fromkeys(case for case, _ in results))
    versions = ", ".join(f"{name} {value}" for name, value in run["versions"].items())
    text = [
        "# Seconds of a synchronous step",
        "",
        f"{run['machine']['processor']}, {run['machine']['cpus']} CPUs, {run['machine']['memory_gib']} GiB. {versions}.",
        (
            f"Commit of the newest case: {run['commit']}. Medians over the steps of all runs, which take turns; `at least` is the "
            "lower 95 % bound over repeats."
        ),
        "",
        (
            "| workload-model-samples | steps of each | TRL | Longboat | faster | at least | TRL without generation | "
            "Longboat without it | faster | at least |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        trl, longboat = (results[case, system] for system in SYSTEMS)
        ratios = faster(lines, case)
        cells = [case, f"{longboat['count']:.0f}"]
        for name in ("step", "rest"):
            bound = lower_bound(ratios[name])
            cells += [
                _s(trl[name]),
                _s(longboat[name]),
                _times(trl[name] / longboat[name]),
                _times(bound) if bound else "-",
            ]
        text.append("| " + " | ".join(cells) + " |")
    text += [
        "",
        "Longboat by stage:",
        "",
        "| workload-model-samples | engines | trainer's layers | generate | reward | train | publish |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        longboat = results[case, "longboat"]
        cells = [_setting(lines, case), *(_s(longboat[name]) for name in ("generate", "reward", "train", "publish"))]
        text.append(f"| {case} | {' | '.join(cells)} |")
    text += ["", "Mean response, in tokens (TRL, Longboat): "]
    text[-1] += "; ".join(
        f"{case} {results[case, 'trl']['mean_tokens']:.0f}, {results[case, 'longboat']['mean_tokens']:.0f}"
        for case in cases
    )
    return "\n".join(text) + "\n"


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws a bar for each system in each case: generation, and the rest on top of it."""
    results = medians(lines)
    cases = list(dict.fromkeys(case for case, _ in results))
    with picture(path, columns=len(cases), width=2.2, height=3.4) as (figure, panels):
        for axis, case in zip(panels[0], cases, strict=True):
            generate = [results[case, system]["generate"] for system in SYSTEMS]
            rest = [results[case, system]["rest"] for system in SYSTEMS]
            axis.bar(SYSTEMS, generate, label="generation", color="#7aa6c2")
            axis.bar(SYSTEMS, rest, bottom=generate, label="the rest", color="#c2785c")
            axis.set_title(case, fontsize=9)
        figure.supylabel("seconds a step")
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)


def _setting(lines: list[dict[str, Any]], case: str) -> str:
    """Returns two cells of a row: the engines and the trainer's layers with which Longboat was measured."""
    setting = next(line["setting"] for line in lines if _is_step(line, case) and line["system"] == "longboat")
    engines = f"{setting['engines']}, {'eager' if setting.get('eager', True) else 'compiled'}"
    return f"{engines} | {'compiled' if setting.get('compile_layers', False) else 'not compiled'}"


def _s(seconds: float) -> str:
    return f"{seconds:.2f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"
