"""Broadcasts between processes, by gloo: one sender, and pods of several workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
import torch

from longboat_runtime.weights import groups as module
from longboat_runtime.weights.groups import Group, SenderGroups, WorkerGroups
from tests.support.waiting import DEADLINE_SECONDS

# How long a sender waits for a pod that does not take part.
SECONDS = 5.0
# Others come, however long their processes take to start.
MEETING = timedelta(seconds=DEADLINE_SECONDS)
# The pods and their workers.
PODS = {"a": 2, "b": 1}


def work(connection: Connection, address: str, rank: int, size: int) -> None:
    """Receives a bucket of so many bytes each time it is told to, and answers with them, or with what went wrong."""
    module.MEETING = MEETING
    groups = WorkerGroups(torch.device("cpu"))
    groups.join("key", {7: address}, rank, size, DEADLINE_SECONDS)
    connection.send("joined")
    while (nbytes := connection.recv()) is not None:
        try:
            connection.send(groups.receive(7, nbytes).tolist())
        except Exception as error:  # noqa: BLE001 - the test gets it
            connection.send(str(error))
    groups.leave("another key")
    groups.leave("key")
    connection.send("left")


class Worker:
    def __init__(self, address: str, rank: int, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, address, rank, size), daemon=True)
        self.process.start()
        theirs.close()


@pytest.fixture
def sender() -> SenderGroups:
    return SenderGroups()


@pytest.fixture
def pods(sender: SenderGroups, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Worker]]]:
    monkeypatch.setattr(module, "MEETING", MEETING)
    made = {}
    for key, count in PODS.items():
        address = sender.open(key, "127.0.0.1")
        made[key] = [Worker(address, 1 + number, 1 + count) for number in range(count)]
        sender.join(key, address, 1 + count, DEADLINE_SECONDS)
        for worker in made[key]:
            assert worker.connection.recv() == "joined"
    yield made
    for worker in (worker for workers in made.values() for worker in workers):
        worker.process.kill()
        worker.process.join()


def receive(workers: list[Worker], nbytes: int) -> None:
    for worker in workers:
        worker.connection.send(nbytes)


def test_a_bucket_is_handed_over_once_for_each_pod(sender: SenderGroups, pods: dict[str, list[Worker]]) -> None:
    everyone = [worker for workers in pods.values() for worker in workers]
    sizes = [10, 3, 20]
    for number, size in enumerate(sizes):
        receive(everyone, size)
        assert sender.broadcast(torch.full((size,), number, dtype=torch.uint8), [*PODS]) == []
        assert [worker.connection.recv() for worker in everyone] == [[number] * size] * 3
    assert sender.broadcast_bytes == len(PODS) * sum(sizes)
    receive(everyone, None)  # type: ignore[arg-type]
    for key in PODS:
        sender.leave(key)
    assert {worker.connection.recv() for worker in everyone} == {"left"}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_pod_that_does_not_take_part_is_left_behind(
    sender: SenderGroups, pods: dict[str, list[Worker]], number: signal.Signals
) -> None:
    """The other pod gets everything."""
    sender._groups["a"]._deadline = timedelta(seconds=SECONDS)
    os.kill(pods["a"][1].process.pid or 0, number)
    keys = [*PODS]
    for value in range(3):
        receive(pods["b"], 8)
        if value == 0:
            receive(pods["a"][:1], 8)
        failed = sender.broadcast(torch.full((8,), value, dtype=torch.uint8), keys)
        assert pods["b"][0].connection.recv() == [value] * 8
        keys = [key for key in keys if key not in failed]
    assert keys == ["b"]
    sender.leave("a")


def test_all_pods_that_do_not_take_part_share_one_deadline(sender: SenderGroups) -> None:
    """Else workers of the others would give up their wait for the next bucket."""
    now, ends = [100.0], []

    class Stuck(Group):
        def __init__(self) -> None:
            self._deadline, self._work = timedelta(seconds=SECONDS), None

        def start(self, tensor: torch.Tensor) -> None:
            self._group = SimpleNamespace(
                broadcast=lambda *_: SimpleNamespace(is_completed=lambda: False), abort=lambda: None
            )
            super().start(tensor)

        def leave(self) -> None:
            ends.append(now[0])

    def sleep(seconds: float) -> None:
        now[0] += 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        sender._groups |= {key: Stuck() for key in "abc"}
        assert sender.broadcast(torch.zeros(8, dtype=torch.uint8), [*"abc"]) == [*"abc"]
    assert len(ends) == 3
    assert now[0] <= 100.0 + SECONDS + 1.0


def test_a_group_to_which_a_worker_does_not_come_is_given_up(
    sender: SenderGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the time-out of the group's broadcasts."""
    monkeypatch.setattr(module, "MEETING", timedelta(milliseconds=300))
    address = sender.open("a", "127.0.0.1")
    with pytest.raises(RuntimeError):
        sender.join("a", address, 2, 3600.0)
    assert not sender._groups


def test_a_group_that_was_left_while_it_was_made_is_not_kept(sender: SenderGroups) -> None:
    address = sender.open("a", "127.0.0.1")
    store = sender._stores["a"]
    sender.leave("a")
    with pytest.raises(RuntimeError, match="was left"):
        sender.join("a", address, 1, 60.0)
    assert not sender._groups
    del store
