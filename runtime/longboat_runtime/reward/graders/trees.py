"""Removing what a grade has left behind."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def remove_tree(root: Path) -> None:
    """Removes a directory whose content may want to hinder that: too deep for recursion or a path, or without permissions.

    Every directory found is moved to the top under a short name before it is looked into, so no path grows. Symbolic links
    are removed, never followed. Nobody may be writing there any more.
    """
    root.chmod(0o700)
    prefix = secrets.token_hex(8)
    found = [root]
    for directory in found:
        with os.scandir(directory) as entries:
            content = list(entries)
        for entry in content:
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                path.chmod(0o700)
                found.append(path.rename(root / f"{prefix}-{len(found)}"))
            else:
                path.unlink()
    for directory in reversed(found):
        directory.rmdir()
