"""What agents leave behind for people, and what they clean up."""

import io
import mmap
import os
from multiprocessing import shared_memory
from pathlib import Path

from longboat_runtime.agent.actor_logs import ActorLogs
from longboat_runtime.agent.agent import termination_message, write_termination_message
from longboat_runtime.agent.shared_memory import Segment, leftovers, sweep, sweep_buckets
from longboat_runtime.weights.handover_files import PREFIX


def test_only_old_unmapped_segments_of_engines_are_leftovers() -> None:
    segments = [
        Segment("psm_1", 60.0, 1),
        Segment("psm_mapped", 60.0, 2),
        Segment("psm_young", 1.0, 3),
        Segment("sem.mp-1", 60.0, 4),
        Segment("vllm_dist_1", 60.0, 5),
        Segment("plasma", 60.0, 6),
        Segment("somebody-elses", 60.0, 7),
    ]
    assert leftovers(segments, {2}) == ["psm_1", "sem.mp-1", "vllm_dist_1"]


def test_sweep_removes_what_nobody_maps(tmp_path: Path) -> None:
    for name in ("psm_left", "psm_used", "other"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    with (tmp_path / "psm_used").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as used:
        assert used[0] == ord("x")
        assert sweep(tmp_path) == []
        now = os.stat_result((tmp_path / "psm_left").stat()).st_ctime
        assert sweep(tmp_path, now=now + 60) == ["psm_left"]
    assert sweep(tmp_path, everything=True) == ["psm_used"]
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_buckets_of_dead_engines_are_removed_before_a_node_starts(tmp_path: Path) -> None:
    dead, living, other = (
        tmp_path / name for name in (f"{PREFIX}999999999-0", f"{PREFIX}{os.getppid()}-0", "somebody-elses")
    )
    for path in (dead, living, other):
        path.write_bytes(b"x")
    assert sweep_buckets(tmp_path) == [dead.name]
    assert {*tmp_path.iterdir()} == {living, other}


def test_a_semaphore_that_its_maker_still_maps_is_left_alone(tmp_path: Path) -> None:
    """As glibc makes one: mapped under another name, to which the process that opens it by name is a stranger."""
    made, named = tmp_path / "sem.eLxDL9", tmp_path / "sem.mp-1"
    made.write_bytes(b"x" * 32)
    with made.open("r+b") as file, mmap.mmap(file.fileno(), 32):
        named.hardlink_to(made)
        made.unlink()
        assert sweep(tmp_path, now=named.stat().st_ctime + 60) == []
    assert sweep(tmp_path, now=named.stat().st_ctime + 60) == ["sem.mp-1"]


def test_names_of_segments_are_those_python_gives() -> None:
    segment = shared_memory.SharedMemory(create=True, size=16)
    try:
        assert leftovers([Segment(segment.name, 60.0, 1)], ()) == [segment.name]
    finally:
        segment.close()
        segment.unlink()


def test_actor_output_is_printed_once_by_whole_lines(tmp_path: Path) -> None:
    logs = tmp_path / "session_1" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "session_latest").symlink_to("session_1")
    old = logs / "worker-aa-01000000-1.out"
    old.write_text("before the agent\n")
    out = io.StringIO()
    follower = ActorLogs(tmp_path, out)
    new = logs / "worker-bb-01000000-77.err"
    new.write_text(":job_id:01000000\nfirst\nsec")
    (logs / "raylet.err").write_text("not an actor\n")
    follower.print_new()
    with new.open("a") as file:
        file.write("ond\n")
    follower.print_new()
    follower.print_new()
    assert out.getvalue() == "(pid=77) first\n(pid=77) second\n"


TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1, in run', "    load()"]


def test_the_cause_is_what_the_traceback_at_the_end_says(tmp_path: Path) -> None:
    invalid = ["pydantic_core._pydantic_core.ValidationError: 1 validation error for Spec", "steps", "  Field required"]
    invalid[-1] += " [type=missing, input_value={}, input_type=dict]"
    link = "    For further information visit https://errors.pydantic.dev/2.12/v/missing"
    message = termination_message("driver", 1, [*TRACEBACK, *invalid, link])
    assert message == "driver exited with code 1: Spec.steps: Field required"
    message = termination_message("driver", 1, [*TRACEBACK, "ValueError: no model at /model", ""])
    assert message == "driver exited with code 1: no model at /model"
    named = [*TRACEBACK, "ValueError: no model at /model", "driver failed: the head is gone"]
    assert termination_message("driver", 1, named) == "driver exited with code 1: driver failed: the head is gone"
    killed = [*TRACEBACK, "ValueError: no model at /model", "the head is gone"]
    assert termination_message("driver", -9, killed) == "driver was killed by signal 9: the head is gone"
    lines = ["the head is gone"]
    assert termination_message("driver", 1, lines, 3).startswith("driver exited with code 1 (failure 3 in a row): ")
    assert termination_message("rollout", -9, []).startswith("rollout was killed by signal 9")
    assert len(termination_message("driver", 1, ["x" * 10_000])) == 1000
    log = tmp_path / "termination-log"
    write_termination_message(message, log)
    assert not log.exists()
    log.touch()
    write_termination_message(message, log)
    assert log.read_text() == message
