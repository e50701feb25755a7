"""A trainer of two pods of two ranks, with a copy of the model in each: where ranks are, the loss of one, and other trainers after it."""

from collections.abc import Callable, Iterator
from functools import partial
from operator import eq
from typing import Any

import pytest

from e2e import small_job, volumes
from e2e.host_runtime import DATA
from e2e.jobs import Job
from e2e.prompts import nothing_is_lost
from e2e.site import Site
from longboat_runtime.metrics.record import read_records

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

PODS, DEVICES = 2, 2
NAME = "two-pods"
# How many steps the jobs that resume from its checkpoint make.
MORE = 2

# Run by every Python process of a trainer's container: a rank says where it is.
SITECUSTOMIZE = """
import socket, sys, threading, time

def located(load):
    def call(rank, **options):
        print("rank", rank.rank, "of", rank.world_size, "is on", socket.gethostname(), flush=True)
        return load(rank, **options)
    return call

def wait_for_ranks():
    while not hasattr(sys.modules.get("longboat_runtime.trainer.rank"), "TrainerRank"):
        time.sleep(0.01)
    rank = sys.modules["longboat_runtime.trainer.rank"].TrainerRank
    rank.load = located(rank.load)

threading.Thread(target=wait_for_ranks, daemon=True).start()
"""

# Prints the process ids of a container's ranks.
RANKS = (
    'for p in /proc/[0-9]*; do if grep -q "^ray::TrainerActor" $p/cmdline 2>/dev/null; then echo ${p#/proc/}; fi; done'
)


def spec_of(site: Site, name: str, steps: int, **trainer: int) -> dict[str, Any]:
    """Makes a job with such a trainer, whose ranks say where they are."""

    def spoil(specs: dict[str, Any]) -> None:
        container = specs["trainer"]["containers"][0]
        container["env"].append({"name": "PYTHONPATH", "value": f"{DATA}/{NAME}"})
        container["resources"]["requests"]["cpu"] = "100m"

    spec = small_job.spec(site.apply_runtime(name, spoil), rounds={"steps": steps, "promptsPerRound": 4})
    spec["trainer"] |= {"maxTokensPerBin": 64, **trainer}
    spec["checkpoint"] |= {"everySteps": 1}
    return spec


def processes(job: Job) -> dict[str, set[str]]:
    """Returns the process ids of the ranks in each trainer pod."""
    return {pod: set(job.exec(pod, "trainer", "sh", "-c", RANKS).split()) for pod in sorted(job.pod_uids("trainer"))}


def metrics(job: Job) -> dict[int, dict[str, float]]:
    root = volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    return {record.step: dict(record.metrics) for record in read_records(root) if record.step}


@pytest.fixture(scope="module")
def suspended(site: Site) -> Iterator[Job]:
    """Yields the job, suspended after the test of its ranks has run with it."""
    folder = site.data / NAME
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (folder / "sitecustomize.py").chmod(0o644)
    job = Job(site.cluster, site.namespace, NAME)
    job.apply(spec_of(site, NAME, 100_000, replicas=PODS, devicesPerPod=DEVICES, replicateDegree=2))
    check_ranks(job)
    job.patch({"suspend": True})
    job.wait("suspended", lambda: job.status()["phase"], partial(eq, "Suspended"))
    yield job
    job.delete()


def check_ranks(job: Job) -> None:
    """Checks that ranks are in their pods, and that all start again there when one dies."""
    job.wait_for_step(2)
    before, uids = processes(job), job.pod_uids()
    assert [len(ranks) for ranks in before.values()] == [DEVICES] * PODS
    for place, pod in enumerate(before):
        for rank in range(place * DEVICES, (place + 1) * DEVICES):
            job.printed(pod, "trainer", f"rank {rank} of {PODS * DEVICES} is on {pod}$")

    *_, last = before
    job.exec(last, "trainer", "sh", "-c", f"kill -9 {min(before[last])}")
    step = job.step()
    job.wait_for_step(step + 3)
    after = processes(job)
    assert after.keys() == before.keys()
    for pod, ranks in after.items():
        assert len(ranks) == DEVICES
        assert ranks.isdisjoint(before[pod]), "all ranks start again"
    assert job.pod_uids() == uids
    assert job.status()["roles"]["trainer"].get("restarts", 0) == 0


def test_a_rank_that_dies_costs_no_pod_and_no_prompt(suspended: Job) -> None:
    nothing_is_lost(suspended)


@pytest.fixture(scope="module")
def first_steps() -> dict[str, dict[str, float]]:
    """Holds, by job, loss and norm of the first step after the checkpoint, whose samples are the same for all."""
    return {}


@pytest.mark.parametrize(("pods", "devices", "copies"), [(1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2)])
def test_other_trainers_resume_from_its_checkpoint(
    pods: int,
    devices: int,
    copies: int,
    site: Site,
    suspended: Job,
    new_job: Callable[[str], Job],
    first_steps: dict[str, dict[str, float]],
) -> None:
    saved = int(suspended.status()["checkpoint"]["step"])
    name = f"resumed-{pods}-{devices}-{copies}"
    job = new_job(name)
    trainer = {"replicas": pods, "devicesPerPod": devices, "replicateDegree": copies}
    spec = spec_of(site, name, saved + MORE, **trainer)
    spec["checkpoint"]["resumeFrom"] = {"claimName": f"{NAME}-checkpoint"}
    job.apply(spec)
    job.wait_for("Succeeded")
    assert nothing_is_lost(job)["begun"][-1] >= saved
    steps = metrics(job)
    assert max(steps) == saved + MORE
    first_steps[name] = {key: steps[saved + 1][key] for key in ("actor/pg_loss", "actor/grad_norm")}
    for other in first_steps.values():
        assert first_steps[name] == pytest.approx(other, rel=1e-4, abs=1e-6)
