"""`python -m longboat_crds.generate [--check]`: write, or compare, the files that are generated from the models."""

import argparse
import sys
from pathlib import Path

from longboat_crds.generated import generated

ROOT = Path(__file__).resolve().parents[2]


def stale(root: Path = ROOT) -> list[str]:
    """Returns the paths of generated files that are missing or differ from what the models now generate."""
    return [
        path
        for path, text in generated().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str] | None = None) -> int:
    """Writes the stale files; with --check only names them. Returns 1 if --check finds a stale file, else 0."""
    parser = argparse.ArgumentParser(prog="python -m longboat_crds.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file would change")
    options = parser.parse_args(arguments)
    paths = stale()
    if options.check:
        for path in paths:
            print(f"{path} is stale: run `python -m longboat_crds.generate`", file=sys.stderr)
        return 1 if paths else 0
    texts = generated()
    for path in paths:
        file = ROOT / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
