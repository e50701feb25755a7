from pathlib import Path

import pytest

from longboat_runtime.cgroup import cpu_limit


@pytest.mark.parametrize(("text", "expected"), [("150000 100000\n", 1.5), ("max 100000\n", None)])
def test_limit_of_cgroup_v2(tmp_path: Path, text: str, expected: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_limit(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("250000\n", 2.5), ("-1\n", None)])
def test_limit_of_cgroup_v1(tmp_path: Path, quota: float | None, expected: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_limit(tmp_path) == expected


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is None
