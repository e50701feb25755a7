"""Shell commands are read from pages, but for those that are marked as not run."""

from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import REPOSITORY
from e2e.pages import Block, blocks, follow

PAGE = """# Title
```sh
export NAME=value
```
<!-- not run: needs a GPU -->
```sh
nvidia-smi
```
```yaml
no: command
```
"""


def test_a_block_has_a_line_and_perhaps_a_reason_not_to_be_run() -> None:
    assert blocks(PAGE) == [Block(3, "export NAME=value\n", ""), Block(7, "nvidia-smi\n", "needs a GPU")]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run -->\n```sh\ntrue\n```\n",
        "<!-- not run: why -->\n\n```sh\ntrue\n```\n",
        "<!-- not run: why -->\n```yaml\na: b\n```\n",
    ],
    ids=["no reason", "an empty line between", "no shell"],
)
def test_a_mark_that_marks_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3: expected `<!-- not run: REASON -->`"):
        blocks(f"# Title\n\n{text}")


def test_blocks_of_a_page_share_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("e2e.pages.REPOSITORY", tmp_path)
    log = tmp_path / "log"
    (tmp_path / "page.md").write_text(f'{PAGE}```sh\necho "it is $NAME"\n```\n')
    follow("page.md", {"PATH": "/usr/bin:/bin"}, log)
    assert "\nit is value\n" in log.read_text()
    (tmp_path / "page.md").write_text("```sh\nfalse | cat\necho further\n```\n")
    with pytest.raises(ClusterError, match=r"page\.md can't be followed"):
        follow("page.md", {"PATH": "/usr/bin:/bin"}, log)
    assert "\nfurther\n" not in log.read_text()


@pytest.mark.parametrize("page", ["README.md", "charts/longboat/README.md", "docs/images.md", "docs/install.md"])
def test_pages_that_are_followed_have_commands(page: str) -> None:
    assert any(not block.not_run for block in blocks((REPOSITORY / page).read_text()))
