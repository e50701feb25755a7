"""Table of the newest run of hostile programs."""

from __future__ import annotations

from pathlib import Path

from bench.record import Line, of_kind, write_page

# What the sandbox has to stand: so many variants of so many classes, and the next grade within so many seconds.
BAR_VARIANTS, BAR_CLASSES, BAR_SECONDS = 200, 12, 2.0


def write(raw: Path) -> None:
    """Writes `sandbox.md` beside the raw file. Ends the program with an error then if the bar is missed."""
    write_page(raw, table, missed)


def missed(lines: list[Line]) -> list[str]:
    """Lists how a run misses the bar; empty if it meets it.

    Enough variants of enough classes have to be tried. Each has to do harm without the sandbox and none in it, and the next
    sample's grade has to come in time.
    """
    tried = of_kind(lines, "tried")
    unprotected = {line["variant"]: line["harm"] for line in of_kind(lines, "unprotected")}
    classes = {line["group"] for line in tried}
    problems = []
    if len(tried) < BAR_VARIANTS or len(classes) < BAR_CLASSES:
        problems.append(
            f"{len(tried)} variants of {len(classes)} classes, not {BAR_VARIANTS} of {BAR_CLASSES}, have been tried"
        )
    for line in tried:
        if line["harm"] is not None:
            problems.append(f"{line['variant']} did harm ({line['harm']})")
        if unprotected.get(line["variant"]) is None:
            problems.append(f"{line['variant']} does no harm without the sandbox")
        if line["next_seconds"] > BAR_SECONDS:
            problems.append(f"the grade after {line['variant']} took {line['next_seconds']:.2f} s")
    return problems


def table(lines: list[Line]) -> str:
    """Returns the page, as Markdown."""
    run, tried = lines[0], of_kind(lines, "tried")
    unprotected = {line["variant"]: line["harm"] for line in of_kind(lines, "unprotected")}
    groups = {line["group"]: [each for each in tried if each["group"] == line["group"]] for line in tried}
    text = [
        "# Hostile programs in the sandbox",
        "",
        (
            f"{run['machine']['processor']}, {run['machine']['cpus']} CPUs, Linux {run['machine']['kernel']}, commit {run['commit']}. Each program is "
            "graded beside an honest one, and another honest one right after it, by the same graders. Contained: it got nothing that it "
            "wanted, both honest ones got their full grade, and nothing was left of it. Seconds: from its grade to the grade of the next."
        ),
        "",
        "| class | variants | harm without the sandbox | contained | slowest next grade, s |",
        "|---|---|---|---|---|",
    ]
    for group, of_group in [*groups.items(), (f"all {len(groups)} classes", tried)]:
        harmful = sum(unprotected.get(line["variant"]) is not None for line in of_group)
        contained = sum(line["harm"] is None for line in of_group)
        slowest = max(line["next_seconds"] for line in of_group)
        text.append(f"| {group} | {len(of_group)} | {harmful} | {contained} | {slowest:.2f} |")
    problems = missed(lines)
    text += [
        "",
        f"The bar: {BAR_VARIANTS} variants of {BAR_CLASSES} classes, each harmful without the sandbox and contained in it, and the next grade "
        f"within {BAR_SECONDS:g} s. " + ("Missed:" if problems else "Met."),
        *([""] if problems else []),
        *(f"* {problem}" for problem in problems),
    ]
    return "\n".join(text) + "\n"
