"""A sample's way from its row to its loss is short enough to be read, and docs/extending.md tells it as it is."""

from tests.extending import way
from tests.extending.page import PAGE, part
from tests.extending.trace import counts

MOST_FILES = 40


def test_a_samples_way() -> None:
    found = way.followed()
    _, files, _ = counts(found)
    told = way.told(found)
    print(told)
    assert part(PAGE.read_text(), "way") == told, "docs/extending.md is stale: run `make generate`"
    assert files <= MOST_FILES
