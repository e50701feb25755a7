"""Tables and picture of the benchmark of grading."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.picture import picture
from bench.record import runs
from bench.rewards import swaps
from bench.rewards.timeouts import ARMS
from longboat_runtime.metrics.timeouts import interval

# How many times less time limits must take than the hard one; wrong kills of all grades and of the slowest tenth of problems; and how
# often the interval must cover the truth, and below what it must end.
BAR_SAVES, BAR_WRONG, BAR_SLOWEST, BAR_COVERS, BAR_HIGH = 1.5, 0.01, 0.05, (0.93, 0.98), 0.03
# How many times as fast as fixed halves and as one shared pool rounds must be graded where CPUs move; and the seconds that half of the
# moves and 99 % of them may take.
BAR_FIXED, BAR_SHARED, BAR_HALF, BAR_MOST = 1.3, 0.95, 1.0, 3.0

Line = dict[str, Any]
# Seconds by seed and round.
Seconds = dict[tuple[int, int], float]


def write(raw: Path) -> None:
    """Writes `rewards.md` beside the raw file and, unless `plot` draws nothing, `rewards.svg`: of each part the newest run with it."""
    recorded = runs(raw)
    raw.with_suffix(".md").write_text(page(recorded))
    plot(recorded, raw.with_suffix(".svg"))


def page(recorded: Sequence[list[Line]]) -> str:
    """Returns the page, as Markdown, from runs that each begin with their `run` line, oldest first."""
    text = ["# Grading"]
    for kinds, section in (({"round", "simulated"}, _timeouts), ({"block"}, _cpus), ({"moves"}, _moves)):
        if lines := _newest(recorded, kinds):
            text += section(lines)
    return "\n".join(text) + "\n"


def _newest(recorded: Sequence[list[Line]], kinds: Collection[str]) -> list[Line]:
    """Returns the `run` line of the newest run with lines of these kinds, and those lines; an empty list without such a run."""
    for run in reversed(recorded):
        if lines := [line for line in run if line["kind"] in kinds]:
            return [run[0], *lines]
    return []


def _where(run: Line) -> str:
    machine = run["machine"]
    speed = f", {machine['loop_ms']:.0f} ms for a million additions in Python" if "loop_ms" in machine else ""
    return f"{machine['processor']}, {machine['cpus']} CPUs{speed}, kernel {machine['kernel']}, commit {run['commit']}."


def _timeouts(lines: list[Line]) -> list[str]:
    run = lines[0]
    text = [
        "",
        "## Learned timeouts",
        "",
        (
            f"{_where(run)} The mix of responses is in `bench/rewards/mix.py`: correct times of problems spread a hundredfold, one response "
            "in twenty hangs."
        ),
    ]
    rounds = [line for line in lines if line["kind"] == "round"]
    simulated = [line for line in lines if line["kind"] == "simulated"]
    if rounds:
        text += _graded(run, rounds)
    if simulated:
        text += _simulated(simulated)
    return text


def _graded(run: dict[str, Any], rounds: list[dict[str, Any]]) -> list[str]:
    settings = run["settings"]
    hard, learned = ([line for line in rounds if line["arm"] == arm] for arm in ARMS)
    by_mix = [[line for line in rounds if line["seed"] == seed] for seed in sorted({line["seed"] for line in rounds})]
    text = [
        "",
        "### On real graders",
        "",
        (
            f"{len(by_mix)} sets of {settings['problems']} problems, of which nothing is known at first: {len(hard)} rounds of "
            f"{hard[0]['grades']} responses in all, graded by both arms in turn, "
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
    times = {name: _saved(rounds, name) for name in ("cpu", "occupied", "seconds")}
    lasts = [
        max((line for line in rounds if line["arm"] == "learned"), key=lambda line: line["round"]) for rounds in by_mix
    ]
    wrong, audits = (sum(last[name] for last in lasts) for name in ("wrong_audits", "audits"))
    low, high = interval(wrong, audits)
    by_set = {name: ", ".join(f"{_saved(rounds, name):.2f}" for rounds in by_mix) for name in ("cpu", "occupied")}
    text += [
        "",
        (
            f"Learned limits take {times['cpu']:.2f} x less CPU seconds and {times['occupied']:.2f} x less occupied seconds (at least {BAR_SAVES} x each), "
            f"and rounds are {times['seconds']:.2f} x as fast. By {audits} audits, {low:.1%} to {high:.1%} of kills and other grades with a limit "
            "are correct responses that it ends."
        ),
        "",
        (
            "How much there is to save differs between sets, by how much of their time goes to responses that compute for ever. By set: CPU "
            f"{by_set['cpu']} x less, occupied {by_set['occupied']} x."
        ),
    ]
    return text


def _saved(rounds: Sequence[Line], name: str) -> float:
    """Returns how many times as much of `name` the hard limit takes as learned ones."""
    hard, learned = (sum(line[name] for line in rounds if line["arm"] == arm) for arm in ARMS)
    return float(hard / learned)


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
        "### Simulated",
        "",
        (
            f"{len(runs)} runs of {runs[0]['grades']} grades of 500 problems, each with another mix. The interval of wrong kills that audits give covers the "
            f"truth in {covered:.1%} of them ({BAR_COVERS[0]:.0%} to {BAR_COVERS[1]:.0%})."
        ),
        "",
        "| | mean | least | most | bar |",
        "|---|---|---|---|---|",
    ]
    text += [
        f"| {name} | {mean(values):.2f} | {min(values):.2f} | {max(values):.2f} | {bar} |" for name, values, bar in rows
    ]
    for name, key, bar in shares:
        values = [line[key] for line in runs]
        text.append(f"| {name} | {mean(values):.2%} | {min(values):.2%} | {max(values):.2%} | < {bar:.0%} |")
    return text


def seconds_of(blocks: Sequence[Line]) -> dict[str, Seconds]:
    """Returns for each arm the seconds of the rounds after the first that every arm has graded, in blocks that aren't void. Pure."""
    by_arm: dict[str, Seconds] = {arm: {} for arm in swaps.ARMS}
    for block in blocks:
        if not block["void"]:
            by_arm[block["arm"]] |= {
                (block["seed"], round_["round"]): round_["seconds"] for round_ in block["rounds"] if round_["round"] > 1
            }
    paired = set.intersection(*(set(own) for own in by_arm.values()))
    return {arm: {key: own[key] for key in sorted(paired)} for arm, own in by_arm.items()}


