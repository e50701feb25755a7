"""Tests that a person's mistakes end in a condition that names the field and the cure."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e import small_job, volumes
from e2e.jobs import Job
from e2e.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

Spec = dict[str, Any]


def missing_model(spec: Spec) -> None:
    """Names a model that isn't there."""
    spec["model"]["path"] = "/data/nowhere"


def unknown_reward(spec: Spec) -> None:
    """Names a reward function that a reward pod doesn't find."""
    spec["rewards"][0]["function"] = "/data/reward.py:rewrad"


def missing_column(spec: Spec) -> None:
    """Names a column that the driver doesn't find in the data."""
    spec["dataset"]["columns"] = {"prompt": "question"}


def missing_command(spec: Spec) -> None:
    """Names a command that a reward pod doesn't find."""
    spec |= small_job.code_spec(runCommand=["no-such-compiler", "{file}"])


def row_without_cases(spec: Spec) -> None:
    """Takes rows in which the driver finds no test cases."""
    spec |= {**small_job.code_spec(), "dataset": {"files": {"paths": ["/data/train.jsonl"]}}}


def too_many_sequences(spec: Spec) -> None:
    """Asks for more sequences at once than an engine takes tokens in one of its steps."""
    spec["rollout"]["maxSequences"] = 16_384


SPOILED = (missing_model, unknown_reward, missing_column, missing_command, row_without_cases, too_many_sequences)
# Engines refuse these.
WITH_ENGINES = (missing_model, too_many_sequences)


@pytest.fixture(scope="module")
def full(site: Site) -> Iterator[Job]:
    """Yields a job whose volume of 6 MiB has room for one checkpoint, but not for two, until a test enlarges it."""
    volumes.apply(site.cluster, volumes.in_memory(site.cluster, site.namespace, "small", 6))
    job = Job(site.cluster, site.namespace, "full-volume")
    job.apply(
        small_job.spec(
            rounds={"steps": 100_000, "promptsPerRound": 4}, checkpoint={"everySteps": 2, "claimName": "small"}
        )
    )
    yield job
    job.delete()


@pytest.fixture(scope="module", autouse=True)
def spoiled(site: Site, full: Job) -> Iterator[dict[str, Job]]:
    """Applies all spoiled jobs at once, since each waits for its pods; yields them by the name of what spoils them."""
    runtime = site.apply_runtime_without("no-trainer", "trainer")
    jobs: dict[str, Job] = {}
    for spoil in SPOILED:
        spec = small_job.spec("host" if spoil is too_many_sequences else runtime)
        if spoil not in WITH_ENGINES:
            spec["rollout"]["replicas"] = 0  # engines would only take CPUs
        fixed = {name: spec[name] for name in ("runtimeRef", "rollout")}
        spoil(spec)
        spec |= fixed
        job = jobs[spoil.__name__] = Job(site.cluster, site.namespace, spoil.__name__.replace("_", "-"))
        job.apply(spec)
    yield jobs
    for job in jobs.values():
        job.delete()


@pytest.mark.parametrize(
    ("spoil", "reason", "field", "cure"),
    [
        (missing_model, "ModelNotFound", "spec.model.path", "/data/nowhere"),
        (unknown_reward, "RewardFunctionNotFound", "spec.rewards[0].function", "reward"),
        (missing_column, "DatasetColumnMissing", "spec.dataset.columns.prompt", "prompt"),
        (missing_command, "CommandNotFound", "spec.rewards[0].sandbox.runCommand[0]", "Install it in the image"),
        (row_without_cases, "TestCasesInvalid", "spec.rewards[0].sandbox.format", "dataset.columns.groundTruth"),
        (too_many_sequences, "SpecInvalid", "spec.rollout.maxSequences", "16384"),
    ],
)
def test_spec_problem_is_named(
    spoiled: dict[str, Job], spoil: Callable[[Spec], None], reason: str, field: str, cure: str
) -> None:
    job = spoiled[spoil.__name__]
    condition = job.wait_for_failure()
    assert condition["reason"] == reason
    assert field in condition["message"]
    assert cure in condition["message"]
    assert job.status()["training"]["incarnation"] == 1, "it isn't tried again"


def test_full_checkpoint_volume_is_named_and_loses_nothing(site: Site, full: Job) -> None:
    """It writes checkpoints again, and is no longer degraded, once there is more room."""
    full.wait_for_step(4)
    degraded = full.wait(
        "reason CheckpointVolumeFull",
        lambda: full.condition("Degraded"),
        lambda condition: condition.get("reason") == "CheckpointVolumeFull",
    )
    message = degraded["message"]
    assert "spec.checkpoint" in message
    assert "Enlarge the claim" in message
    assert full.status()["checkpoint"]["step"] == 2
    step = full.step()
    volumes.enlarge(site.cluster, site.namespace, "small", 100)
    full.wait("a later checkpoint", lambda: full.status()["checkpoint"]["step"], lambda later: later > step)
    full.wait("the job is well", lambda: full.condition("Degraded"), lambda degraded: degraded.get("status") != "True")
