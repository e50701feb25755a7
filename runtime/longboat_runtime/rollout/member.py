"""An engine of a job: its devices in a rollout node, its actor, its state, and what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from longboat_runtime.rollout.actor import EngineActor
from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices
from longboat_runtime.samples import FinishedSample, SampleId
from longboat_runtime.store.client import StoreClient
from longboat_runtime.tracebacks import cause, shortened
from longboat_runtime.weights.gate import calibration_key
from longboat_runtime.weights.publication import WeightPublication

RESOURCE = "longboat-rollout"
POD_LABEL = "longboat.dev/pod"


@dataclass(frozen=True, slots=True)
class RolloutNode:
    """A living Ray node with devices for engines. `pod` is its pod's name, or the node's where there are no pods."""

    node_id: str
    pod: str
    has: NodeDevices


def rollout_nodes(nodes: Iterable[Mapping[str, Any]]) -> dict[str, RolloutNode]:
    """Returns the living rollout nodes among `ray.nodes()`, by node id (pure)."""
    rollout = {}
    for node in nodes:
        resources = node.get("Resources", {})
        devices = int(resources.get(RESOURCE, 0))
        if not node.get("Alive") or devices == 0:
            continue
        node_id = node["NodeID"]
        pod = node.get("Labels", {}).get(POD_LABEL) or node.get("NodeName") or node_id
        rollout[node_id] = RolloutNode(node_id, pod, NodeDevices(devices, int(resources.get("GPU", 0))))
    return rollout


class MemberState(StrEnum):
    """STARTING until vLLM is up; STARTED: it waits for a publication or its data; REFUSED: the last one did not pass the gate."""

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
    def place(self) -> tuple[str, tuple[int, ...]]:
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
    `calls` orders the calls that begin and abort samples.
    """

    config: EngineConfig
    actor: Any
    slot: Slot
    state: MemberState = MemberState.STARTING
    tried: WeightPublication | None = None
    loaded: WeightPublication | None = None
    refused: WeightPublication | None = None
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


def start_actor(config: EngineConfig, node: RolloutNode, store: StoreClient) -> Any:
    """Starts an actor on exactly that node, which takes as many of Ray's rollout resource as it has devices. It has no engine yet.

    Ray counts the devices, and `config` says which ones they are. That decides its accelerators, too: the actor asks Ray for none.
    """
    return (
        ray.remote(EngineActor)
        .options(
            num_cpus=0,
            resources={RESOURCE: config.tensor_parallel},
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        )
        .remote(config, node.has, store)
    )


def death_cause(error: BaseException) -> str:
    """Returns what an actor's end is due to, in one line: by the traceback that Ray's error carries, if it carries one.

    Otherwise the last line that isn't indented by a tab, as details of the actor are; of an error that says nothing, its type.
    """
    text = str(error)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return cause(text) or (shortened(lines[-1]) if lines else type(error).__name__)


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

    def stopped(self, member: Member, lost: Sequence[SampleId], reason: str) -> None:
        """Tells the listener that the engine serves nothing, for now or for good; `lost` are the samples that it thereby lost."""

    def ended(self, member: Member, reason: str, *, died: bool) -> None:
        """Tells the listener that the engine is gone, with all that ran in it; `died`: by itself, in a pod that stays."""

    def finished_in(self, member: Member, samples: Sequence[FinishedSample]) -> None:
        """Tells the listener that these samples, now in the store, have ended: they finished, were aborted, or were never started."""