def _cpus(lines: list[Line]) -> list[str]:
    run, blocks = lines[0], lines[1:]
    settings, total, work = run["settings"], blocks[0]["total"] / 1000, blocks[0]["work"]
    seconds = seconds_of(blocks)
    text = [
        "",
        "## The same CPUs, fixed, moving and shared",
        "",
        (
            f"{_where(run)} Two reward pools of a job on a real cluster share {total:g} CPUs, which the cgroups of their graders enforce. "
            f"The {swaps.GRADES} grades of a round take {work:g} CPU seconds; {swaps.HEAVY} of {swaps.PROMPTS} prompts are of one pool's "
            f"domain, and every {settings['swap']} rounds of the other's (`bench/rewards/swaps.py`). Each block is a job of its own; the first "
            "round of each warms up. Seconds are those from the round's last response to its last grade."
        ),
        "",
        "| arm | rounds | mean seconds | after a swap | else | least | most | CPUs used |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm, own in seconds.items():
        if own:
            text.append(f"| {arm} | {len(own)} | {' | '.join(_row(blocks, arm, own, settings['swap']))} |")
    fixed, moving, shared = (sum(seconds[arm].values()) for arm in ("fixed", "moving", "shared"))
    if moving:
        by_block = ", ".join(f"{value:.2f}" for value in _by_block(seconds))
        text += [
            "",
            (
                f"Where CPUs move rounds are graded {fixed / moving:.2f} x as fast as with fixed halves (at least {BAR_FIXED} x; by block {by_block}), "
                f"and {shared / moving:.2f} x as fast as in one shared pool (at least {BAR_SHARED} x)."
            ),
        ]
    text += ["", *_void(blocks)]
    return text


def _row(blocks: Sequence[Line], arm: str, seconds: Seconds, swap: int) -> Iterator[str]:
    swapped = [value for (_, number), value in seconds.items() if (number - 2) % swap == 0]
    others = [value for (_, number), value in seconds.items() if (number - 2) % swap]
    for values in (list(seconds.values()), swapped, others):
        yield f"{mean(values):.1f}" if values else ""
    yield f"{min(seconds.values()):.1f}"
    yield f"{max(seconds.values()):.1f}"
    cpu = sum(
        sum(round_["cpu"].values())
        for block in blocks
        if block["arm"] == arm and not block["void"]
        for round_ in block["rounds"]
        if (block["seed"], round_["round"]) in seconds
    )
    yield f"{cpu / sum(seconds.values()):.2f}"


def _by_block(seconds: dict[str, Seconds]) -> Iterator[float]:
    """Yields, for each seed, the ratio of the fixed arm's seconds to the moving one's."""
    for seed in sorted({seed for seed, _ in seconds["moving"]}):
        fixed, moving = (
            sum(value for (other, _), value in seconds[arm].items() if other == seed) for arm in ("fixed", "moving")
        )
        yield fixed / moving


def _void(lines: Sequence[Line]) -> list[str]:
    void = [line for line in lines if line["void"]]
    if not void:
        return ["None is void."]
    return [
        "Void: "
        + "; ".join(f"{line.get('arm', line['kind'])} {line['seed']} ({', '.join(line['void'])})" for line in void)
    ]


def within(share: float, seconds: Sequence[float]) -> float:
    """Returns the least number of seconds within which this share of all moves was over. Pure."""
    return sorted(seconds)[math.ceil(share * len(seconds)) - 1]


def _move_seconds(line: Line) -> list[float]:
    """Returns the seconds of each move; infinite if receivers were not seen to have their share before the next one."""
    return [math.inf if move["seconds"] is None else move["seconds"] for move in line["moves"]]


def _moves(lines: list[Line]) -> list[str]:
    run, line = lines[0], lines[-1]
    durations = _move_seconds(line)
    text = [
        "",
        "## How long a move takes",
        "",
        (
            f"{_where(run)} {line['pods']} reward pods in two pools share {line['total'] / 1000:g} CPUs, and the load swaps with every round of "
            f"{line['work']:g} CPU seconds, while the job trains: {len(durations)} moves in {line['wall']:.0f} s, {line['steps']} optimizer steps. Seconds are "
            "those from the operator's decision, by its record in the status, until a watch says that every pod of the receiving pool has its share "
            "in force."
        ),
        "",
    ]
    if not durations:
        return [*text, "Nothing moved.", "", *_void([line])]
    most, looks = line["most"], line["looks"]
    changed = [move["receivers"] + move["donors"] for move in line["moves"]]
    outcomes = sorted({move["outcome"] for move in line["moves"]})
    counts = ", ".join(f"{sum(move['outcome'] == outcome for move in line['moves'])} {outcome}" for outcome in outcomes)
    return [
        *text,
        "| moves | pods changed, least and median | p50 s | p90 s | p99 s | longest s |",
        "|---|---|---|---|---|---|",
        (
            f"| {len(durations)} | {min(changed)} and {median(changed):g} | {within(0.5, durations):.2f} (≤ {BAR_HALF:g}) | {within(0.9, durations):.2f} | "
            f"{within(0.99, durations):.2f} (≤ {BAR_MOST:g}) | {max(durations):.2f} |"
        ),
        "",
        _stages(line["moves"]),
        "",
        (
            f"Outcomes: {counts}. {sum(map(math.isinf, durations))} moves were not seen to be over before the next one, and count as endless."
        ),
        "",
        (
            f"The most that pods had together was {most['counted'] / 1000:g} CPUs by the API, counting of each what it asks for, has been allocated "
            f"and has in force, after each of {looks['counted']} events; and {most['quotas'] / 1000:g} by the quotas of their control groups, at "
            f"{looks['quotas']} looks. Containers were restarted {line['container_restarts']} times."
        ),
        "",
        *_void([line]),
    ]


def _stages(moves: Sequence[Mapping[str, Any]]) -> str:
    """Says after how many seconds each stage of a move was over: medians over the moves in which that was seen."""
    words = {
        "lowered": "donors asked for less",
        "freed": "had less",
        "raised": "receivers asked for more",
        "seconds": "had it",
    }
    by_stage = {stage: [move[stage] for move in moves if move[stage] is not None] for stage in words}
    parts = [f"{word} after {median(by_stage[stage]):.2f} s" for stage, word in words.items() if by_stage[stage]]
    return f"Medians of the stages: {', '.join(parts)}."


def plot(recorded: Sequence[list[Line]], path: Path) -> None:
    """Draws the seconds of rounds by arm, and the share of moves that were over by seconds. Draws nothing if there is neither."""
    blocks, moves = _newest(recorded, {"block"})[1:], _newest(recorded, {"moves"})[1:]
    seconds = seconds_of(blocks) if blocks else {}
    durations = sorted(value for value in _move_seconds(moves[-1]) if math.isfinite(value)) if moves else []
    if not (seconds or durations):
        return
    with picture(path, columns=bool(seconds) + bool(durations), width=6, height=3) as (_, panels):
        free = iter(panels[0])
        if seconds:
            _plot_rounds(next(free), seconds)
        if durations:
            _plot_moves(next(free), durations, len(moves[-1]["moves"]))


def _plot_rounds(panel: Any, seconds: Mapping[str, Seconds]) -> None:
    for arm, own in seconds.items():
        panel.plot(range(1, len(own) + 1), list(own.values()), marker=".", label=arm)
    panel.set_xlabel("round, of all blocks")
    panel.set_ylabel("s from last response to last grade")
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=7)


def _plot_moves(panel: Any, durations: Sequence[float], moves: int) -> None:
    panel.plot(durations, [(place + 1) / moves for place in range(len(durations))], drawstyle="steps-post")
    panel.plot([BAR_HALF, BAR_MOST], [0.5, 0.99], linestyle="", marker="|", color="black", label="at most")
    panel.set_xlabel("s from decision to receivers")
    panel.set_ylabel("share of moves")
    panel.set_ylim(0, 1.02)
    panel.set_xlim(left=0)
    panel.legend(fontsize=7, loc="lower right")
