"""The protocols of an engine and of the fleet of all engines, and what they answer with.

The driver calls the fleet from its one asyncio loop; the implementation hides Ray.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from longboat_runtime.rollout.load import Load, PodLoad
from longboat_runtime.samples import FleetReport, GeneratedSample, SampleId, SampleRequest
from longboat_runtime.weights.publication import WeightPublication


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """What one publication did. `parity` is the largest |engine - trainer| log-prob on the probe over serving engines."""

    version: int
    seconds: float
    bytes: int
    parity: float
    serving: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetState:
    """Engines at one moment, by name: those that serve, and of others that are up, why they refused or could not get the weights.

    `fetches` counts updates whose data could not be had. `deaths` counts engines that have died on their own, in pods that stayed up;
    `last_death` says what the last one died of. `pods` are the rollout pods that have joined and are there, `drained` those of the
    released ones in which nothing runs any more, and nothing will.
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
    """Phases of a reshape: responses move away, engines end, others start, and get the weights and pass the gate."""

    DRAIN = "drain"
    END = "end"
    START = "start"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class ReshapeReport:
    """A reshape, after which engines have `tensor_parallel` devices each. `seconds` are those of its phases.

    `failure` says why they have what they had before: if they are not `unfit`, for a reason that has nothing to do with the shape.
    """

    tensor_parallel: int
    seconds: Mapping[ReshapePhase, float]
    failure: str | None = None
    unfit: bool = True


class Engine(Protocol):
    """One vLLM instance of one tensor-parallel size, inside its actor's process. Only its own step loop touches vLLM."""

    def submit(self, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()) -> None:
        """Begins samples; one that is in `begun` continues from the tokens that it has, and comes back with all of them."""

    def abort(self, ids: Sequence[SampleId]) -> None:
        """Ends samples; each comes back through `drain_finished` with reason ABORT (or its own reason if it had ended)."""

    def drain_finished(self, timeout: float) -> list[GeneratedSample]:
        """Waits up to `timeout` seconds for at least one finished sample, and then a moment for others if more are running."""

    def update_weights(self, publication: WeightPublication, calibrated: float | None = None) -> float:
        """Loads, verifies checksum, resets the prefix cache, probes; returns the parity. Raises and stops serving if not equal.

        `calibrated` is the parity of the first publication that an engine like this one had passed; None if none has.
        """

    def take_load(self) -> Load:
        """What it did since the last call."""

    def shutdown(self) -> None: ...


class RolloutFleet(Protocol):
    """All engines behind one router."""

    async def submit(self, requests: Sequence[SampleRequest]) -> None: ...

    async def abort(self, ids: Sequence[SampleId]) -> None: ...

    async def finished(self) -> list[FleetReport]:
        """Waits for at least one report. The store holds samples named here, unless they are lost or have no token.

        A sample is reported once, finished or lost; any number of moves come before that.
        """

    async def drain(self, engines: Collection[str]) -> None:
        """Nothing new goes to these engines, by name, and what runs in them continues in others.

        Returns once they have nothing left and the store holds everything that they drew.
        """

    @property
    def pods(self) -> Mapping[str, PodLoad]:
        """The rollout pods that have joined and are there, by name."""

    def release(self, pods: Collection[str]) -> None:
        """Exactly these pods are to go: they are drained, until another call no longer names them.

        `FleetState.drained` says which have been. One that hasn't joined is drained already.
        """

    async def publish(self, publication: WeightPublication) -> PublicationReport:
        """Every engine serves the new version or stops serving. Engines that join later get the last publication first."""

    @property
    def tensor_parallel(self) -> int:
        """Devices of each engine."""

    async def reshape(self, tensor_parallel: int, *, one_by_one: bool) -> ReshapeReport:
        """Groups the devices of every rollout pod into engines of so many devices each.

        What runs moves; `one_by_one`, pod after pod, so that the others go on. If an engine of the new shape doesn't serve, those of
        the old shape are started again.
        """

    async def loads(self) -> Mapping[str, Load]:
        """What each engine did since the last call, by name."""

    async def changed(self, known: FleetState) -> FleetState:
        """The state, once it differs from `known`."""

    @property
    def calibrations(self) -> Mapping[str, float]:
        """What the parity gate has been calibrated with, for `calibrate` of a later fleet."""

    def calibrate(self, calibrations: Mapping[str, float]) -> None:
        """Engines are judged by these from now on; others calibrate themselves with their first publication."""

    async def close(self) -> None: ...
