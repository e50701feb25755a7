"""Tables of the benchmark of learned timeouts."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from bench.record import newest_run
from bench.rewards.measure import ARMS
from longboat_runtime.metrics.timeouts import interval

# How many times less time limits must take than the hard one; wrong kills of all grades and of the slowest tenth of problems; and how
# often the interval must cover the truth.
BAR_SAVES, BAR_WRONG, BAR_SLOWEST, BAR_COVERS, BAR_HIGH = 1.5, 0.01, 0.05, (0.93, 0.98), 0.03


def write(raw: Path) -> None:
    """Writes `rewards.md` beside the raw file, of its newest run."""
    raw.with_suffix(".md").write_text(page(newest_run(raw)))


def page(lines: list[dict[str, Any]]) -> str:
    """Markdown, of a run that begins with its `run` line."""
    run = lines[0]
    text = [
        "# Learned timeouts",
        "",
        (
            f"{run['machine']['processor']}, {run['machine']['cpus']} CPUs, kernel {run['machine']['kernel']}, commit {run['commit']}. The mix of "
            "responses is in `bench/rewards/mix.py`: correct times of problems spread a hundredfold, one response in twenty hangs."
        ),
    ]
    rounds = [line for line in lines if line["kind"] == "round"]
    simulated = [line for line in lines if line["kind"] == "simulated"]
    if rounds:
        text += _graded(run, rounds)
    if simulated:
        text += _simulated(simulated)
    return "\n".join(text) + "\n"


def _graded(run: dict[str, Any], rounds: list[dict[str, Any]]) -> list[str]:
    settings = run["settings"]
    hard, learned = ([line for line in rounds if line["arm"] == arm] for arm in ARMS)
    text = [
        "",
        "## On real graders",
        "",
        (
            f"{len(hard)} rounds of {hard[0]['grades']} responses to {settings['problems']} problems, graded by both arms in turn, "
            f"{settings['processes']} at once; times of the mix divided by {settings['scale']:g}. In "
            f"{sum(line['contention'] > 1 for line in hard)} rounds other processes wanted the CPUs too."
        ),
        "",
        "| arm | CPU seconds | occupied seconds | seconds of rounds | killed at the hard limit | at a learned one | correct ones among the latter | of all correct |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, own in zip(ARMS, (hard, learned), strict=True):
        cpu, occupied, seconds, correct = (
            sum(line[name] for line in own) for name in ("cpu", "occupied", "seconds", "correct")
        )
        limited = sum(sum(line["by_limit"].values()) for line in own)
        others = sum(sum(line["killed"].values()) for line in own) - limited
        wrong = sum(line["by_limit"]["correct"] for line in own)
        text.append(
            f"| {arm} | {cpu:.1f} | {occupied:.1f} | {seconds:.1f} | {others} | {limited} | {wrong} | {wrong / max(correct, 1):.2%} |"
        )
    times = {
        name: sum(line[name] for line in hard) / sum(line[name] for line in learned)
        for name in ("cpu", "occupied", "seconds")
    }
    last = max(learned, key=lambda line: line["round"])
    low, high = interval(last["wrong_audits"], last["audits"])
    text += [
        "",
        (
            f"Learned limits take {times['cpu']:.2f} x less CPU seconds and {times['occupied']:.2f} x less occupied seconds (at least {BAR_SAVES} x each), "
            f"and rounds are {times['seconds']:.2f} x as fast. By {last['audits']} audits, {low:.1%} to {high:.1%} of kills and other grades with a limit "
            "are correct responses that it ends."
        ),
    ]
    return text


def _simulated(runs: list[dict[str, Any]]) -> list[str]:
    covered = mean(line["low"] <= line["wrong_kill_rate"] <= line["high"] for line in runs)
    rows: list[tuple[str, list[float], str]] = [
        (
            f"{name} seconds, hard over learned",
            [line[key]["hard"] / line[key]["learned"] for line in runs],
            f"≥ {BAR_SAVES}",
        )
        for name, key in (("CPU", "cpu"), ("occupied", "occupied"))
    ]
    shares: list[tuple[str, str, float]] = [
        ("wrong kills, of grades with a limit", "wrong_kill_rate", BAR_WRONG),
        ("wrong kills, of correct responses", "wrong_kills_of_correct", BAR_WRONG),
        ("slowest tenth, of grades with a limit", "slowest", BAR_SLOWEST),
        ("slowest tenth, of correct responses", "slowest_of_correct", BAR_SLOWEST),
        ("end of the interval", "high", BAR_HIGH),
    ]
    text = [
        "",
        "## Simulated",
        "",
        (
            f"{len(runs)} runs of {runs[0]['grades']} grades of 500 problems, each with another mix. The interval of wrong kills that audits give covers the "
            f"truth in {covered:.1%} of them ({BAR_COVERS[0]:.0%} to {BAR_COVERS[1]:.0%})."
        ),
        "",
        "| | mean | least | most | bar |",
        "|---|---|---|---|---|",
    ]
    text += [f"| {name} | {mean(of):.2f} | {min(of):.2f} | {max(of):.2f} | {bar} |" for name, of, bar in rows]
    for name, key, bar in shares:
        of = [line[key] for line in runs]
        text.append(f"| {name} | {mean(of):.2%} | {min(of):.2%} | {max(of):.2%} | < {bar:.0%} |")
    return text
