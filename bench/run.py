"""`python -m bench.run NAME`: measures, appends to the raw file, and summarises it."""

from __future__ import annotations

import argparse
import importlib
import signal
from types import FrameType

from bench.record import raw_file


def main() -> None:
    """Runs the benchmark NAME: `measure.run` of the package `bench.NAME`, then `summary.write`."""
    parser = argparse.ArgumentParser(prog="bench.run", description=main.__doc__)
    parser.add_argument("name")
    name, rest = parser.parse_known_args()
    measure = importlib.import_module(f"bench.{name.name}.measure")
    parser = argparse.ArgumentParser(prog=f"bench.run {name.name}", description=measure.__doc__)
    measure.add_arguments(parser)
    # As Ctrl-C does, so that what a benchmark started ends with it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _interrupted)
    measure.run(parser.parse_args(rest), raw_file(name.name))
    importlib.import_module(f"bench.{name.name}.summary").write(raw_file(name.name))


def _interrupted(number: int, frame: FrameType | None) -> None:
    # A shell without job control has what it runs in the background ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
