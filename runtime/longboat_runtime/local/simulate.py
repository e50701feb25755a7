"""`longboat simulate`: compares values of promptOvercommit on a recorded job."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import typer

from longboat_runtime.eventlog import read_log
from longboat_runtime.simulate.overcommit import simulate_factors
from longboat_runtime.simulate.recording import Recording, fold
from longboat_runtime.simulate.simulation import SimulatedRun

_FAILED = 1
_HEAD = ("promptOvercommit", "seconds a round", "long rounds", "generated : kept", "peak tokens per engine")


def compare_factors(output: Path) -> int:
    """Prints how long rounds of the job in `output` would take with each factor. Returns the exit status: 0 done, 1 failed."""
    try:
        recording = fold(read_log(output.resolve()))
    except ValueError as error:
        typer.echo(f"OUTPUT {output}: {error}", err=True)
        return _FAILED
    runs = simulate_factors(recording)
    for line in (*_description(recording), "", *_table(runs)):
        typer.echo(line)
    return 0


def _description(recording: Recording) -> list[str]:
    rounds, quotas = recording.rounds, recording.quotas
    sizes = f"{_counted(sum(quotas.values()), 'prompt')} x {_counted(recording.group_size, 'response')}"
    shape = f"{_counted(rounds[-1].engines, 'engine')} of {_counted(rounds[-1].tensor_parallel, 'device')}"
    seconds = recording.round_seconds
    measured = f", {fmean(seconds):.3g} s a round" if seconds else ""
    omitted = (
        f" (left out: {_counted(recording.others, 'round')} with engines of other sizes)" if recording.others else ""
    )
    return [
        f"recorded   {_counted(len(rounds), 'round')} of {sizes}{measured}, on {shape}{omitted}",
        f"simulated  TailBatching with the lengths of {len(recording.prompts)} prompts and the step times of these engines",
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _table(runs: dict[float, list[SimulatedRun]]) -> list[str]:
    rows = [_HEAD, *(_row(factor, simulated) for factor, simulated in runs.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(factor: float, runs: list[SimulatedRun]) -> tuple[str, ...]:
    seconds = [run.rollout_per_round for run in runs]
    return (
        f"{factor:g}",
        f"{fmean(seconds):.3g} ± {stdev(seconds) / len(seconds) ** 0.5:.2g}",
        f"{fmean(run.long_share for run in runs):.0%}",
        f"{fmean(run.generated_to_kept for run in runs):.2f}",
        str(max(run.tokens_most for run in runs)),
    )
