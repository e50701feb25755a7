"""A release writes one version everywhere, and its changelog; nothing else changes."""

import shutil
import subprocess
import tomllib
from pathlib import Path

from e2e.cluster.paths import REPOSITORY
from e2e.release import VERSION, files, write


def versions(root: Path) -> dict[str, set[str]]:
    """The versions that each file names."""
    named = {
        str(file.relative_to(root)): {match[2] for match in VERSION.finditer(file.read_text())} for file in files(root)
    }
    return {file: found for file, found in named.items() if found}


def test_one_version_is_written_everywhere() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    named = versions(REPOSITORY)
    assert {"charts/longboat/Chart.yaml", "examples/quickstart/values.yaml", "docs/install.md"} < named.keys()
    assert {file: found for file, found in named.items() if found != {version}} == {}
    tags = ["git", "grep", "-lE", r"longboat[-a-z]*:[0-9]+\.[0-9]+\.[0-9]"]
    tracked = subprocess.run(tags, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert set(tracked.stdout.split()) <= named.keys(), "a release would leave these as they are"


def test_a_release_changes_the_version_and_the_changelog(tmp_path: Path) -> None:
    for name in ("charts", "changes", "docs", "examples"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    for name in ("pyproject.toml", "CHANGELOG.md", "README.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "changes" / "+more.added.md").write_text("There is more.\n")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    named = versions(tmp_path)

    write(tmp_path, "7.8.9")

    assert versions(tmp_path) == {file: {"7.8.9"} for file in named}
    changed = subprocess.run([*git, "diff", "--name-only"], check=True, capture_output=True, text=True).stdout.split()
    assert set(changed) == named.keys()
    assert "## 7.8.9 (" in (tmp_path / "CHANGELOG.md").read_text()
    assert "- There is more.\n" in (tmp_path / "CHANGELOG.md").read_text()
    assert [file.name for file in (tmp_path / "changes").iterdir()] == ["README.md"]
