"""`longboat samples`: what a job's model wrote, in the terminal, from its directory or its driver pod."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from longboat_runtime.sample_files.contents import Fate
from longboat_runtime.sample_files.driver_pod import run_there
from longboat_runtime.sample_files.reading import (
    FileDamaged,
    FileRemoved,
    Order,
    Query,
    Sample,
    Selection,
    read_files,
    select,
)
from longboat_runtime.samples import SpecialToken
from longboat_runtime.special_tokens import with_special_tokens

_FAILED = 1
# How many samples are shown if nobody says.
_LIMIT = 10
# How many times files are listed at most, if the job keeps removing some before they are read.
_LISTED = 10
# The terminal shows this many characters of the beginning and of the end of longer texts.
_BEGINNING, _END = 1200, 600
# And so many of a message of an episode.
_LINE = 160
# Characters that would move the cursor, change colours or turn the direction of what follows: a model may have written them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command, by the names that they have there. `terminal` is the width of a terminal elsewhere."""

    worst: int | None = None
    best: int | None = None
    longest: int | None = None
    prompt: str | None = None
    search: str | None = None
    step: str | None = None
    fate: str | None = None
    domain: str | None = None
    limit: int | None = None
    full: bool = False
    special: bool = False
    json: bool = False
    terminal: int | None = None

    @property
    def words(self) -> list[str]:
        """The options as words of a command line."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items() if value]

    @property
    def query(self) -> Query:
        """Raises ValueError, with a message for people, if options contradict each other or can't be read."""
        orders = {order: count for order in Order if (count := getattr(self, order.value)) is not None}
        if len(orders) > 1 or (orders and self.limit is not None):
            names = " and ".join(f"--{name}" for name in [*orders, *(["limit"] if self.limit else [])])
            raise ValueError(f"{names}: give one of them")
        order, limit = next(iter(orders.items()), (None, self.limit or (None if self.json else _LIMIT)))
        prompt = re.fullmatch(r"(?:(\d+):)?(\d+)", self.prompt or "")
        if self.prompt is not None and prompt is None:
            raise ValueError(f"--prompt {self.prompt}: write EPOCH:ROW, such as 0:17, or ROW for all epochs")
        epoch, row = (int(part) if part is not None else None for part in prompt.groups()) if prompt else (None, None)
        if self.fate not in (None, *Fate):
            raise ValueError(f"--fate {self.fate}: write {', '.join(Fate)}")
        fate = Fate(self.fate) if self.fate else None
        return Query(fate, self.domain, epoch, row, self.search, order, limit)

    def files(self, written: dict[int, Path]) -> dict[int, Path]:
        """Chooses the files that are asked for, by step, among those `written`, at least one.

        Without `step`, these are all for a prompt or a search, else the newest. Raises ValueError, with a message for people, if there is
        none of `step`.
        """
        newest = None if self.prompt or self.search else str(max(written))
        step = self.step or newest or "all"
        if step == "all":
            return written
        if not step.isdecimal() or int(step) not in written:
            steps = ", ".join(map(str, written))
            raise ValueError(f"--step {step}: no file of that step; write all, or one of {steps}")
        return {int(step): written[int(step)]}


def show(target: str, namespace: str | None, options: Options) -> int:
    """Shows the samples; returns the exit status: 0 done, 1 failed, or that of the command in a job's driver pod.

    An existing directory comes before a job of that name.
    """
    root = Path(target)
    try:
        query = options.query
        if not root.is_dir():
            return run_there(target, namespace, options.words)
        selection = _selection(root, query, options)
    except (ValueError, FileDamaged) as error:
        typer.echo(str(error), err=True)
        return _FAILED
    if options.json:
        for sample in selection.samples:
            typer.echo(json.dumps(sample))
    else:
        console = Console(width=options.terminal, force_terminal=True if options.terminal else None, highlight=False)
        _print(console, selection, full=options.full, special=options.special)
    return 0


def _selection(root: Path, query: Query, options: Options) -> Selection:
    """Reads the samples below a job's directory, to which a running job adds files and from which it removes others.

    Raises ValueError, with a message for people, if there is no file that is asked for, and FileDamaged.
    """
    listed = 0
    while True:
        written = read_files(root)
        if not written:
            raise ValueError(
                f"DIR {root}: no responses in it (incarnations/*/samples/*.parquet). A job writes some if it has spec.samples; "
                "the first after step 1"
            )
        try:
            return select(options.files(written).values(), query)
        except FileRemoved:
            listed += 1
            if listed == _LISTED:
                raise


