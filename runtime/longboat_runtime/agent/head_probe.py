"""Asks a Ray head for the id of the cluster that it serves, for its nodes, and whether a pod may leave."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from longboat_crds.base import Role
from longboat_runtime.departures import ask
from longboat_runtime.ray_nodes import POD_LABEL, ROLE_LABEL

log = structlog.get_logger()

T = TypeVar("T")

# A head that is there answers in milliseconds. One that refuses our token leaves the client retrying for ever.
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Head:
    """Holds what a poll found: the id of the cluster that is served, or that nobody listens (`refused`), or neither: silence.

    `settled` says that the head's own node is up; joining before only takes its processors away from it.
    """

    cluster: str | None = None
    refused: bool = False
    settled: bool = False


class HeadProbe:
    """Polls one head. A TCP connect comes first: it is cheap, and Ray's client would wait for a port that isn't open."""

    def __init__(self, address: str) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._asking: asyncio.Future[str | None] | None = None
        self._settled: str | None = None
        self._last_error = ""

    async def poll(self) -> Head:
        """Returns what the head is now. While a request for the cluster's id hangs, no other is made."""
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(self._host, self._port), _CONNECT_SECONDS)
        except ConnectionRefusedError:
            return Head(refused=True)
        except (TimeoutError, OSError):
            return Head()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        if self._asking is None or self._asking.done():
            self._asking = _in_thread(lambda: _cluster_id(self.address))
        cluster: str | None = await self._answer(self._asking)
        if cluster is not None and cluster != self._settled and await self._has_node(ROLE_LABEL, Role.DRIVER):
            self._settled = cluster
        return Head(cluster, settled=cluster is not None and cluster == self._settled)

    async def joined(self, pod: str) -> bool:
        """Whether the head counts a living node of this pod."""
        return await self._has_node(POD_LABEL, pod)

    async def may_leave(self, pod: str) -> bool:
        """Asks the driver to let a rollout pod go; True once it does, or if there is no head, and so nothing that could be lost."""
        if (await self.poll()).refused:
            return True
        return bool(await self._answer(_in_thread(lambda: ask(GcsClient(address=self.address), pod))))

    async def _has_node(self, label: str, value: str) -> bool:
        return bool(await self._answer(_in_thread(lambda: _has_node(self.address, label, value))))

    async def _answer(self, answer: asyncio.Future[T | None]) -> T | None:
        """Returns what Ray says; None if it fails or takes too long, which is logged unless the last such error was the same."""
        done, _ = await asyncio.wait([answer], timeout=_ANSWER_SECONDS)
        error = answer.exception() if done else TimeoutError(f"no answer in {_ANSWER_SECONDS:g} s")
        if error is None:
            return answer.result()
        message = f"{type(error).__name__}: {error}"
        if message != self._last_error:
            log.info("no answer from the Ray head", head=self.address, error=message)
        self._last_error = message
        return None


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Runs the call in a daemon thread, which can hang without keeping the process alive."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    waiting = asyncio.wrap_future(future)
    # If the answer comes too late, nobody else retrieves its error.
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    return waiting


def _cluster_id(address: str) -> str | None:
    """Asks for the cluster's id through a new client each time: an old one keeps the id of the head it first met."""
    cluster_id: str = GcsClient(address=address).cluster_id.hex()
    return cluster_id


def _has_node(address: str, label: str, value: str) -> bool | None:
    nodes = GcsClient(address=address).get_all_node_info(timeout=_ANSWER_SECONDS).values()
    return any(node.state == GcsNodeInfo.ALIVE and node.labels.get(label) == value for node in nodes)
