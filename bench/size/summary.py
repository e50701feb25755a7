"""Writes the page of the benchmark of sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.record import Line, of_kind, write_page

GIB = 2**30
# The largest allowed share by which a peak differs from the prediction.
BAR = 0.05


def write(raw: Path) -> None:
    """Writes `size.md` beside the raw file, from its newest run. Then exits with an error if a bar is missed."""
    write_page(raw, table, missed)


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    run, (device,) = lines[0], of_kind(lines, "device")
    settings = run["settings"]
    copies = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in device["copies"].items())
    text = [
        "# Memory and speed of a step, by shape",
        "",
        (
            f"{settings['gpu'] or run['machine']['processor']}, torch {run['versions']['torch']}, commit {settings['commit'] or run['commit']}. "
            f"Models of {settings['layers']} layers, one rank, bins of one sample each; weights and optimizer are float32, arithmetic is "
            "bfloat16, layers are recomputed. GiB: held before the step, and the most beyond that; outside: what the device uses beyond "
            "what torch's allocator has reserved. Predicted: what `longboat plan` says of the most beyond what is held."
        ),
        "",
        (
            f"MFU is the share of what the device itself does in a product of two bfloat16 matrices of 8192 x 8192, "
            f"{device['product'] / 1e12:.0f} x 10^12 operations per second. Operations are 6 x weights x tokens, and for attention of width w "
            "(heads x head size, of all layers) and samples of n tokens 6 x w x n^2, since a token sees none after it (ours), or "
            "12 x w x n^2 (PaLM, appendix B). What is recomputed doesn't count."
        ),
        "",
        f"Copies between device and host, GB/s: {copies}.",
        "",
        "| shape | tokens of a bin | layers | head | offloaded | held | beyond it | predicted | outside | step, s | MFU, ours | MFU, PaLM |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    predictions = {_key(line): line for line in of_kind(lines, "predicted")}
    measured = [line for line in lines if "case" in line and line["kind"] != "predicted"]
    text += ["| " + " | ".join(_row(line, predictions.get(_key(line)))) + " |" for line in measured]
    return "\n".join(text) + "\n"


def missed(lines: list[Line]) -> list[str]:
    """Lists peaks on a GPU, memory held before included, that differ from the prediction by more than BAR.

    With compiled layers only larger peaks count.
    """
    predictions = {_key(line): line for line in of_kind(lines, "predicted")}
    problems = []
    for line in of_kind(lines, "case") if lines[0]["settings"]["gpu"] else []:
        if (prediction := predictions.get(_key(line))) is None:
            continue
        difference = _peak(line) / _peak(prediction) - 1.0
        if difference > BAR or (difference < -BAR and not line["case"]["compiled"]):
            problems.append(f"{_key(line)}: {difference:+.1%} of the predicted peak")
    return problems


def _peak(line: Line) -> float:
    return float(line["held"] + line["peak"])


def _key(line: Line) -> str:
    return ", ".join(f"{name} {value}" for name, value in line["case"].items())


def _row(line: Line, prediction: Line | None) -> list[str]:
    case: dict[str, Any] = line["case"]
    row = [
        case["shape"],
        f"{case['tokens']:,}",
        "compiled" if case["compiled"] else "eager",
        "fused" if case["fused"] else "the model's",
        "yes" if case["offloaded"] else "no",
    ]
    if line["kind"] != "case":
        return [*row, line["kind"], *["-"] * 6]
    row += [_gib(line["held"]), _gib(line["peak"]), _gib(prediction["peak"]) if prediction else "-"]
    row += [_gib(line["outside"]) if "outside" in line else "-"]
    return [*row, f"{line['seconds']:.2f}", f"{line['mfu']['causal']:.1%}", f"{line['mfu']['palm']:.1%}"]


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"
