"""Manifests that have to be refused, each with the field that has to be named: by the loader here, by the API server in e2e."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("malformed")
MARK = "# refused at: "


@dataclass(frozen=True)
class Malformed:
    """A manifest and the path of its fault."""

    name: str
    text: str
    path: str


def malformed() -> list[Malformed]:
    """All of them; the first line of each file names the path."""
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        text = file.read_text()
        first = text.partition("\n")[0]
        assert first.startswith(MARK), file
        found.append(Malformed(file.stem, text, first.removeprefix(MARK)))
    return found
