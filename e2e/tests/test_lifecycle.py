"""What people do to jobs and what machines do to pods, on a real Kubernetes with real vLLM, Ray and torch.

The tests of `survivor` share one long job and run in the order of this file: each leaves it running.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.binaries import KUBEBOX
from e2e.harm import delete_at_once, resumes_after, signal_process
from e2e.host_runtime import ENVIRONMENT
from e2e.installation import NAMESPACE as SYSTEM
from e2e.installation import operator_pods
from e2e.jobs import Job
from e2e.prompts import fates_in
from e2e.tests import trespass

pytestmark = pytest.mark.cluster

GPU_ROLES = ("rollout", "trainer")


def test_job_of_a_mixture_of_experts_finishes_with_an_export(finished: Job) -> None:
    status = finished.status()
    assert status["phase"] == "Succeeded"
    assert status["training"]["step"] == 4
    assert float(status["training"]["parity"]) < 1e-4
    assert status["checkpoint"]["step"] == 4
    assert status["checkpoint"]["export"]
    finished.wait("pods released", lambda: not finished.pods())
    columns = finished.cluster.kubectl("-n", finished.namespace, "get", "rlj", finished.name).split()
    assert {"PHASE", "STEP", "REWARD", "ROLLOUT"} <= set(columns)
    assert "Succeeded" in columns


def test_code_on_the_ray_head_reads_nothing_of_the_driver(survivor: Job) -> None:
    """Whoever has the job's Ray token can run code there: here, a rollout pod."""
    command = (str(ENVIRONMENT / "bin" / "python"), trespass.__file__)
    found = json.loads(survivor.exec(survivor.pod("rollout"), "rollout", *command).splitlines()[-1])
    for program in ("longboat agent driver", "longboat_runtime.cli driver"):
        assert any(program in command for command in found["driver"]), f"{program} is seen"
        assert any(program in command for command in found["hidden"]), f"{program} is hidden from its own user"
    refused = {command: set(paths.values()) == {"EACCES"} for command, paths in found["driver"].items()}
    assert all(refused.values()), f"user {found['user']} on the head: {found['driver']}"
    assert found["token"] == "ENOENT", "the head mounts no API token"


def test_responses_are_shown_from_the_driver_pod(survivor: Job, tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\nexec "{KUBEBOX.path}" kubectl "$@"\n')
    kubectl.chmod(0o755)
    environment = survivor.cluster.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(ENVIRONMENT / "bin" / "longboat"), "samples", survivor.name, "-n", survivor.namespace]
    options = ["--json", "--step", "all"]
    shown = subprocess.run([*command, *options], env=environment, check=True, capture_output=True, text=True).stdout
    samples = [json.loads(line) for line in shown.splitlines()]
    assert {sample["fate"] for sample in samples} >= {"kept"}
    assert all("say " in sample["prompt"] for sample in samples)
    # A response may be just its end, which is no text.
    assert all(sample["response"] or sample["finish_reason"] == "stop" for sample in samples)
    assert any(sample["response"] for sample in samples)
    # The newest file is written before the oldest is removed.
    assert 1 <= len({sample["step"] for sample in samples}) <= 4


def test_lost_rollout_pod_is_replaced(survivor: Job) -> None:
    others = survivor.pod_uids("driver", "trainer", "reward")
    lost = survivor.pod("rollout")
    step = survivor.step()
    delete_at_once(survivor, lost)
    survivor.wait("a new rollout pod", lambda: survivor.pod_uids("rollout").keys() - {lost})
    survivor.wait_for_step(step + 3)
    assert survivor.pod_uids("driver", "trainer", "reward") == others


def test_killed_driver_container_resumes_in_its_pod(survivor: Job) -> None:
    pods = survivor.pod_uids()
    resumes_after(survivor, lambda: signal_process(survivor, survivor.pod("driver"), "driver", "longboat agent driver"))
    assert survivor.pod_uids() == pods


def test_killed_ray_head_is_joined_again(survivor: Job) -> None:
    pods = survivor.pod_uids()
    resumes_after(survivor, lambda: signal_process(survivor, survivor.pod("driver"), "ray-head", "gcs_server"))
    assert survivor.pod_uids() == pods


def test_lost_driver_pod_resumes_and_keeps_the_other_pods(survivor: Job) -> None:
    kept = survivor.pod_uids(*GPU_ROLES, "reward")
    resumes_after(survivor, lambda: delete_at_once(survivor, survivor.pod("driver")))
    assert survivor.pod_uids(*GPU_ROLES, "reward") == kept


def test_killed_operator_changes_no_pod(survivor: Job) -> None:
    pods = survivor.pod_uids()
    step = survivor.step()
    for name in operator_pods(survivor.cluster):
        survivor.cluster.kubectl("-n", SYSTEM, "delete", "pod", name, "--grace-period=0", "--force")
    survivor.wait_for_step(step + 3)
    survivor.cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment", "--timeout=300s")
    survivor.wait_for_step(survivor.step() + 2)
    assert survivor.pod_uids() == pods


def test_suspend_keeps_a_step_and_resume_continues_there(survivor: Job) -> None:
    survivor.patch({"suspend": True})
    survivor.wait("suspended", lambda: survivor.status()["phase"] == "Suspended")
    survivor.wait("pods released", lambda: not survivor.pods())
    kept = survivor.status()["checkpoint"]["step"]
    assert kept == survivor.step()
    assert str(kept) in survivor.condition("Suspended")["message"]
    survivor.patch({"suspend": False})
    survivor.wait("running again", lambda: survivor.status()["phase"] == "Running")
    survivor.wait_for_step(kept + 1)
    assert fates_in(survivor)["begun"][-1] == kept


def test_all_that_came_before_lost_and_doubled_no_prompt(survivor: Job) -> None:
    found = fates_in(survivor)
    assert (found["lost"], found["doubled"]) == ([], [])
    assert found["incarnations"] > 1
    assert found["deferred"] > 0, "short rounds left prompts behind"
    rounds = survivor.status()["training"]["recentRounds"]
    assert {summary["kind"] for summary in rounds} == {"Short", "Long"}


def test_deleted_job_leaves_only_its_claim(survivor: Job) -> None:
    survivor.delete()
    kinds = "pods,services,serviceaccounts,roles,rolebindings,secrets,networkpolicies,controllerrevisions"
    survivor.wait(
        "children collected",
        lambda: not survivor.cluster.kubectl(
            "-n", survivor.namespace, "get", kinds, "-l", "longboat.dev/job=survivor", "-o", "name"
        ).strip(),
        90,
    )  # fmt: skip
    claims = survivor.cluster.kubectl(
        "-n", survivor.namespace, "get", "pvc", "-l", "longboat.dev/job=survivor", "-o", "name"
    )
    assert claims.split() == ["persistentvolumeclaim/survivor-checkpoint"]
