"""The protocols of an engine and of the fleet of all engines, and the data that they return.

The driver calls the fleet from its one asyncio loop; the implementation hides Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import FleetReport, GeneratedSample, SampleId, SampleRequest
from longboat_runtime.turns import TurnReply, TurnRequest
from longboat_runtime.weights.publication import WeightPublication


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """Reports one publication. `parity` is the largest |engine - trainer| log-prob on the probe over serving engines.

    `direct` of these got it by broadcasts, the others through the host's memory.
    """

    version: int
    seconds: float
    bytes: int
    parity: float
    serving: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    direct: int = 0


@dataclass(frozen=True, slots=True)
class FleetState:
    """Names the engines that serve, and says why others that are up refused the weights or could not fetch them.

    `fetches` counts updates whose data could not be fetched. `deaths` counts engines that died on their own, in pods that stayed up;
    `last_death` says what the last one died of. `pods` are the rollout pods that have joined and are still there. `drained` are the
    released pods in which nothing runs any more.
    """

    serving: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    unreached: Mapping[str, str] = field(default_factory=dict)
    fetches: int = 0
    deaths: int = 0
    last_death: str = ""
    pods: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()


class ReshapePhase(StrEnum):
    """Names the phases of a reshape: responses move away, engines end, others start, and they get the weights and pass the gate."""

    DRAIN = "drain"
    END = "end"
    START = "start"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class ReshapeReport:
    """Reports a reshape, after which engines have `tensor_parallel` devices each. `seconds` are those of its phases that succeeded.

    `failure` says why engines have the size that they had before. If the new size isn't `unfit`, the failure has nothing to do with it.
    """

    tensor_parallel: int
    seconds: Mapping[ReshapePhase, float]
    failure: str | None = None
    unfit: bool = True


class Engine(Protocol):
    """Runs a vLLM instance of one tensor-parallel size for its actor. Only a thread of its own calls vLLM."""

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        """Begins samples. A sample in `begun` continues from the tokens that it has, and is returned with all of them."""

    def abort(self, ids: Sequence[SampleId]) -> None:
        """Ends samples. `drain_finished` returns each with reason ABORT, or with its own reason if it had ended."""

    async def turn(self, request: TurnRequest, begun: TurnReply | None = None) -> TurnReply:
        """Draws a turn, and parses its message. A turn that has `begun` continues from its tokens, and is returned with all of them.

        It is part of the next step if there are sequences and KV cache for it. Its reason is ABORT if `end_turns` ended it. A caller that
        is cancelled ends it. Raises UpdateFailed or EngineDead if what this engine has drawn of it is lost.
        """

    def end_turns(self) -> None:
        """Ends all turns that run; each returns with the tokens that it has, or with all if it had ended."""

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        """Returns finished samples. Waits up to `timeout` seconds for the first, and then a moment for others if more are running."""

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        """Loads weights, verifies their checksum, resets the prefix cache, and compares the probe. Returns the parity.

        Raises and stops serving if the weights differ or can't be fetched. `calibrated` is the parity that engines like this are calibrated
        by (`weights.gate`); None if they aren't yet.
        """

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of `weights.backend.WeightReceipts` on all of vLLM's workers; returns their answers, rank 0 first.

        Raises RuntimeError if a worker can't do it.
        """

    def take_load(self) -> Load:
        """Returns the load since the last call."""

    def shutdown(self) -> None: ...


class SampleFleet(Protocol):
    """Makes samples: all engines, or all environment pods."""

    async def submit(self, requests: Sequence[SampleRequest]) -> None: ...

    async def abort(self, ids: Sequence[SampleId]) -> None: ...

    async def finished(self) -> list[FleetReport]:
        """Waits for at least one report. The store holds the reported samples, unless they are lost or have no token.

        A sample is reported once, as finished or lost, after any number of moves.
        """


class RolloutFleet(SampleFleet, Protocol):
    """Runs all engines behind one router."""

    async def drain(self, engines: Collection[str]) -> None:
        """Sends nothing new to these engines, by name, and moves what runs in them to others.

        Returns once they are empty and the store holds all tokens that they drew, but for samples that are reported as lost.
        """

    async def turn_engines(self, previous: TurnEngines) -> TurnEngines:
        """Waits until the engines that serve turns differ from `previous`, and returns them. For recorders' routers."""

    @property
    def pods(self) -> Mapping[str, PodLoad]:
        """The load of the rollout pods that have joined and are still there, by name."""

    def release(self, pods: Collection[str]) -> None:
        """Drains exactly these pods, until another call no longer names them.

        `FleetState.drained` names those that are drained. A pod that hasn't joined counts as drained.
        """

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        """Makes every engine serve the new version or stop serving. Engines that join later get the last publication first."""

    @property
    def tensor_parallel(self) -> int:
        """The devices of each engine."""

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        """Groups the devices of every rollout pod that stays into engines of `tensor_parallel` devices each.

        Running samples move; with `one_by_one`, pod after pod, so that the other pods continue. If an engine of the new shape doesn't
        serve, the old shape is started again.
        """

    async def loads(self) -> Mapping[str, Load]:
        """Returns the load since the last call, by name, of each engine that is up and answers."""

    async def changed(self, previous: FleetState) -> FleetState:
        """Waits until the state differs from `previous`, and returns the new state."""

    @property
    def calibrations(self) -> Mapping[str, float]:
        """The calibration of the parity gate, for `calibrate` of a later fleet."""

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        """Judges engines by these from now on. Engines without one are calibrated by their first publication."""

    async def close(self) -> None: ...
