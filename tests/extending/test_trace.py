"""A sample's way from its row to its loss is short enough to be read, and docs/extending.md tells it as it is."""

from tests.extending import way
from tests.extending.page import PAGE, part
from tests.extending.trace import counts

MOST_HOPS, MOST_FILES, MOST_ENTRIES = 70, 40, 5


def test_a_samples_way() -> None:
    found = way.followed()
    hops, files, entries = counts(found)
    told = way.told(found)
    print(told)
    assert part(PAGE.read_text(), "way") == told, "docs/extending.md is stale: run `make generate`"
    assert hops <= MOST_HOPS
    assert files <= MOST_FILES
    assert entries <= MOST_ENTRIES, "into driver"
