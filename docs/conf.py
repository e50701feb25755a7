"""Configures Sphinx, which `make docs` runs on the repository's root, so that pages link each other and other files as in a checkout."""

import tomllib
from pathlib import Path

from sphinx.application import Sphinx

CONTENTS = {
    "Guide": ("docs/*", "docs/reference/*"),
    "Installation": ("charts/longboat/README", "e2e/cluster/README"),
    "Measurements": ("bench/results/*",),
    "Project": ("CONTRIBUTING", "SECURITY", "CHANGELOG", "changes/README"),
}

project = "Longboat"
nitpicky = True
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "README"
include_patterns = [f"{page}.md" for page in (root_doc, *(page for pages in CONTENTS.values() for page in pages))]
exclude_patterns = [".*", "build"]
highlight_language = "text"
html_theme = "furo"
html_title = f"Longboat {release}"
html_show_copyright = False
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]


def add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Appends the table of contents to the first page, which as a README has none."""
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            head = ["```{toctree}", ":hidden:", ":glob:", f":caption: {caption}"]
            source[0] += "\n".join(["", *head, *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Connects what Sphinx calls before it reads a page."""
    app.connect("source-read", add_contents)
