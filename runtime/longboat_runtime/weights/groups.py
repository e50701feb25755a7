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

# Both ends have deadlines of their own. The group's time-out is far longer: at it, NCCL's watchdog would end the trainer's process.
GROUP_TIMEOUT = timedelta(minutes=10)
# How long both ends wait for each other in the making of a group.
MEETING = timedelta(seconds=45)
# How often a broadcast is looked at.
POLL_SECONDS = 0.001
# What torch reads as it makes a group of NCCL. Its watchdog shall not end this process because another end of the group is gone.
ASYNC_ERROR_HANDLING, NO_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"


def versions() -> dict[str, str]:
    """Returns what both ends of a group must have alike: the version of torch, and that of NCCL, or that there are no GPUs."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "no GPU"
    return {"torch": torch.__version__, "NCCL": nccl}


class Group:
    """A group of `size` processes that meet at `address`, host:port; rank 0 broadcasts, and this end waits for that up to `seconds`.

    A new one waits for all others, at most for MEETING, and is connected: the first broadcast could wait for one that never came.
    """

    # Groups that have been left in the middle of a broadcast. Torch would wait for it, and with it this whole process, if it freed one.
    _busy: ClassVar[list[tuple[Any, Any]]] = []

    def __init__(self, address: str, rank: int, size: int, seconds: float) -> None:
        self._deadline = MEETING
        host, _, port = address.rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, timeout=MEETING)
        store.set(f"rank {rank}", "")
        store.wait([f"rank {number}" for number in range(size)], MEETING)
        if torch.cuda.is_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = GROUP_TIMEOUT
            os.environ[ASYNC_ERROR_HANDLING] = NO_HANDLING
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, MEETING)
        self._work: Any = None
        self._end = 0.0
        try:
            self.start(torch.zeros(1, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu"))
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
    """The groups of one sender, by key: one for each rollout pod. `handed` counts the bytes that were handed to broadcasts."""

    def __init__(self) -> None:
        self.handed = 0
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
        """Sends bytes to these groups, to all at once. Returns the keys of those that failed or missed the deadline, which are ended.

        Not to be called again before it returns: groups have one order, and there is one buffer on a GPU through which memory is sent.
        """
        failed: dict[str, Exception] = {}
        tensor = self._on_device(data)
        for do in (self._start, self._wait):
            for key in [key for key in keys if key not in failed]:
                try:
                    do(key, tensor)
                except Exception as error:  # noqa: BLE001 - torch raises what it likes
                    failed[key] = error
        for key, cause in failed.items():
            log.warning("a rollout pod is left behind", group=key, error=str(cause))
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
        self.handed += tensor.nbytes

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

        Raises if it gets none, and then ends all groups: a broadcast that never ends would be in the way of whatever the device does next.
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
