"""Reports on a run: a table for the terminal, and a picture."""

import json
import math
from pathlib import Path
from typing import Any

Record = dict[str, Any]

STAGES = ("gen", "reward", "update_actor", "update_weights", "save_checkpoint", "testing")


def parse(text: str) -> list[Record]:
    """Reads the records of a job, in order, from lines of JSON; skips lines that don't begin with `{`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def table(records: list[Record]) -> str:
    """Returns a table of reward and held-out accuracy before and after, and of seconds by stage."""
    evaluations = [record for record in records if "val/score/mean" in record]
    first, last = evaluations[0], evaluations[-1]
    trained = [record for record in records if "critic/score/mean" in record]
    rows = [
        ("", "before", "after"),
        ("held-out accuracy", _share(first, "val/accuracy/mean"), _share(last, "val/accuracy/mean")),
        (
            "  longest tenth of the prompts",
            _share(first, "val/accuracy/longest/mean"),
            _share(last, "val/accuracy/longest/mean"),
        ),
        ("mean reward of a step", _number(trained[0], "critic/score/mean"), _number(trained[-1], "critic/score/mean")),
    ]
    lines = [f"{name:34}{before:>10}{after:>10}" for name, before, after in rows]
    lines += ["", f"{'stage':34}{'s/step':>10}{'share':>10}"]
    whole = sum(record.get("timing_s/step") or 0.0 for record in trained)
    for stage in STAGES:
        seconds = sum(record.get(f"timing_s/{stage}") or 0.0 for record in records)
        if seconds:
            lines.append(f"{stage:34}{seconds / len(trained):>10.2f}{seconds / whole:>10.0%}")
    lines.append(f"{'step':34}{whole / len(trained):>10.2f}")
    parity = max(record.get("sync/parity_max") or 0.0 for record in records)
    lines.append(f"\nengine and trainer differ by at most {parity:.1e} in log-prob after {len(trained)} publications")
    return "\n".join(lines)


def picture(records: list[Record], file: Path) -> None:
    """Draws reward, held-out accuracy and response length by step into `file`, whose suffix says in which format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trained = [record for record in records if "critic/score/mean" in record]
    steps = [record["training/global_step"] for record in trained]
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(9, 7), sharex=True, layout="constrained")
    upper.plot(steps, [record["critic/score/mean"] for record in trained], label="mean reward")
    evaluated = [record for record in records if "val/accuracy/mean" in record]
    at = [record["training/global_step"] for record in evaluated]
    upper.plot(at, [record["val/accuracy/mean"] for record in evaluated], "o-", label="held-out accuracy")
    longest = [record.get("val/accuracy/longest/mean", math.nan) for record in evaluated]
    upper.plot(at, longest, "s--", label="… longest tenth")
    upper.set_ylim(0, 1.02)
    upper.set_ylabel("share")
    for name, label in (("mean", "mean"), ("p90", "90 %"), ("max", "longest")):
        lower.plot(steps, [record.get(f"response_length/{name}", math.nan) for record in trained], label=label)
    lower.set_ylabel("response length (tokens)")
    lower.set_xlabel("step")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _share(record: Record, name: str) -> str:
    value = record.get(name)
    return "-" if value is None else f"{value:.1%}"


def _number(record: Record, name: str) -> str:
    value = record.get(name)
    return "-" if value is None else f"{value:.3f}"
