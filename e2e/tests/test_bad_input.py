"""What a person gets wrong ends in a condition that names the field and the cure."""

from collections.abc import Callable
from typing import Any

import pytest

from e2e import small_job, volumes
from e2e.jobs import Job
from e2e.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

Spec = dict[str, Any]


def missing_model(spec: Spec) -> None:
    spec["model"]["path"] = "/data/nowhere"


def unknown_reward(spec: Spec) -> None:
    spec["rewards"][0]["function"] = "/data/reward.py:rewrad"


def missing_column(spec: Spec) -> None:
    spec["dataset"]["columns"] = {"prompt": "question"}


def long_prompt(spec: Spec) -> None:
    spec["model"]["maxLength"] = 20


def missing_domain(spec: Spec) -> None:
    spec["dataset"]["columns"] = {"domain": "answer"}
    spec["rounds"]["quotas"] = [{"domain": "nowhere", "prompts": spec["rounds"]["promptsPerRound"]}]


def missing_dataset(spec: Spec) -> None:
    spec["dataset"]["files"]["paths"] = ["/data/nothing.jsonl"]


@pytest.mark.parametrize(
    ("spoil", "reason", "field", "cure"),
    [
        (missing_model, "ModelNotFound", "spec.model.path", "/data/nowhere"),
        (unknown_reward, "RewardFunctionNotFound", "spec.rewards[0].function", "reward"),
        (missing_column, "DatasetColumnMissing", "spec.dataset.columns.prompt", "prompt"),
        (long_prompt, "PromptTooLong", "spec.model.maxLength", "maxLength"),
        (missing_domain, "DomainsMismatch", "spec.rounds.quotas[0].domain", "Correct the name"),
        (missing_dataset, "DatasetNotFound", "spec.dataset.files.paths[0]", "/data/nothing.jsonl"),
    ],
)
def test_spec_problem_is_named(
    new_job: Callable[[str], Job], spoil: Callable[[Spec], None], reason: str, field: str, cure: str
) -> None:
    spec = small_job.spec()
    if reason != "ModelNotFound":
        spec["rollout"]["replicas"] = 0  # the driver finds the others: engines would only take its CPUs
    spoil(spec)
    job = new_job(spoil.__name__.replace("_", "-"))
    job.apply(spec)
    job.wait("the job fails", lambda: job.condition("Failed").get("status") == "True")
    condition = job.condition("Failed")
    assert condition["reason"] == reason
    assert field in condition["message"]
    assert cure in condition["message"]


def test_full_checkpoint_volume_is_named_and_loses_nothing(site: Site, new_job: Callable[[str], Job]) -> None:
    """Room for one checkpoint (3.5 MB): the second finds none. With more room the job is as before."""
    volumes.apply(site.cluster, volumes.in_memory(site.cluster, site.namespace, "small", 6))
    job = new_job("full-volume")
    job.apply(
        small_job.spec(
            rounds={"steps": 100_000, "promptsPerRound": 4}, checkpoint={"everySteps": 2, "claimName": "small"}
        )
    )
    job.wait_for_step(4)
    job.wait("the job says so", lambda: job.condition("Degraded").get("reason") == "CheckpointVolumeFull")
    message = job.condition("Degraded")["message"]
    assert "spec.checkpoint" in message
    assert "Enlarge the claim" in message
    assert job.status()["checkpoint"]["step"] == 2
    step = job.step()
    volumes.enlarge(site.cluster, site.namespace, "small", 100)
    job.wait("a later checkpoint", lambda: job.status()["checkpoint"]["step"] > step, 120)
    job.wait("the job is well", lambda: job.condition("Degraded").get("status") != "True")
