"""Engines of a job: their devices in rollout nodes, their actors, their states, and what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from ray.exceptions import RayError

from longboat_runtime.rollout.engine import EngineConfig, EngineDead
from longboat_runtime.rollout.ray_cluster import RayCluster, RolloutNode
from longboat_runtime.samples import FinishedSample, SampleId
from longboat_runtime.weights.gate import calibration_key
from longboat_runtime.weights.publication import WeightPublication

# How long an engine may take to shut down when it is ended on purpose.
SHUTDOWN_SECONDS = 10.0

# A node's id, and devices in it.
Place = tuple[str, tuple[int, ...]]


class MemberState(StrEnum):
    """Says how far an engine is.

    STARTING until vLLM is up. STARTED: it waits for a publication or its data. REFUSED: the last publication didn't pass the gate.
    """

    STARTING = "starting"
    STARTED = "started"
    SERVING = "serving"
    REFUSED = "refused"
    ENDED = "ended"


@dataclass
class Slot:
    """The devices of a rollout node that one engine has. `refusals` counts how often in a row its engines refused publications.

    `trial` waits for the slot's first engine, if that is part of a reshape: it is done once the engine serves, says why it doesn't, or
    its node is gone.
    """

    node: RolloutNode
    devices: tuple[int, ...]
    refusals: int = 0
    trial: asyncio.Future[None] | None = None

    @property
    def place(self) -> Place:
        return self.node.node_id, self.devices

    @property
    def on_trial(self) -> bool:
        return self.trial is not None and not self.trial.done()

    def passed(self) -> None:
        """Ends the trial, if one is under way, without failing it: its engine serves, or none is wanted there any more."""
        if self.trial is not None and not self.trial.done():
            self.trial.set_result(None)

    def failed(self, reason: str, *, unfit: bool = True) -> None:
        """Fails the trial, if one is under way: its engine doesn't serve; `unfit` as in `ReshapeFailed`."""
        if self.trial is not None and not self.trial.done():
            self.trial.set_exception(ReshapeFailed(reason, unfit=unfit))


class ReshapeFailed(Exception):
    """An engine of the new shape didn't start, or didn't serve; if it isn't `unfit`, for a reason that has nothing to do with the shape."""

    def __init__(self, reason: str, *, unfit: bool) -> None:
        super().__init__(reason)
        self.reason, self.unfit = reason, unfit


def slots_of(node: RolloutNode, tensor_parallel: int, most: int) -> list[Slot]:
    """Groups at most `most` of the node's devices into slots of `tensor_parallel` in a row; the rest stays idle (pure)."""
    starts = range(0, min(node.has.devices, most) - tensor_parallel + 1, tensor_parallel)
    return [Slot(node, tuple(range(start, start + tensor_parallel))) for start in starts]


def engine_name(pod: str, devices: Sequence[int], starts: int) -> str:
    """Returns `<pod>/<device>` or `<pod>/<first>-<last>`, then how many engines these devices of the pod had before, if any (pure).

    A pod whose Ray node is started again has two nodes for a while, until Ray has noticed the end of the first: both count
    together, so that no two engines have one name.
    """
    first, last = devices[0], devices[-1]
    return f"{pod}/{first}" + (f"-{last}" if last != first else "") + (f".{starts}" if starts else "")


