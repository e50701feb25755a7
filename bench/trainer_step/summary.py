"""Tables of the benchmark of the trainer's step."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from bench.record import runs


def write(raw: Path) -> None:
    """Writes `trainer_step.md` beside the raw file: the newest run on CPUs, and all on GPUs of the newest kind."""
    measured = [run for run in runs(raw) if len(run) > 1]
    text = ["# One optimizer step"]
    on_gpus = [run for run in measured if run[1]["kind"] == "gpu-step"]
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
            own = [line for line in lines if (line["case"], line["arm"]) == (case, arm)]
            values = [choose(line[clock] for line in own) for clock in ("cpu", "wall") for choose in (min, median)]
            text.append(f"| {case} | {arm} | {' | '.join(f'{1000 * value:.0f}' for value in values)} |")
    return text


def _on_gpus(measured: list[list[dict[str, Any]]]) -> list[str]:
    gpu = measured[-1][0]["settings"]["gpu"]
    of_gpu = [run for run in measured if run[0]["settings"]["gpu"] == gpu]
    newest, settings = of_gpu[-1][0], of_gpu[-1][0]["settings"]
    text = [
        (
            f"{gpu}; torch {newest['versions']['torch']}, transformers {newest['versions']['transformers']}, TRL "
            f"{newest['versions'].get('trl', '-')}. Models of Qwen2.5's shapes with random weights; float32 weights, bfloat16 arithmetic, "
            f"recomputed layers. {settings['samples']} samples of 64 to 256 prompt tokens and log-normal responses (median 350), "
            f"{settings['longest']} tokens at most; Longboat in bins of {settings['bin_tokens']} tokens. Steps of all runs, in turns within "
            f"each. Spread: from the shortest to the longest. MFU: the share of the device's peak that goes into the model's own operations, "
            f"without padding and recomputation."
        ),
        "",
        "| model | arm | commits | steps | seconds, median | spread | tokens/s | MFU | GiB beyond what stays |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines = [(run[0]["settings"]["commit"], _arm(run[0]["settings"], line), line) for run in of_gpu for line in run[1:]]
    for size in dict.fromkeys(line["size"] for *_, line in lines):
        arms = {arm for _, arm, line in lines if line["size"] == size}
        for arm in sorted(arms, key=lambda arm: (arm.startswith("Longboat"), -len(arm))):
            own = [(commit, line) for commit, its, line in lines if (line["size"], its) == (size, arm)]
            seconds = [line["wall"] for _, line in own]
            text.append(
                f"| {size} | {arm} | {', '.join(dict.fromkeys(commit for commit, _ in own))} | {len(own)} | {median(seconds):.2f} | "
                f"{min(seconds):.2f} to {max(seconds):.2f} | {own[0][1]['tokens'] / median(seconds):,.0f} | "
                f"{median(line['mfu'] for _, line in own):.2f} | {max(line['beyond'] for _, line in own) / 2**30:.1f} |"
            )
    return text


def _arm(settings: dict[str, Any], line: dict[str, Any]) -> str:
    """Names the arm, with the size of its micro-batches if it is TRL: runs differ in it."""
    return f"TRL, micro-batches of {settings['micro_batch']}" if line["arm"] == "TRL" else str(line["arm"])
