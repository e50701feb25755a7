"""A driver in mode Adaptive, whole: rounds take what a roofline says of their lengths, and the profile is a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rollout import ParallelismMode, ParallelismSpec
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.driver.shape_plan import starting_shape
from longboat_runtime.rollout.engine import engine_config
from longboat_runtime.rollout.load import Load
from longboat_runtime.rollout.profile import ProfiledEngine, ProfileFile, identity
from longboat_runtime.rollout.protocol import ReshapePhase
from longboat_runtime.rollout.round_seconds import Work, round_seconds
from longboat_runtime.rounds import measurements
from longboat_runtime.samples import FinishReason, SampleRequest, VersionSpan
from tests.driver.fakes import FakeFleet, Site, digest, make_spec
from tests.driver.runs import crash_once_saved, history, manifests
from tests.rollout.roofline import roofline

DEVICES, STEPS = 4, 20
# Ranks that wait for each other cost many sequences more than they save them, and few sequences less.
TRUTH = {size: roofline(size, communication=5e-4, memory=100_000) for size in (1, 2, 4)}
# Ten prompts are drawn for a short round of eight; those of the last row are left to the long one, after every four.
ROUNDS = {"policy": "TailBatching", "prompt_overcommit": 1.25, "sample_overcommit": 1, "prompts_per_round": 8}
# The epoch of the dataset from which on one response of the last row in three epochs is ten times as long.
GROWS = 10
MODEL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 264,
    "max_position_embeddings": 8192,
}


def length(request: SampleRequest) -> int:
    """Tokens of the response."""
    prompt, index = request.id.prompt, request.id.index
    usual = 400 + digest(prompt.row, index, prompt.epoch) % 200
    if prompt.row < 4:
        return usual
    return 10 * usual if prompt.epoch >= GROWS and prompt.epoch % 3 == 0 and index == 0 else 2 * usual


class PacedFleet(FakeFleet):
    """Of the responses that run the shortest comes back first, at the time at which engines of TRUTH would have it."""

    site: PacedSite

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun_at = 0.0
        self.ended = 0
        self.lengths: list[int] = []
        self.turns: dict[tuple[int, str], asyncio.Event] = {}
        self.pacing: asyncio.Task | None = None

    async def _make(self, request: SampleRequest) -> None:
        key = length(request), str(request.id)
        if not self.turns:
            self.begun_at, self.lengths, self.ended = self.site.seconds, [], 0
        self.lengths.append(key[0])
        self.turns[key] = asyncio.Event()
        if self.pacing is None:
            self.pacing = asyncio.create_task(self._pace())
        try:
            await self.turns[key].wait()
        finally:
            del self.turns[key]
        spans = (VersionSpan(self.version, 0, key[0]),)
        sample = self._sample(request, digest(request.id) % 250, spans, FinishReason.STOP, str(digest(request.id)))
        await self.store.put([sample])
        self.running.pop(request.id, None)
        self.done.put_nowait(sample.summary)

    async def _pace(self) -> None:
        while True:
            for _ in range(100):  # until the driver has done what follows from the last one
                await asyncio.sleep(0)
            if not self.turns:
                self.pacing = None
                return
            shortest = min(self.turns)
            self.ended, self.cut_at = self.ended + 1, shortest[0]
            work = Work(len(self.lengths), self.ended, 1, tuple(sorted(self.lengths)))
            model, most = TRUTH[self.tensor_parallel], self.site.spec.rollout.max_sequences
            seconds = round_seconds(model, DEVICES // self.tensor_parallel, most, work)
            self.site.seconds = self.begun_at + round(seconds * 1024) / 1024
            self.turns[shortest].set()

    async def loads(self) -> Mapping[str, Load]:
        load = Load(self.tensor_parallel)
        return {f"engine-{i}": load for i in range(DEVICES // self.tensor_parallel)}


class PacedSite(Site):
    """A job whose time passes while responses are drawn, in steps of which sums are exact; its profile is the truth."""

    def __init__(self, root: Path) -> None:
        (root / "config.json").write_text(json.dumps(MODEL))
        parallelism = ParallelismSpec(mode=ParallelismMode.ADAPTIVE, profile=str(root / "profile.json"))
        spec = make_spec(
            **ROUNDS,
            steps=STEPS,
            algorithm={"group_size": 4},
            sampling={"max_tokens": 8000},
            checkpoint={"every_steps": 1, "keep": 30},
        )
        rollout = spec.rollout.model_copy(update={"parallelism": parallelism, "engines_per_pod": DEVICES})
        here = spec.model.model_copy(update={"path": str(root)})
        spec = spec.model_copy(update={"rollout": rollout, "model": here})
        engines = {size: ProfiledEngine.from_model(model, {ReshapePhase.START: 2.0}) for size, model in TRUTH.items()}
        of = identity(engine_config(spec, "", (0,)), MODEL)
        ProfileFile(model=str(root), engine=of, engines=engines).write(root / "profile.json")
        super().__init__(root, spec)

    def open_fleet(self, order: int) -> FakeFleet:
        """In the shape of the newest checkpoint, as real ones start."""
        job = Job("job-uid", self.spec, self.root, self.incarnation)
        shape = starting_shape(job, newest(self.root))
        fleet = PacedFleet(self.store, tensor_parallel=shape)
        fleet.site = self
        return fleet

    def clock(self) -> float:
        return 1_700_000_000.0 + self.seconds


def newest(root: Path) -> Any:
    """The driver's state in the newest checkpoint; None without one."""
    return max(manifests(root), key=lambda state: state["ledger"]["step"], default=None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> PacedSite:
    """A job that was never interrupted."""
    site = PacedSite(tmp_path_factory.mktemp("whole"))
    assert await site.driver().run() is RunOutcome.DONE
    return site


def reshapes(site: Site) -> list[measurements.Reshaped]:
    return [body for body in history(site) if isinstance(body, measurements.Reshaped)]


def sizes(site: Site) -> list[int]:
    """Devices of an engine, round by round."""
    return [body.tensor_parallel for body in history(site) if isinstance(body, measurements.RoundMeasured)]


async def test_a_load_that_grows_gets_larger_engines(whole: PacedSite) -> None:
    assert sizes(whole)[0] == 1
    assert max(sizes(whole)) > 1
    change = whole.broker.status.training.reshapes[0]
    assert change.tensor_parallel == reshapes(whole)[0].tensor_parallel > 1
    assert change.reason == reshapes(whole)[0].reason
    assert "recent rounds would have been" in change.reason


@pytest.mark.parametrize(
    "saved",
    [
        pytest.param(8, id="before-the-load-grew", marks=pytest.mark.extended),
        pytest.param(12, id="decided-and-not-yet-changed"),
        pytest.param(14, id="changed-for-the-next-round", marks=pytest.mark.extended),
        pytest.param(17, id="measured-once", marks=pytest.mark.extended),
    ],
)
async def test_a_resumed_driver_decides_as_one_that_was_never_interrupted(
    whole: PacedSite, tmp_path: Path, saved: int
) -> None:
    site = PacedSite(tmp_path)
    driver = site.driver()
    crash_once_saved(site, saved + 1, saved)
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert await site.driver().run() is RunOutcome.DONE
    assert sizes(site) == sizes(whole)
    plans = [newest(where.root)["parallelism"]["plan"] for where in (site, whole)]
    assert plans[0] == plans[1], "all that later decisions follow from"
