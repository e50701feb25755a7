"""The README's picture shows short rounds and the long one that follows them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from bench.rounds.timeline import PICTURE, write


def test_the_command_draws_the_picture_of_the_readme(tmp_path: Path) -> None:
    write(tmp_path / "timeline.png")
    with Image.open(tmp_path / "timeline.png") as drawn, Image.open(PICTURE) as committed:
        assert drawn.size == committed.size