def _print(console: Console, selection: Selection, *, full: bool, special: bool) -> None:
    before = None
    for sample in selection.samples:
        heading, details = headings(sample)
        console.print(Text(visible(heading), "bold"), Text(visible(details), "dim"), sep="\n")
        for text in (sample["message"], sample["environment_error"]):
            if text:
                console.print(Text(shown(text, full=full), "yellow"))
        prompt = sample["epoch"], sample["row"]
        text = "the same prompt" if prompt == before else shown(sample["prompt"], full=full)
        console.print(Text(text, "cyan"))
        for line in folded(sample["turns"], full=full):
            console.print(Text(line, "dim"))
        tokens = [SpecialToken(**token) for token in sample["special"]] if special else []
        console.print(Text(shown(with_special_tokens(sample["response"], tokens), full=full)))
        console.print()
        before = prompt
    matched = ", ".join(f"{count} {fate}" for fate, count in selection.matched.items())
    total = sum(selection.matched.values())
    more = "; --limit shows more" if len(selection.samples) < total else ""
    console.print(
        Text(f"{len(selection.samples)} of {total} samples ({matched}){more}" if total else "no sample matches")
    )


def headings(sample: Sample) -> tuple[str, str]:
    """Returns two lines about a sample: what became of it, and the details (pure)."""
    fate = sample["fate"] if sample["reason"] is None else f"{sample['fate']} ({sample['reason']})"
    score = "not graded" if sample["grade"] is None else "no score"
    parts = {name: "timed out" if part is None else f"{part:.3f}" for name, part in sample["parts"].items()}
    outcome = [
        "e{epoch}r{row}a{attempt}s{sample}".format_map(sample),
        f"step {sample['step']}",
        fate,
        score if sample["score"] is None else f"score {sample['score']:.3f}",
        *([] if sample["advantage"] is None else [f"advantage {sample['advantage']:+.3f}"]),
        f"{sample['response_tokens']} tokens, {sample['finish_reason']}",
    ]
    versions = "+".join(str(span["version"]) for span in sample["versions"])
    details = [
        *([sample["domain"]] if sample["domain"] else []),
        *(f"{name} {part}" for name, part in parts.items()),
        *([] if sample["grade"] in (None, "scored") else [sample["grade"]]),
        f"weights of step {versions}",
        sample["engine"],
    ]
    if sample["turns"]:
        drawn = sum(turn["tokens"] is not None for turn in sample["turns"])
        details.append(f"{_count(drawn, 'turn')} in {_count(len(sample['segments']), 'segment')}")
        details.append(f"{sample['environment_seconds']:.1f} s in its environment")
    return "  ".join(outcome), " · ".join(details)


def folded(turns: Sequence[Mapping[str, Any]], *, full: bool) -> list[str]:
    """Returns the messages of an episode, one line each; unless `full`, with the beginnings of their texts (pure).

    What the model wrote begins with `>`, and says which segment trains it; a turn that began one says why.
    """
    lines = []
    for turn in turns:
        text = one_line(" ".join(filter(None, (turn["text"], turn["tool_calls"]))), full=full)
        if turn["tokens"] is None:
            lines.append(f"  {visible(turn['role'])}: {text}")
            continue
        begun = turn["beginning"] and f", {turn['beginning']}"
        begun = begun and (begun if turn["differs"] is None else f"{begun} at message {turn['differs']}")
        about = f"segment {turn['segment']}{begun or ''}, {turn['tokens']} tokens, {turn['seconds']:.1f} s"
        lines.append(visible(f"> {turn['role']} ({about}): ") + text)
    return lines


def one_line(text: str, *, full: bool) -> str:
    """Returns the text as a terminal may show it; unless `full`, its beginning, on one line (pure)."""
    if not full:
        text = " ".join(text.split())
        text = text if len(text) <= _LINE else f"{text[:_LINE]}…"
    return visible(text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def shown(text: str, *, full: bool) -> str:
    """Returns the text as a terminal may show it; a long one is shortened in the middle unless `full` (pure)."""
    left_out = len(text) - _BEGINNING - _END
    if not full and left_out > 0:
        text = f"{text[:_BEGINNING]}\n[… {left_out} characters; --full shows them …]\n{text[-_END:]}"
    return visible(text)


def visible(text: str) -> str:
    """Escapes what a terminal would obey (pure)."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
