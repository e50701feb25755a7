"""Tables of the benchmark of the trainer's step."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.record import runs


def write(raw: Path) -> None:
    """Writes `trainer_step.md` beside the raw file: the newest run on CPUs, and that of each model on a GPU."""
    measured = [run for run in runs(raw) if len(run) > 1]
    text = ["# One optimizer step on a recorded batch"]
    on_gpus = {line["size"]: (run, line["size"]) for run in measured for line in run[1:] if line["kind"] == "gpu-step"}
    if on_gpus:
        text += ["", "## On a GPU", "", *_on_gpus(on_gpus)]
    on_cpus = [run for run in measured if run[1]["kind"] == "step"]
    if on_cpus:
        text += ["", "## On CPUs", "", *_on_cpus(*on_cpus[-1])]
    raw.with_suffix(".md").write_text("\n".join(text) + "\n")


def _on_cpus(run: dict[str, Any], *lines: dict[str, Any]) -> list[str]:
    machine, settings = run["machine"], run["settings"]
    text = [
        (
            f"{machine['processor']}, {settings['threads']} threads, commit {run['commit']}; load at the start {machine['load']:.1f}. "
            f"Milliseconds, {settings['steps']} steps of each arm in turns; TRL in micro-batches of {settings['micro_batch']}, Longboat in "
            f"bench/step's bins. The least of all steps is what the work takes where others use the same CPUs. CPU: of all threads, waiting "
            f"for each other included."
        ),
        "",
        "| workload-model-samples | arm | CPU, least | CPU, median | wall, least | wall, median |",
        "|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(line["case"] for line in lines):
        for arm in dict.fromkeys(line["arm"] for line in lines):
            of = [line for line in lines if (line["case"], line["arm"]) == (case, arm)]
            values = [choose(line[clock] for line in of) for clock in ("cpu", "wall") for choose in (min, median)]
            text.append(f"| {case} | {arm} | {' | '.join(f'{1000 * value:.0f}' for value in values)} |")
    return text


def _on_gpus(newest: dict[str, tuple[list[dict[str, Any]], str]]) -> list[str]:
    runs_ = [run[0] for run, _ in newest.values()]
    settings = runs_[0]["settings"]
    text = [
        (
            f"{', '.join(dict.fromkeys(run['settings']['gpu'] for run in runs_))}; torch {runs_[0]['versions']['torch']}, transformers "
            f"{runs_[0]['versions']['transformers']}, TRL {runs_[0]['versions'].get('trl', '-')}; commit "
            f"{', '.join(dict.fromkeys(run['settings']['commit'] or run['commit'] for run in runs_))}. Models of Qwen2.5's shapes with random "
            f"weights; float32 weights, bfloat16 arithmetic, recomputed layers. {settings['samples']} samples of 64 to 256 prompt tokens and "
            f"log-normal responses (median 350), {settings['longest']} tokens at most; TRL in micro-batches of {settings['micro_batch']}, "
            f"Longboat in bins of {settings['bin_tokens']} tokens. Steps in turns. Spread: from the shortest to the longest. MFU: the share "
            f"of the device's peak that goes into the model's own operations, without padding and recomputation."
        ),
        "",
        "| model | arm | steps | seconds, median | spread | tokens/s | MFU | GiB beyond what stays |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run, size in newest.values():
        lines = [line for line in run[1:] if line["size"] == size]
        for arm in dict.fromkeys(line["arm"] for line in lines):
            of = [line for line in lines if line["arm"] == arm]
            seconds = [line["wall"] for line in of]
            text.append(
                f"| {size} | {arm} | {len(of)} | {median(seconds):.2f} | {min(seconds):.2f} to {max(seconds):.2f} | "
                f"{of[0]['tokens'] / median(seconds):,.0f} | {median(line['mfu'] for line in of):.2f} | "
                f"{max(line['beyond'] for line in of) / 2**30:.1f} |"
            )
    return text
