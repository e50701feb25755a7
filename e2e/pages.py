"""Reads the shell commands of documentation pages, so that tests can follow them.

A page's commands are its fenced blocks of the language `sh`. One that a test can't run has a comment in the line before it that
says why: `<!-- not run: REASON -->`.
"""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import REPOSITORY

_BLOCK = re.compile(r"(?ms)^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```sh\n(?P<commands>.*?)^```$")
_MARK = re.compile(r"(?m)^<!-- not run\b")


@dataclass(frozen=True)
class Block:
    """A block of shell commands, and why it isn't run (empty if it is)."""

    line: int
    commands: str
    not_run: str


def blocks(text: str) -> list[Block]:
    """Returns a page's blocks; raises ValueError for a mark without a reason, or without a block in the next line."""
    matches = list(_BLOCK.finditer(text))
    marked = {match.start() for match in matches if match["reason"]}
    if astray := [mark.start() for mark in _MARK.finditer(text) if mark.start() not in marked]:
        raise ValueError(
            f"line {_line(text, astray[0])}: expected `<!-- not run: REASON -->` and a block of `sh` below it"
        )
    return [Block(_line(text, match.start("commands")), match["commands"], match["reason"] or "") for match in matches]


def follow(page: str, environment: Mapping[str, str], log: Path) -> None:
    """Runs a page's commands in one shell, from the root of the repository; raises ClusterError when one fails."""
    script = "".join(
        f"echo '--- {page}, line {block.line}'\n{block.commands}"
        for block in blocks((REPOSITORY / page).read_text())
        if not block.not_run
    )
    shell = ["bash", "-euxo", "pipefail", "-c", script]
    with log.open("w") as output:
        process = subprocess.Popen(
            shell,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait()
        finally:  # a build would survive the shell
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        raise ClusterError(f"{page} can't be followed; the end of {log}:\n{log.read_text(errors='replace')[-5000:]}")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
