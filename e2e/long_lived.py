"""Lends long-lived jobs to many tests, since starting a job takes half a minute of CPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e import reward_cpus, small_job
from e2e.jobs import Job
from e2e.site import Site


class LongLivedJob:
    """Keeps a job that trains until it is deleted, and pauses it while no test uses it.

    Replaces it by a job of another name when it makes no more steps. `spec` makes the job's spec, given the name of the file that pauses
    the job while it exists.
    """

    def __init__(self, site: Site, name: str, spec: Callable[[str], dict[str, Any]]) -> None:
        self._site, self._name, self._spec = site, name, spec
        self._number = 0
        self._job: Job | None = None

    def begin(self) -> Job:
        """Applies the job, which pauses in its first round."""
        self._number += 1
        self._job = Job(self._site.cluster, self._site.namespace, f"{self._name}-{self._number}")
        self._hold.touch()
        self._job.apply(self._spec(self._hold.name))
        return self._job

    def end(self) -> None:
        """Deletes the job, if there is one."""
        if self._job is not None:
            self._job.delete()
            self._job = None
            self._hold.unlink(missing_ok=True)

    @contextmanager
    def lent(self) -> Iterator[Job]:
        """Lends the job, which makes steps until the end of the block."""
        job = self._job if self._job is not None and self._job.get() else self.begin()
        if not self._makes_steps(job):
            self.end()
            job = self.begin()
            assert self._makes_steps(job), job.describe()
        yield job
        self._hold.touch()

    @property
    def _hold(self) -> Path:
        return self._site.data / f"hold-{self._name}-{self._number}"

    def _makes_steps(self, job: Job) -> bool:
        self._hold.unlink(missing_ok=True)
        try:
            job.wait_for("Running")
            job.wait_for_step(job.step() + 1)
        except AssertionError:
            return False
        return True


def tail_batching_spec(hold: str) -> dict[str, Any]:
    """Makes the spec of a job of short and long rounds."""
    return small_job.spec(
        rounds={"policy": "TailBatching", "steps": 100_000, "promptsPerRound": 4},
        samples={"everySteps": 1, "keep": 3},
        rewards=[small_job.hold_grades(reward, hold) for reward in small_job.spec()["rewards"]],
    )


def elastic_spec(runtime: str, hold: str) -> dict[str, Any]:
    """Makes the spec of a job whose engines may be reshaped and whose CPUs may move between two reward pools.

    One of the pools also grades code.
    """
    spec = reward_cpus.spec(runtime)
    cases = next(reward for reward in small_job.code_spec()["rewards"] if reward["name"] == "cases")
    return spec | {
        "dataset": small_job.code_spec()["dataset"],
        "rewards": [
            *(small_job.hold_grades(reward, hold) for reward in spec["rewards"]),
            cases | {"pool": reward_cpus.POOLS[0]},
        ],
        "rollout": {**spec["rollout"], "tensorParallel": 2, "parallelism": {"mode": "Fixed"}},
    }
