"""Faults in a step whose groups are trained with its round still open: the weights are those of an undisturbed run without streaming.

All jobs begin from the checkpoint of another job's first step. So they have its uid in the seeds of their samples, and draw the same ones.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from e2e import small_job, volumes
from e2e.harm import signal_process
from e2e.host_runtime import DATA
from e2e.jobs import Job
from e2e.prompts import fates_in, nothing_is_lost
from e2e.site import Site
from longboat_runtime.eventlog import newest, surviving
from longboat_runtime.rounds import events

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

PROMPTS, RANKS = 8, 2
FIRST = "first"
# The step that faults disturb, and the last one. The step before is the first that a job makes and saves itself.
DISTURBED, LAST = 3, 4

# Run by every Python process of a trainer's container. A rank prints when a call begins and ends, and waits in it while a file of the
# call's name is there.
SITECUSTOMIZE = """
import os, pathlib, sys, threading, time

folder = pathlib.Path(os.environ["HOLDS"])

def held(name, method):
    def call(rank, request, fetch):
        what = f"{name}-{request.step}" + (f"-{request.chunks}" if name == "accumulate" else "")
        print(what, "begins", flush=True)
        while (folder / what).exists():
            time.sleep(0.05)
        result = method(rank, request, fetch)
        print(what, "ends", flush=True)
        return result
    return call

def wait_for_ranks():
    while not hasattr(sys.modules.get("longboat_runtime.trainer.rank"), "TrainerRank"):
        time.sleep(0.01)
    rank = sys.modules["longboat_runtime.trainer.rank"].TrainerRank
    for name in ("accumulate", "train"):
        setattr(rank, name, held(name, getattr(rank, name)))

threading.Thread(target=wait_for_ranks, daemon=True).start()
"""

# Waits with the last prompt of the disturbed step, so that its round stays open.
REWARD = f"""
import os
import time


def reward(sample, hold):
    while int(sample.ground_truth) == {DISTURBED * PROMPTS - 1} and os.path.exists(hold):
        time.sleep(0.05)
    letters = [c for c in sample.text if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / max(1, len(letters))
"""


def kill_store(job: Job) -> None:
    signal_process(job, job.pod("driver"), "ray-head", "ray::SampleStoreActor")


def kill_rank(job: Job) -> None:
    signal_process(job, min(job.pod_uids("trainer")), "trainer", "ray::TrainerActor")


def kill_driver(job: Job) -> None:
    signal_process(job, job.pod("driver"), "driver", "longboat agent driver")


class Streaming:
    """A job whose step DISTURBED is held where a test wants it: `holds` are the calls of ranks, and `grades`, that wait."""

    def __init__(self, site: Site, job: Job, *, steps: int = LAST, stream: str, holds: tuple[str, ...] = ()) -> None:
        self.job, self._folder = job, site.data / job.name
        self._folder.mkdir()
        for name in holds:
            (self._folder / name).touch()

        def spoil(specs: dict[str, Any]) -> None:
            env = {"PYTHONPATH": f"{DATA}/stream", "HOLDS": f"{DATA}/{job.name}"}
            container = specs["trainer"]["containers"][0]
            container["env"] += [{"name": name, "value": value} for name, value in env.items()]
            container["resources"]["requests"]["cpu"] = "100m"

        spec = small_job.spec(site.apply_runtime(job.name, spoil))
        spec["dataset"] |= {"columns": {"groundTruth": "answer"}, "shuffle": False}
        spec["rounds"] = {"steps": steps, "promptsPerRound": PROMPTS}
        spec["rewards"][0] |= {
            "function": f"{DATA}/stream/reward.py:reward",
            "parameters": {"hold": f"{DATA}/{job.name}/grades"},
        }
        spec["trainer"] |= {"replicas": RANKS, "maxTokensPerBin": 64, "stream": stream}
        spec["checkpoint"]["everySteps"] = 1
        if job.name != FIRST:
            spec["checkpoint"]["resumeFrom"] = {"claimName": f"{FIRST}-checkpoint"}
        job.apply(spec)

    def release(self, *names: str) -> None:
        for name in names or [path.name for path in self._folder.iterdir()]:
            (self._folder / name).unlink()

    def printed(self, what: str) -> None:
        """Waits until the first rank prints this."""
        self.job.printed(min(self.job.pod_uids("trainer")), "trainer", what)

    def weights(self) -> dict[str, torch.Tensor]:
        """Waits for the job's end, and returns what it has exported."""
        self.job.wait_for("Succeeded")
        weights: dict[str, torch.Tensor] = load_file(self._claim / "export" / "model.safetensors")
        return weights

    def count(self, kind: type) -> int:
        end = newest(self._claim)
        assert end is not None
        return sum(isinstance(event.body, kind) for event in surviving(self._claim, end))

    @property
    def _claim(self) -> Path:
        return volumes.folder(self.job.cluster, self.job.namespace, f"{self.job.name}-checkpoint")


@pytest.fixture(scope="module")
def undisturbed(site: Site) -> Iterator[dict[str, torch.Tensor]]:
    """Yields the weights of a job that doesn't stream, and to which nothing happens."""
    folder = site.data / "stream"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "reward.py").write_text(REWARD)
    for path in folder.iterdir():
        path.chmod(0o644)
    first, job = (Job(site.cluster, site.namespace, name) for name in (FIRST, "not-streamed"))
    Streaming(site, first, steps=1, stream="Never").weights()
    yield Streaming(site, job, stream="Never").weights()
    for done in (job, first):
        done.delete()


