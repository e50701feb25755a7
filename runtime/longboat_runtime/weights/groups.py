"""Process groups by which one sender of the trainer broadcasts to the workers of one rollout pod: NCCL on GPUs, gloo on CPUs.

They are made by hand, each on a store of its own, apart from every other group of these processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

log = structlog.get_logger()

# Both ends have deadlines of their own. The group's own time-out is far longer: after it, NCCL's watchdog would end the trainer's process.
GROUP_TIMEOUT = timedelta(minutes=10)
# How long both ends wait for each other while a group is made.
MEETING = timedelta(seconds=45)
# The pause between two looks at a broadcast.
POLL_SECONDS = 0.001
# Torch reads this when it makes a group of NCCL: its watchdog then doesn't end this process because another one is gone.
ASYNC_ERROR_HANDLING, NO_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"


def versions() -> dict[str, str]:
    """Returns what both ends of a group must have in common: the versions of torch and of NCCL, or that there are no GPUs."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "no GPU"
    return {"torch": torch.__version__, "NCCL": nccl}


class Group:
    """A group of `size` processes that meet at `address`, host:port; rank 0 broadcasts, and this end waits for that up to `seconds`.

    A new one waits until all have come, at most for MEETING, and is connected at once, so that no broadcast waits for one that never came.
    """

    # Groups that were left in the middle of a broadcast. If Python freed one, torch would wait for the broadcast, and this process with it.
    _busy: ClassVar[list[tuple[Any, Any]]] = []

    def __init__(self, address: str, rank: int, size: int, seconds: float) -> None:
        self._deadline = MEETING
        host, _, port = address.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=MEETING)
        store.set(f"rank {rank}", "")
        store.wait([f"rank {number}" for number in range(size)], MEETING)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = GROUP_TIMEOUT
            os.environ[ASYNC_ERROR_HANDLING] = NO_HANDLING
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, MEETING)
        self._work: Any = None
        self._end = 0.0
        try:
            self.start(torch.zeros(1, dtype=torch.uint8, device=device))
            self.wait()
        except BaseException:
            self.leave()
            raise
        self._deadline = timedelta(seconds=seconds)

    def start(self, tensor: Tensor) -> None:
        """Starts to send rank 0's tensor (shape [bytes]), or to receive it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = GROUP_TIMEOUT
        self._end = time.monotonic() + self._deadline.total_seconds()
        self._work = self._group.broadcast([tensor], options)

    def wait(self) -> None:
        """Waits until what was started is done. Raises at the deadline, which counts from the start, and if another process is gone.

        At the deadline the group is as it was: had torch waited itself, it would have aborted a group that NCCL's watchdog still watches.
        """
        while not self._work.is_completed():
            if time.monotonic() > self._end:
                raise TimeoutError(f"a broadcast has taken more than {self._deadline.total_seconds():.0f} s")
            time.sleep(POLL_SECONDS)
        self._work.wait()

    def leave(self) -> None:
        """Ends the group, whatever it is doing."""
        Group._busy = [(group, work) for group, work in Group._busy if not work.is_completed()]
        if self._work is not None and not self._work.is_completed():
            Group._busy.append((self._group, self._work))
        with suppress(Exception):
            self._group.abort()


class SenderGroups:
    """The groups of one sender, by key: one for each rollout pod. `broadcast_bytes` counts what was handed to broadcasts."""

    def __init__(self) -> None:
        self.broadcast_bytes = 0
        self._stores: dict[str, dist.TCPStore] = {}
        self._groups: dict[str, Group] = {}
        self._staging = torch.empty(0, dtype=torch.uint8)

    def open(self, key: str, host: str) -> str:
        """Serves the store of a new group from this process; returns its address."""
        self._stores[key] = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return f"{host}:{self._stores[key].port}"

    def join(self, key: str, address: str, size: int, seconds: float) -> None:
        """Joins a group; see `Group`. Raises RuntimeError if it has been left meanwhile."""
        group = Group(address, 0, size, seconds)
        self._groups[key] = group
        if key not in self._stores:
            self.leave(key)
            raise RuntimeError("the group was left before all had come")

    def leave(self, key: str) -> None:
        """Ends a group; does nothing if there is none. One that is still being made ends once it is made."""
        self._stores.pop(key, None)
        if (group := self._groups.pop(key, None)) is not None:
            group.leave()

    def broadcast(self, data: Tensor, keys: Sequence[str]) -> list[str]:
        """Sends bytes to all of these groups at once. Returns the keys of those that failed or missed the deadline, which are ended.

        One call at a time: each group's broadcasts have one order, and on a GPU all go through one buffer.
        """
        failed: dict[str, Exception] = {}
        tensor = self._on_device(data)
        for phase in (self._start, self._wait):
            for key in [key for key in keys if key not in failed]:
                try:
                    phase(key, tensor)
                except Exception as failure:  # noqa: BLE001 - torch raises what it likes
                    failed[key] = failure
        for key, error in failed.items():
            log.warning("a rollout pod is left behind", group=key, error=str(error))
            self.leave(key)
        return [*failed]

    def _on_device(self, data: Tensor) -> Tensor:
        if not torch.cuda.is_available():
            return data
        if self._staging.numel() < data.numel():
            self._staging = torch.empty(data.numel(), dtype=torch.uint8, device="cuda")
        return self._staging[: data.numel()].copy_(data, non_blocking=True)

    def _start(self, key: str, tensor: Tensor) -> None:
        self._groups[key].start(tensor)
        self.broadcast_bytes += tensor.nbytes

    def _wait(self, key: str, _: Tensor) -> None:
        self._groups[key].wait()


class WorkerGroups:
    """The groups of one worker of an engine: one for each sender, all of one key."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._key = ""
        self._groups: dict[int, Group] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def join(self, key: str, addresses: Mapping[int, str], rank: int, size: int, seconds: float) -> None:
        """Joins the groups of all senders, by number, as `rank` of each; see `Group`."""
        self.leave(self._key)
        self._key = key
        for sender, address in sorted(addresses.items()):
            self._groups[sender] = Group(address, rank, size, seconds)

    def leave(self, key: str) -> None:
        """Ends all groups. Does nothing if they have another key: the worker has joined others since."""
        if key != self._key:
            return
        for group in self._groups.values():
            group.leave()
        self._groups.clear()
        self._buffer = torch.empty(0, dtype=torch.uint8, device=self._device)

    def receive(self, sender: int, nbytes: int) -> Tensor:
        """Receives bytes from a sender, in memory of the worker's device that the next call overwrites.

        If that fails it ends all groups before it raises: a broadcast that never ends would block whatever the device does next.
        """
        if self._buffer.numel() < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        received = self._buffer[:nbytes]
        try:
            group = self._groups[sender]
            group.start(received)
            group.wait()
        except BaseException:
            self.leave(self._key)
            raise
        return received
