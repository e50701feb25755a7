"""`python -m bench.summarise NAME`: the summary again, and the plot where a benchmark has one, from the raw file alone."""

from __future__ import annotations

import argparse
import importlib

from bench.record import raw_file


def main() -> None:
    """Runs `summary.write` of the package `bench.NAME`, which writes `results/NAME.md` and, where there is a plot, `results/NAME.svg`."""
    parser = argparse.ArgumentParser(prog="bench.summarise", description=__doc__)
    parser.add_argument("name")
    name = parser.parse_args().name
    importlib.import_module(f"bench.{name}.summary").write(raw_file(name))


if __name__ == "__main__":
    main()
