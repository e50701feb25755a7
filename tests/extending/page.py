"""`python -m tests.extending.page` writes the parts of docs/extending.md that come from the code: a sample's way, and its states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def parts() -> Mapping[str, str]:
    """What the code says now, by the name of the part."""
    from tests.extending import states, way

    return {"states": states.drawn(states.transitions()), "way": way.told(way.followed())}


def part(page: str, name: str) -> str:
    """A part as it stands in the page. Raises LookupError if the page has none of that name."""
    found = _pattern(name).search(page)
    if found is None:
        raise LookupError(f"docs/extending.md has no part `{name}`")
    return found[2].strip("\n")


def written(page: str, name: str, text: str) -> str:
    """The page with another text for a part."""
    return _pattern(name).sub(lambda found: f"{found[1]}\n\n{text}\n\n{found[3]}", page)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: [^>]*-->)(.*?)(<!-- end of {name} -->)", re.DOTALL)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, text in parts().items():
        page = written(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
