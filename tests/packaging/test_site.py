"""The documentation's site is built without a warning, so no link leads nowhere; and what pages name in backquotes exists."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.extending.page import PAGE as EXTENDING
from tests.support.paths import REPOSITORY, exists, named_paths

# docs/extending.md names files of the past too, and has a test of its own.
PAGES = [
    page
    for pages in ("*.md", "docs/**/*.md", "charts/*/README.md", "e2e/cluster/README.md")
    for page in sorted(REPOSITORY.glob(pages))
    if page != EXTENDING
]


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    options = ["--quiet", "--fail-on-warning", "--keep-going", "--conf-dir", "docs"]
    command = [sys.executable, "-m", "sphinx", *options, "--builder", "dummy", ".", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert [path for path in named_paths(page.read_text(encoding="utf-8")) if not exists(path)] == []


def test_a_path_is_told_from_metrics_and_placeholders() -> None:
    assert named_paths(
        "`perf/throughput` `incarnations/N/metrics.jsonl` `rounds/NAME.py` `no/such.py` `docs/none` `README.md`"
    ) == [
        "no/such.py",
        "docs/none",
    ]
