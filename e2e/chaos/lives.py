"""The jobs that faults happen to: each lives under one policy, is audited and makes room for the next."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e import episodes_job, prompts, small_job, volumes
from e2e.chaos.faults import UNREACHABLE
from e2e.cluster.errors import ClusterError
from e2e.cluster.waiting import wait_until
from e2e.jobs import Job, Object
from e2e.site import Site
from longboat_crds.rounds import RoundPolicyName
from longboat_runtime.checkpoint.layout import INCARNATIONS

PATIENT = {
    "maxDriverRestarts": 1000,
    "maxRolloutRestarts": 1000,
    "maxRewardRestarts": 1000,
    "maxTrainerRestarts": 1000,
    "maxEnvironmentRestarts": 1000,
    "backoffSeconds": 1,
    "maxBackoffSeconds": 2,
}
"""Limits that are never reached: a job whose pods are killed again before it has made a step would rightly fail otherwise."""

FIRST_STEPS = 3
# Fewer at a time than a round has: they don't all end in the same step, so that some are under way at any time.
SEQUENCES = 4
CHILDREN = (
    "pods,services,serviceaccounts,roles,rolebindings,secrets,networkpolicies,controllerrevisions,poddisruptionbudgets"
)


@dataclass
class Life:
    """One job under a policy. `step` was seen at `looked_at`; times are on the monotonic clock. `failed` is empty, or says why it won't go on."""

    job: Job
    policy: RoundPolicyName
    began: float
    until: float
    step: int = 0
    looked_at: float = 0.0
    failed: str = ""

    @property
    def ready(self) -> bool:
        """Whether faults may come: it has trained."""
        return self.step >= FIRST_STEPS

    def look(self) -> None:
        """Reads how far the job is; does nothing while the API server is away."""
        try:
            job_object = self.job.get()
        except UNREACHABLE:
            return
        self.looked_at = time.monotonic()
        status = job_object.get("status", {})
        self.step = int(status.get("training", {}).get("step", 0))
        for condition in status.get("conditions", []):
            if condition["type"] == "Failed" and condition["status"] == "True":
                self.failed = f"{condition['reason']}: {condition['message']}"


def begin(site: Site, policy: RoundPolicyName, number: int, seed: int, until: float, *, episodes: bool) -> Life:
    """Applies the job with this number, which plays `episodes` or has single responses, and returns its life."""
    rounds: Object = {"policy": policy.value, "steps": 10_000_000, "promptsPerRound": 4, "seed": seed}
    if policy in (RoundPolicyName.TAIL_BATCHING, RoundPolicyName.CONTINUE_UNFINISHED):
        rounds["promptOvercommit"] = 1.5
    rollout = {"sampling": {"maxTokens": 40}, "maxSequences": SEQUENCES, "kvCache": "64Mi", "enforceEager": True}
    job = Job(site.cluster, site.namespace, f"{policy.value.lower()}-{number}")
    if episodes:
        spec = episodes_job.spec(rounds=rounds, failurePolicy=PATIENT)
        spec["rollout"]["maxSequences"] = SEQUENCES
    else:
        spec = small_job.spec(rounds=rounds, rollout=rollout, failurePolicy=PATIENT)
    job.apply(spec)
    return Life(job, policy, time.monotonic(), until)


NO_PROMPTS = {
    "incarnations": 0,
    "drawn": 0,
    "ended": 0,
    "lost": [],
    "doubled": [],
    "uncovered": [],
    "failed_calls": [],
    "timed_out": [],
}
"""The audit of a job that never began to train."""


def end(life: Life, diagnosis: Path) -> Object:
    """Deletes a job and audits it: returns what became of its prompts, and which of CHILDREN its deletion left behind.

    Its logs are kept below `diagnosis` if something is wrong.
    """
    job = life.job
    claim = volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint")
    job.delete()
    children = ("get", CHILDREN, "-l", f"longboat.dev/job={job.name}", "-o", "name")
    remains: list[str] = []

    def gone() -> bool:
        remains[:] = job.cluster.kubectl("-n", job.namespace, *children).split()
        return not remains

    with suppress(ClusterError):
        wait_until(gone, "children are left", seconds=300, interval=1)
    outcome = prompts.fates(claim) if life.step else NO_PROMPTS
    audit: Object = {"job": job.name, "policy": life.policy.value, "steps": life.step, "left": remains}
    audit |= {name: outcome[name] for name in NO_PROMPTS}
    if not clean(audit):
        shutil.copytree(
            claim / INCARNATIONS, diagnosis / job.name, ignore=shutil.ignore_patterns("step-*"), dirs_exist_ok=True
        )
    return audit


def clean(audit: Object) -> bool:
    """Whether an audit finds nothing wrong (pure)."""
    return not any(audit[name] for name in ("lost", "doubled", "uncovered", "failed_calls", "timed_out", "left"))