def in_a_chunk(streaming: Streaming, harm: Callable[[], None]) -> None:
    """Harms the job in the second chunk of the step: ranks hold what the first has accumulated."""
    streaming.printed("accumulate-3-0 begins")
    streaming.release("accumulate-3-0")
    streaming.printed("accumulate-3-1 begins")
    harm()
    streaming.release()


def between_chunks(streaming: Streaming, harm: Callable[[], None]) -> None:
    streaming.release("accumulate-3-1", "accumulate-3-0")
    streaming.printed("accumulate-3-1 ends")
    harm()
    streaming.release()


def in_the_step(streaming: Streaming, harm: Callable[[], None]) -> None:
    streaming.release("accumulate-3-0", "accumulate-3-1", "grades")
    streaming.printed("train-3 begins")
    harm()
    streaming.release()


@pytest.mark.parametrize("moment", [in_a_chunk, between_chunks, in_the_step], ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("harm", [kill_store, kill_rank, kill_driver], ids=lambda harm: harm.__name__)
def test_what_is_lost_with_a_streamed_step_changes_no_weight(
    moment: Callable[[Streaming, Callable[[], None]], None],
    harm: Callable[[Job], None],
    site: Site,
    undisturbed: dict[str, torch.Tensor],
    new_job: Callable[[str], Job],
) -> None:
    name = f"{harm.__name__}-{moment.__name__}".replace("_", "-")
    holds = ("accumulate-3-0", "accumulate-3-1", "train-3", "grades")
    streaming = Streaming(site, new_job(name), stream="Always", holds=holds)
    streaming.job.wait(
        "the checkpoint of the step before",
        lambda: streaming.job.status().get("checkpoint", {}).get("step"),
        lambda step: step == DISTURBED - 1,
    )
    moment(streaming, partial(harm, streaming.job))
    weights = streaming.weights()
    assert streaming.count(events.ChunkDone) > 0
    assert nothing_is_lost(streaming.job)["ended"] == (LAST - 1) * PROMPTS
    assert fates_in(streaming.job)["incarnations"] == (1 if harm is kill_rank else 2)
    assert weights.keys() == undisturbed.keys()
    for tensor, values in weights.items():
        assert (values - undisturbed[tensor]).norm() <= 1e-5 * undisturbed[tensor].norm(), tensor
