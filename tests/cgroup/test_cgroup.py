from pathlib import Path

import pytest

from longboat_graders.cgroup import cpu_limit, cpu_seconds, runnable


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
    assert cpu_seconds(tmp_path) is None


def test_use_in_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\nnr_periods 7\n")
    assert cpu_seconds(tmp_path) == 2.5


def test_use_in_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "cpuacct").mkdir()
    (tmp_path / "cpuacct" / "cpuacct.usage").write_text("2500000000\n")
    assert cpu_seconds(tmp_path) == 2.5


@pytest.mark.parametrize("threads", ["cgroup.threads", "cpu/tasks"])
def test_threads_that_could_run(tmp_path: Path, threads: str) -> None:
    """One runs, one sleeps, one has ended, one has an odd name, one is this process' own."""
    (tmp_path / threads).parent.mkdir(exist_ok=True)
    (tmp_path / threads).write_text("10\n11\n12\n13\n14\n")
    (tmp_path / "proc" / "self" / "task" / "14").mkdir(parents=True)
    for number, stat in (("10", "(a) R 1"), ("11", "(b) S 1"), ("13", "(c) R) D 1"), ("14", "(d) R 1")):
        (tmp_path / "proc" / number).mkdir()
        (tmp_path / "proc" / number / "stat").write_text(f"{number} {stat} 1\n")
    assert runnable(tmp_path, tmp_path / "proc") == 1
