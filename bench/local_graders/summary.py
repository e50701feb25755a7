"""Table of the newest run of hostile responses without Kubernetes."""

from __future__ import annotations

from pathlib import Path

from bench.record import Line, of_kind, write_page

# How much later than its limit a grade may end, in seconds; without a limit, than it began.
BAR_SECONDS = 5.0


def write(raw: Path) -> None:
    """Writes `local_graders.md` beside the raw file. Ends the program with an error then if the bar is missed."""
    write_page(raw, table, missed)


def missed(lines: list[Line]) -> list[str]:
    """Lists how a run misses the bar: a grade that ended too late, one after it that was wrong, a process that was left."""
    problems = []
    for line in of_kind(lines, "graded"):
        where = f"{line['user']}: {line['group']}: {line['name']}"
        if line["beyond_seconds"] > BAR_SECONDS:
            problems.append(f"{where} ended {line['beyond_seconds']:.1f} s late")
        if not line["next_right"]:
            problems.append(f"the grade after {where} was wrong")
    problems += [
        f"{line['user']}: {line['left']} processes were left" for line in of_kind(lines, "end") if line["left"]
    ]
    return problems


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    run, graded = lines[0], of_kind(lines, "graded")
    machine = run["machine"]
    text = [
        "# Hostile responses without Kubernetes",
        "",
        (
            f"{machine['processor']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, commit {run['commit']}. Graders as `longboat run` starts "
            "them, in a control group of 4,000 processes, one response after the other; an honest one is graded after each. Late: after the "
            f"limit of {run['settings']['limit']:g} s, or, where a response ends by itself or by another limit, after it began."
        ),
        "",
        "| user | responses | number | latest, s | next grade right | slowest next grade, s |",
        "|---|---|---|---|---|---|",
    ]
    for user, group in dict.fromkeys((line["user"], line["group"]) for line in graded):
        lines_of = [line for line in graded if (line["user"], line["group"]) == (user, group)]
        right = sum(line["next_right"] for line in lines_of)
        late, following = (max(line[name] for line in lines_of) for name in ("beyond_seconds", "next_seconds"))
        text.append(f"| {user} | {group} | {len(lines_of)} | {late:.2f} | {right} | {following:.2f} |")
    problems = missed(lines)
    text += [
        "",
        f"The bar: no grade later than {BAR_SECONDS:g} s, every next one right, no process left. "
        + ("Missed:" if problems else "Met."),
        *([""] if problems else []),
        *(f"* {problem}" for problem in problems),
    ]
    return "\n".join(text) + "\n"
