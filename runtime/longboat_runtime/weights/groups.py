"""Process groups by which one sender of the trainer broadcasts to the workers of one rollout pod: NCCL on GPUs, gloo on CPUs.

They are made by hand, each on a store of its own, apart from every other group of these processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

log = structlog.get_logger()

# How long a broadcast, or the making of a group, may take. Then the pod is left behind.
DEADLINE = timedelta(seconds=45)
# The group's own time-out: NCCL's watchdog would end the trainer's process at it, so we are done with the group long before.
GROUP_TIMEOUT = timedelta(seconds=600)


def versions() -> dict[str, str]:
    """Returns what both ends of a group must have alike."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"
    return {"torch": torch.__version__, "NCCL": nccl}


def join(address: str, rank: int, size: int) -> Any:
    """Joins the group of `size` processes that meets at `address`, host:port. The sender has rank 0. Returns torch's group.

    On CPUs it waits for the others.
    """
    host, _, port = address.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=DEADLINE)
    if torch.cuda.is_available():
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = GROUP_TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, size, options)
    return dist.ProcessGroupGloo(store, rank, size, GROUP_TIMEOUT)


def start_broadcast(group: Any, tensor: Tensor) -> Any:
    """Starts to broadcast the sender's tensor (shape [bytes]) and returns the work to wait for."""
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    return group.broadcast([tensor], options)


def leave(group: Any) -> None:
    """Ends a group, whatever it is doing."""
    with suppress(Exception):
        group.abort()


class SenderGroups:
    """The groups of one sender, by key: one for each rollout pod. `handed` counts the bytes that were handed to broadcasts."""

    def __init__(self) -> None:
        self.handed = 0
        self._stores: dict[str, dist.TCPStore] = {}
        self._groups: dict[str, Any] = {}
        self._staging = _Staging()

    def open(self, key: str, host: str) -> str:
        """Serves the store of a new group; returns its address."""
        store = dist.TCPStore(host, 0, is_master=True, timeout=DEADLINE, wait_for_workers=False)
        self._stores[key] = store
        return f"{host}:{store.port}"

    def join(self, key: str, address: str, size: int) -> None:
        """Joins the group whose store is served at `address`."""
        self._groups[key] = join(address, 0, size)

    def leave(self, key: str) -> None:
        """Ends a group; does nothing if there is none."""
        if (group := self._groups.pop(key, None)) is not None:
            leave(group)
        self._stores.pop(key, None)

    def broadcast(self, data: Tensor, keys: Sequence[str]) -> list[str]:
        """Sends bytes to these groups, to all at once. Returns the keys of those that failed or missed the deadline, which are ended."""
        with self._staging.on_device(data) as tensor:
            works: dict[str, Any] = {}
            failed = []
            for key in keys:
                try:
                    works[key] = start_broadcast(self._groups[key], tensor)
                    self.handed += tensor.nbytes
                except Exception as error:  # noqa: BLE001 - torch raises what it likes
                    failed.append(key)
                    log.warning("a rollout pod is left behind", group=key, error=str(error))
            for key, work in works.items():
                try:
                    work.wait(DEADLINE)
                except Exception as error:  # noqa: BLE001
                    failed.append(key)
                    log.warning("a rollout pod is left behind", group=key, error=str(error))
            for key in failed:
                self.leave(key)
            return failed


class _Staging:
    """Two buffers on the device, through which host memory is sent; none where that is sent by itself."""

    def __init__(self) -> None:
        self._free = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._returned = threading.Condition()

    @contextmanager
    def on_device(self, data: Tensor) -> Iterator[Tensor]:
        if not torch.cuda.is_available():
            yield data
            return
        with self._returned:
            self._returned.wait_for(lambda: bool(self._free))
            buffer = self._free.pop()
        try:
            if buffer.numel() < data.numel():
                buffer = torch.empty(data.numel(), dtype=torch.uint8, device="cuda")
            buffer[: data.numel()].copy_(data, non_blocking=True)
            yield buffer[: data.numel()]
        finally:
            with self._returned:
                self._free.append(buffer)
                self._returned.notify()


class WorkerGroups:
    """The groups of one worker of an engine: one for each sender."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._groups: dict[int, Any] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)

    def join(self, addresses: Mapping[int, str], rank: int, size: int) -> None:
        """Joins the groups of all senders, by number, as `rank` of each."""
        self.leave()
        for sender, address in sorted(addresses.items()):
            self._groups[sender] = join(address, rank, size)

    def leave(self) -> None:
        """Ends all groups."""
        for group in self._groups.values():
            leave(group)
        self._groups.clear()

    def receive(self, sender: int, nbytes: int) -> Tensor:
        """Receives bytes from a sender, in memory of the worker's device that the next call overwrites. Raises if it gets none."""
        if self._buffer.numel() < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        received = self._buffer[:nbytes]
        start_broadcast(self._groups[sender], received).wait(DEADLINE)
        return received

    def release(self) -> None:
        """Gives up the memory."""
        self._buffer = self._buffer[:0].clone()
