"""A connection to a server of this package, from which clients of each kind are made."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_graders.channel import Channel

# A server's container may start later than its client, or restart; in seconds.
CONNECT_SECONDS = 60.0
_RETRY_INTERVAL = 0.2


class ServerGone(ConnectionError):
    """The server can't be reached, or went away before it answered; `begun`: while it did what it was asked to."""

    def __init__(self, message: str, *, begun: bool = False) -> None:
        super().__init__(message)
        self.begun = begun


class Client:
    """Asks a server over its Unix socket, many requests at a time. A lost connection is reopened by the next request.

    `peer` names what serves, in the plural.
    """

    def __init__(self, path: Path, peer: str) -> None:
        self._path, self._peer = path, peer
        self._connecting = asyncio.Lock()
        self._channel: Channel | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        # The ids of requests that the server has reported as begun.
        self._begun: set[int] = set()
        self._next_id = 0
        self._gone: asyncio.Event = asyncio.Event()

    # --- What kinds of clients differ in ---

    async def load_again(self) -> None:
        """Loads, on a connection that is new, what was loaded before. Raises ServerGone if it can't be."""

    def heard(self, message: Mapping[str, Any]) -> None:
        """Takes a message that answers no request."""

    def began(self, identity: int) -> None:
        """Learns that the server has begun with a request."""

    # --- What they share ---

    async def state(self) -> Mapping[str, Any]:
        """Returns the server's state, as its `state` has it; raises ServerGone."""
        await self.connect()
        return await self.ask({"op": "state"})

    async def close(self) -> None:
        """Closes the connection; requests under way are given up."""
        if self._channel is not None and self._channel.open:
            self._channel.close()
            await self._gone.wait()

    @property
    def connected(self) -> bool:
        return self._channel is not None and self._channel.open

    async def connect(self) -> None:
        """Connects unless that is done, and waits until what was loaded before is loaded again.

        Raises ServerGone if that can't be done within CONNECT_SECONDS.
        """
        async with self._connecting:
            if self.connected:
                return
            self._gone.clear()
            self._channel = await self._open()
            try:
                await self.load_again()
            except BaseException:
                # Also if this call is cancelled: the next one must not take the connection for one on which all is loaded.
                self._channel.close()
                raise

    def new_id(self) -> int:
        """Returns an id for a request."""
        self._next_id += 1
        return self._next_id

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        """Sends a message. Raises ServerGone without a connection, FrameError if it can't be sent."""
        if self._channel is None or not self._channel.open:
            raise ServerGone(f"the connection to the {self._peer} is closed")
        self._channel.send(message, body)

    async def ask(
        self, request: Mapping[str, Any], body: bytes = b"", identity: int | None = None, *, cancel: str = "cancel"
    ) -> dict[str, Any]:
        """Returns the answer to a request; raises ServerGone. If the call is cancelled it sends the op `cancel` with the request's id."""
        identity = self.new_id() if identity is None else identity
        self.send({"id": identity, **request}, body)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[identity] = future
        try:
            return await future
        except asyncio.CancelledError:
            if self.connected:
                self.send({"id": identity, "op": cancel})
            raise
        finally:
            self._waiting.pop(identity, None)
            self._begun.discard(identity)

    def received(self, _: Channel, message: dict[str, Any], body: bytes) -> None:
        """See `channel.Receiver`."""
        del body  # servers send none
        if "id" not in message:
            self.heard(message)
            return
        future = self._waiting.get(message["id"])
        if "begun" in message:
            self._begun.add(message["id"])
            self.began(message["id"])
        elif future is not None and not future.done():
            future.set_result(message)

    def lost(self, _: Channel, reason: str) -> None:
        """See `channel.Receiver`."""
        self._gone.set()
        for identity, future in self._waiting.items():
            if not future.done():
                begun = identity in self._begun
                future.set_exception(ServerGone(f"the {self._peer} are gone: {reason}", begun=begun))

    async def _open(self) -> Channel:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_SECONDS
        while True:
            try:
                channel: Channel
                _, channel = await loop.create_unix_connection(lambda: Channel(self), str(self._path))
                return channel
            except OSError as error:
                if loop.time() >= deadline:
                    message = f"no {self._peer} at {self._path} for {CONNECT_SECONDS:g} s ({error})"
                    raise ServerGone(message) from error
            await asyncio.sleep(_RETRY_INTERVAL)


def no_longer_loads(peer: str, name: str, problem: SpecProblem) -> ServerGone:
    """Makes the error of a server that has restarted and can't load what it had loaded before."""
    return ServerGone(f"{peer} have restarted and no longer load {name!r}: {problem}")
