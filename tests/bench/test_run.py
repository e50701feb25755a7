"""`make bench NAME=...` finds what it needs of every benchmark."""

import argparse
import importlib
from pathlib import Path

import pytest

import bench.record

NAMES = sorted(path.parent.name for path in Path(bench.record.__file__).parent.glob("*/measure.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_can_be_started_and_summarised(name: str) -> None:
    importlib.import_module(f"bench.{name}.measure").add_arguments(argparse.ArgumentParser())
    assert callable(importlib.import_module(f"bench.{name}.measure").run)
    assert callable(importlib.import_module(f"bench.{name}.summary").write)
