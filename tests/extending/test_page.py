"""docs/extending.md says what the code says."""

import re

from tests.extending import states
from tests.extending.page import PAGE, part
from tests.support.paths import exists

TEXT = PAGE.read_text(encoding="utf-8")
# What is to be done, the files to open before, and those now.
TASKS = re.findall(r"(?m)^\* (.+)\n  \* before, (\d+: .+)\n  \* now, (\d+: .+)$", TEXT)


def files(text: str) -> list[str]:
    """Paths in backquotes, but for those of files that are yet to be written."""
    return [path for path in re.findall(r"`([\w/.-]+\.(?:py|md))`", text) if not re.search("[A-Z]{4}", path)]


def test_the_states_of_a_sample_are_those_of_the_ledger() -> None:
    drawn = states.drawn(states.transitions())
    assert part(TEXT, "states") == drawn, "docs/extending.md is stale: run `make generate`"


def test_every_file_that_is_named_exists() -> None:
    now = TEXT
    for _, before, _ in TASKS:
        now = now.replace(before, "")
    assert len(files(now)) > 40
    assert [path for path in files(now) if not exists(path)] == []


def test_the_files_of_a_newcomers_tasks_are_counted() -> None:
    assert len(TASKS) == 5
    for task, *cells in TASKS:
        for said in cells:
            assert said.startswith(f"{len(set(files(said)))}: "), task