@dataclass
class Member:
    """An engine actor, its state, and what it holds. `turn` orders publications, of which `tried` is the last one tried.

    `problem` says why it doesn't serve, `refused` is the last publication that didn't pass its gate. `fetches` counts updates whose data
    could not be fetched since it last began to serve. `ended` says that its end is no death: it came on purpose, or on trial.
    `direct` says whether `loaded` came by broadcasts. `calls` orders the calls that begin and abort samples.
    """

    config: EngineConfig
    actor: Any
    slot: Slot
    state: MemberState = MemberState.STARTING
    tried: WeightPublication | None = None
    loaded: WeightPublication | None = None
    refused: WeightPublication | None = None
    direct: bool = False
    parity: float = 0.0
    problem: str = ""
    ended: bool = False
    fetches: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def calibration(self) -> str:
        """Engines with the same key share the bound on their parity."""
        return calibration_key(self.config.dtype, self.config.tensor_parallel)

    async def end(self, cluster: RayCluster) -> None:
        """Ends the engine on purpose."""
        self.ended = True
        with suppress(RayError, EngineDead, TimeoutError):
            await asyncio.wait_for(self.actor.shutdown.remote(), SHUTDOWN_SECONDS)
        cluster.kill(self.actor)


class Members(dict[str, Member]):
    """The engines that haven't ended yet, by name, and the slots to keep engines in, by node id and devices.

    A slot has no engine between the end of one and the start of the next. An engine whose slot is given up may take a while to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[str, dict[tuple[int, ...], Slot]] = {}

    @property
    def started(self) -> list[Member]:
        """Engines that are up, serving or not."""
        down = (MemberState.STARTING, MemberState.ENDED)
        return [member for member in self.values() if member.state not in down]

    @property
    def serving(self) -> tuple[str, ...]:
        """Names of the engines that serve, sorted."""
        return tuple(sorted(member.name for member in self.values() if member.state is MemberState.SERVING))

    def problems(self, state: MemberState) -> Mapping[str, str]:
        """Returns why engines in this state don't serve, by name, as far as they have a problem."""
        return {member.name: member.problem for member in self.values() if member.state is state and member.problem}

    def in_pod(self, pod: str) -> list[str]:
        """Returns the names of a pod's engines."""
        return [member.name for member in self.values() if member.slot.node.pod == pod]

    def in_nodes(self, nodes: Collection[str]) -> list[Member]:
        """Returns the engines of these nodes, started or not."""
        return [member for member in self.values() if member.slot.node.node_id in nodes]

    def slots_in(self, node_id: str) -> list[Slot]:
        """Returns the slots of a node."""
        return [*self.slots.get(node_id, {}).values()]

    def keep(self, slot: Slot) -> None:
        """Adds a slot to keep engines in."""
        self.slots.setdefault(slot.node.node_id, {})[slot.devices] = slot

    def keeps(self, slot: Slot) -> bool:
        """Whether engines are still to be kept in this slot."""
        return self.slots.get(slot.node.node_id, {}).get(slot.devices) is slot

    def give_up(self, slot: Slot) -> None:
        """Removes the slot, unless another has taken its place."""
        if self.keeps(slot):
            del self.slots[slot.node.node_id][slot.devices]
            if not self.slots[slot.node.node_id]:
                del self.slots[slot.node.node_id]


class Drains(Protocol):
    """Keeps samples away from engines, by name."""

    def drain(self, engines: Collection[str]) -> Coroutine[Any, Any, None]:
        """Sends nothing new to these engines from this call on; what runs there continues elsewhere. Done once they have nothing left."""

    def undrain(self, engines: Collection[str]) -> None:
        """Takes one call of `drain` back, also one that hasn't returned and never will."""


class Listener(Drains, Protocol):
    """Receives what becomes of engines and their samples."""

    def opened(self, member: Member) -> None:
        """Tells the listener that the engine serves what it has loaded."""

    def stopped(self, member: Member, lost: Sequence[SampleId] | None, reason: str) -> None:
        """Tells the listener that the engine serves nothing, for now or for good.

        `lost` are the samples that it thereby lost; None if all that ran in it are.
        """

    def ended(self, member: Member, reason: str, *, died: bool) -> None:
        """Tells the listener that the engine is gone, with all that ran in it; `died`: by itself, in a pod that stays."""

    def finished_in(self, member: Member, samples: Sequence[FinishedSample]) -> None:
        """Tells the listener that these samples, now in the store, have ended: they finished, were aborted, or were never started."""
