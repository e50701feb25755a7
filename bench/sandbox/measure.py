"""Hostile programs in the sandbox of the tests, all variants of every class, each beside an honest one. Some ten minutes, alone on the machine.

What each did without a sandbox is measured afterwards. Ends with an error, once all is written, if the bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.record import Recorder
from tests.reward.conftest import running_graders
from tests.reward.containment import loaded, tried, victim_and_secrets, without_sandbox
from tests.reward.hostile_responses import RESPONSES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `make bench NAME=sandbox`."""
    parser.add_argument("--variants", nargs="*", default=[*RESPONSES], choices=[*RESPONSES], metavar="VARIANT")


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Tries the variants one after the other. Appends to `path`."""
    recorder = Recorder(path, variants=len(arguments.variants))
    with tempfile.TemporaryDirectory(prefix="lb-") as name:
        directory = Path(name)
        # The graders' user, which is another one, has to write there.
        directory.chmod(0o777)
        with victim_and_secrets(directory) as victim, running_graders(directory) as socket:
            asyncio.run(_contain(recorder, socket, victim, arguments.variants))
        for variant, harm in without_sandbox(directory, arguments.variants).items():
            recorder.write("unprotected", variant=variant, harm=harm)
    recorder.close()


async def _contain(recorder: Recorder, socket: Path, victim: subprocess.Popen[bytes], variants: Sequence[str]) -> None:
    client = await loaded(socket)
    for variant in variants:
        result = await tried(client, RESPONSES[variant], victim, time.monotonic)
        group = RESPONSES[variant].group
        recorder.write("tried", variant=variant, group=group, harm=result.harm, next_seconds=result.next_seconds)
        print(f"{variant:60} {result.harm or 'contained':30} next grade after {result.next_seconds:.2f} s", flush=True)
    await client.close()
