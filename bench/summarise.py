"""`python -m bench.summarise NAME`: summary and plot again, from the raw file alone."""

from __future__ import annotations

import argparse
import importlib

from bench.record import raw_file


def main() -> None:
    """Writes `results/NAME.md` and `results/NAME.svg`."""
    parser = argparse.ArgumentParser(prog="bench.summarise", description=__doc__)
    parser.add_argument("name")
    name = parser.parse_args().name
    importlib.import_module(f"bench.{name}.summary").write(raw_file(name))


if __name__ == "__main__":
    main()
