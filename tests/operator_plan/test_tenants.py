"""What a namespace's users and a platform's templates may say of a job's objects: labels, accounts, users, claims."""

from __future__ import annotations

from typing import Any

import pytest

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import ANNOTATION_HASH, LABEL_JOB, ApplyObject, CreateObject, DeleteObject
from longboat_operator.planner import plan
from longboat_operator.pods.names import MANAGER
from longboat_operator.reading.conditions import find
from tests.operator_plan.simulated_cluster import SimulatedCluster, runtime_of, spec_of

CLAIM = "PersistentVolumeClaim"


def message(cluster: SimulatedCluster, kind: ConditionType = ConditionType.RUNTIME_RESOLVED) -> tuple[str, str]:
    found = find(cluster.status.conditions, kind)
    assert found
    return found.reason, found.message


def everything(cluster: SimulatedCluster) -> list[dict[str, Any]]:
    return [child for found in cluster.children.values() for child in found.values()]


def default_account(cluster: SimulatedCluster, *secrets: str) -> None:
    metadata = {"namespace": "research", "name": "default", "uid": cluster.uid()}
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    cluster.children["ServiceAccount"]["default"] = body | {"imagePullSecrets": [{"name": name} for name in secrets]}


def pull_secrets(cluster: SimulatedCluster) -> list[str]:
    account = cluster.children["ServiceAccount"]["sums-driver"]
    return [secret["name"] for secret in account.get("imagePullSecrets", ())]


def template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def replace_driver(cluster: SimulatedCluster) -> None:
    (driver,) = cluster.pods(Role.DRIVER)
    cluster.evict(driver["metadata"]["name"])
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    cluster.advance(60)
    cluster.settle()
    assert cluster.pods(Role.DRIVER)[0]["metadata"]["uid"] != driver["metadata"]["uid"]


# Labels and annotations.


def test_labels_and_annotations_of_job_and_template_reach_every_object() -> None:
    spec = spec_of(labels={"cost-center": "42", "team": "jobs"}, annotations={"note": "of the job"})
    runtime = runtime_of(labels={"team": "platform"}, annotations={"policy.example/scan": "no"})
    cluster = SimulatedCluster(spec, runtime, cordoned=set())
    cluster.up()
    assert {child["kind"] for child in everything(cluster)} == set(cluster.children)
    for child in everything(cluster):
        labels, annotations = child["metadata"]["labels"], child["metadata"]["annotations"]
        assert (labels["cost-center"], labels["team"]) == ("42", "platform")
        assert annotations["policy.example/scan"] == "no"
        # Those of an account may bind it to a cloud identity.
        assert annotations.get("note") == (None if child["kind"] == "ServiceAccount" else "of the job")
        assert labels[LABEL_JOB] == "sums"
        assert labels["app.kubernetes.io/managed-by"] == MANAGER
    assert plan(cluster.observed(), cluster.now).empty


def test_a_pod_template_has_the_last_word_on_pods() -> None:
    metadata = {"labels": {"team": "pods"}, "annotations": {"note": "of pods"}}
    runtime = runtime_of(common={"template": {"metadata": metadata}})
    cluster = SimulatedCluster(spec_of(labels={"team": "jobs"}, annotations={"note": "of the job"}), runtime)
    cluster.up()
    for pod in cluster.pods():
        assert pod["metadata"]["labels"]["team"] == "pods"
        assert pod["metadata"]["annotations"]["note"] == "of pods"


def test_the_jobs_own_metadata_reaches_nothing() -> None:
    cluster = SimulatedCluster()
    assert cluster.job is not None
    cluster.job["metadata"] |= {"labels": {"argocd.argoproj.io/instance": "app"}, "annotations": {"a": "b"}}
    cluster.up()
    for child in everything(cluster):
        assert "argocd.argoproj.io/instance" not in child["metadata"]["labels"]
        assert "a" not in child["metadata"].get("annotations", {})


def test_an_edit_reaches_what_is_applied_and_no_running_pod() -> None:
    cluster = SimulatedCluster(spec_of(labels={"team": "a", "old": "x"}))
    cluster.up()
    before = {pod["metadata"]["uid"] for pod in cluster.pods()}
    assert cluster.job is not None
    cluster.job["spec"]["labels"] = {"team": "b"}
    cluster.edit()
    cluster.settle()
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Service", "NetworkPolicy"):
        for child in cluster.children[kind].values():
            assert child["metadata"]["labels"]["team"] == "b"
            assert "old" not in child["metadata"]["labels"]
    assert cluster.children[CLAIM]["sums-checkpoint"]["metadata"]["labels"]["team"] == "b"
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == before
    replace_driver(cluster)
    assert cluster.pods(Role.DRIVER)[0]["metadata"]["labels"]["team"] == "b"


def test_objects_of_other_labels_are_checked_by_a_dry_run_of_their_own() -> None:
    """A policy that wants labels accepts one job's pods and refuses another's."""

    def shapes(cluster: SimulatedCluster) -> set[str | None]:
        actions = [*cluster.reconcile().actions, *cluster.reconcile().actions]
        return {action.dry_run for action in actions if isinstance(action, CreateObject) and action.dry_run}

    first, second = shapes(SimulatedCluster()), shapes(SimulatedCluster(spec_of(labels={"team": "a"})))
    assert first
    assert second
    assert not first & second


# The driver's account.


def test_the_drivers_account_pulls_images_as_the_namespaces_default_account_does() -> None:
    cluster = SimulatedCluster()
    default_account(cluster, "registry")
    cluster.up()
    assert pull_secrets(cluster) == ["registry"]
    cluster.look_ups.clear()
    default_account(cluster, "registry", "other")
    for _ in range(3):
        cluster.train(1)
        cluster.reconcile()
        cluster.advance(3600)
    assert not cluster.look_ups, "a running job asks for nothing"
    replace_driver(cluster)
    assert pull_secrets(cluster) == ["registry", "other"]
    assert plan(cluster.observed(), cluster.now).empty


def test_the_account_is_as_it_was_where_the_default_account_has_no_secrets() -> None:
    """No running job's account is written anew after an upgrade."""
    cluster = SimulatedCluster()
    cluster.up()
    account = cluster.children["ServiceAccount"]["sums-driver"]
    assert "imagePullSecrets" not in account
    given = account["metadata"]["annotations"][ANNOTATION_HASH]
    default_account(cluster, "registry")
    replace_driver(cluster)
    assert cluster.children["ServiceAccount"]["sums-driver"]["metadata"]["annotations"][ANNOTATION_HASH] == given


def test_secrets_that_others_add_stay_when_the_account_is_applied_again() -> None:
    cluster = SimulatedCluster()
    default_account(cluster, "registry")
    cluster.up()
    cluster.children["ServiceAccount"]["sums-driver"]["imagePullSecrets"].append({"name": "dockercfg"})
    assert plan(cluster.observed(), cluster.now).empty
    cluster.edit(labels={"team": "a"})
    cluster.settle()
    assert pull_secrets(cluster) == ["registry", "dockercfg"]
    assert cluster.children["ServiceAccount"]["sums-driver"]["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize(("given", "expected"), [(["own"], ["own"]), ([], [])])
def test_the_template_says_what_the_account_has(given: list[str], expected: list[str]) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/x"}
    account = {"annotations": role, "imagePullSecrets": [{"name": name} for name in given]}
    cluster = SimulatedCluster(runtime=runtime_of(driverServiceAccount=account))
    default_account(cluster, "registry")
    cluster.up()
    assert pull_secrets(cluster) == expected
    made = cluster.children["ServiceAccount"]["sums-driver"]
    assert role.items() <= made["metadata"]["annotations"].items()
    others = [child for child in everything(cluster) if child is not made and child["metadata"]["name"] != "default"]
    assert not [child for child in others if role.keys() & child["metadata"].get("annotations", {}).keys()]


def test_the_drivers_rights_are_bound_to_an_account_that_the_template_brings() -> None:
    cluster = SimulatedCluster(runtime=runtime_of(common=template(serviceAccountName="trainers")))
    cluster.up()
    assert not cluster.children["ServiceAccount"]
    (subject,) = cluster.children["RoleBinding"]["sums-driver"]["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "trainers", "namespace": "research"}
    assert {pod["spec"]["serviceAccountName"] for pod in cluster.pods()} == {"trainers"}
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in cluster.pods())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"driverServiceAccount": {}, "roles": {"driver": template(serviceAccountName="mine")}},
            "spec.driverServiceAccount: configures the account that the operator creates, but the template's driver pods have serviceAccountName mine",
        ),
        (
            {"common": template(serviceAccount="mine")},
            "common.template.spec.serviceAccount: is deprecated in Kubernetes",
        ),
        (
            {"common": template(hostNetwork=True)},
            "spec.common.template.spec.hostNetwork: pods of a job listen on fixed ports",
        ),
        ({"roles": {"trainer": template(hostNetwork=True)}}, "spec.roles.trainer.template.spec.hostNetwork"),
    ],
)
def test_a_template_that_no_job_can_run_with_is_refused_with_its_field(spec: dict[str, Any], words: str) -> None:
    cluster = SimulatedCluster(runtime=runtime_of(**spec))
    cluster.settle()
    reason, text = message(cluster)
    assert reason == Reason.POD_TEMPLATE_INVALID
    assert words in text
    assert not cluster.pods()
    cluster.runtime = runtime_of()
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


def trainer_limits(**limits: Any) -> dict[str, Any]:
    return template(containers=[{"name": "trainer", "resources": {"limits": limits}}])


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "devices", "gpus"),
    [
        ({"roles": {"trainer": trainer_limits(**{GPU: "8"})}}, 1, 8),
        ({"roles": {"trainer": trainer_limits(**{GPU: 4})}}, 8, 4),
        ({"common": trainer_limits(**{"amd.com/gpu": 2})}, 1, 2),
        ({"common": trainer_limits(**{GPU: 4}), "roles": {"trainer": trainer_limits(**{GPU: 8})}}, 4, 8),
        ({"roles": {"trainer": trainer_limits(**{"nvidia.com/mig-3g.40gb": 2})}}, 1, 2),
    ],
)
def test_a_template_whose_trainers_have_another_number_of_gpus_is_refused(
    spec: dict[str, Any], devices: int, gpus: int
) -> None:
    cluster = SimulatedCluster(spec_of(trainer={"devicesPerPod": devices}), runtime_of(**spec))
    cluster.settle()
    reason, text = message(cluster)
    assert reason == Reason.POD_TEMPLATE_INVALID
    assert f"spec.trainer.devicesPerPod: is {devices}, but" in text
    assert f"gives trainer pods {gpus} (spec." in text
    assert not cluster.pods()


@pytest.mark.parametrize(
    ("spec", "devices"),
    [
        ({"roles": {"trainer": trainer_limits(**{GPU: "8"})}}, 8),
        # On CPUs, and where GPUs are claimed in another way, the template says nothing of them.
        ({}, 4),
        ({"common": trainer_limits(**{GPU: 4}), "roles": {"trainer": trainer_limits(**{GPU: None})}}, 2),
        ({"roles": {"trainer": trainer_limits(**{GPU: 2, "rdma/hca": 1, "nvidia.com/hostdev": 8})}}, 2),
        ({"common": trainer_limits(**{GPU: 8}), "roles": {"trainer": trainer_limits(**{GPU: 0})}}, 4),
    ],
)
def test_trainer_pods_offer_a_rank_for_each_device(spec: dict[str, Any], devices: int) -> None:
    cluster = SimulatedCluster(spec_of(trainer={"devicesPerPod": devices}), runtime_of(**spec))
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    trainers = [pod for pod in cluster.pods() if "-trainer-" in pod["metadata"]["name"]]
    assert len(trainers) == 2
    for pod in trainers:
        [args] = [c["args"] for c in pod["spec"]["containers"] if c["name"] == "trainer"]
        assert args[args.index("--slots") + 1] == str(devices)


def test_a_started_job_keeps_a_template_whose_trainers_have_idle_gpus() -> None:
    """As one that an operator without devicesPerPod started."""
    cluster = SimulatedCluster()
    cluster.up()
    cluster.children["ControllerRevision"]["sums-runtime-1"]["data"] |= {
        "roles": {"trainer": trainer_limits(**{GPU: 8})}
    }
    cluster.settle()
    assert message(cluster)[0] == Reason.RUNTIME_RESOLVED


def test_a_role_may_leave_the_host_network_again_and_a_started_job_runs_on() -> None:
    back = {role: template(hostNetwork=False) for role in Role}
    cluster = SimulatedCluster(runtime=runtime_of(common=template(hostNetwork=True), roles=back))
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    stored = cluster.children["ControllerRevision"]["sums-runtime-1"]
    stored["data"] |= {"roles": {"trainer": template(hostNetwork=True)}, "common": template(hostNetwork=False)}
    cluster.settle()
    assert message(cluster)[0] == Reason.RUNTIME_RESOLVED


# Users.


def contexts(pod: dict[str, Any]) -> list[dict[str, Any]]:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    return [pod["spec"]["securityContext"], *(container["securityContext"] for container in containers)]


def test_users_can_be_left_to_the_platform_and_the_status_warns() -> None:
    cluster = SimulatedCluster(runtime=runtime_of(userIds="Platform"))
    cluster.up()
    for pod in cluster.pods():
        for context in contexts(pod):
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    reason, text = message(cluster)
    assert reason == Reason.RUNTIME_RESOLVED
    assert "Containers driver and ray-head of driver pods, reward and graders of reward pods run as one user" in text


def users(**containers: int) -> list[dict[str, Any]]:
    return [
        {"name": name.replace("_", "-"), "securityContext": {"runAsUser": user}} for name, user in containers.items()
    ]


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ({}, set()),
        ({"userIds": "Fixed"}, set()),
        ({"common": template(securityContext={"runAsUser": 10003})}, {"driver"}),
        ({"roles": {"reward": template(containers=users(graders=10001))}}, {"reward"}),
        (
            {
                "userIds": "Platform",
                "roles": {
                    "driver": template(initContainers=users(ray_head=5)),
                    "reward": template(containers=users(graders=5)),
                },
            },
            set(),
        ),
        ({"rewardTemplates": [{"name": "unused", **template(containers=users(graders=10001))}]}, set()),
    ],
)
def test_the_status_warns_exactly_where_two_containers_run_as_one_user(spec: dict[str, Any], warned: set[str]) -> None:
    cluster = SimulatedCluster(runtime=runtime_of(**spec))
    cluster.up()
    text = message(cluster)[1]
    assert {role for role in Role if f"of {role} pods" in text} == warned
    for role in (Role.DRIVER, Role.REWARD):
        pod = cluster.pods(role)[0]
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        outer = pod["spec"]["securityContext"].get("runAsUser")
        ids = [container["securityContext"].get("runAsUser", outer) for container in containers]
        assert (len(set(ids)) < len(ids)) == (str(role) in warned), "as the pods are"


# Secrets, old names, claims and templates.


def test_the_tokens_secret_goes_when_the_job_ends() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    assert len(cluster.children["Secret"]) == 1
    cluster.train(100, "Succeeded")
    cluster.settle()
    assert len(cluster.children["Secret"]) == 1, "its pods are still there"
    cluster.end_deleted()
    cluster.settle()
    assert not cluster.children["Secret"]
    assert cluster.status.ray_token_secret is None
    assert plan(cluster.observed(), cluster.now).empty


def test_a_job_that_resumes_leaves_no_old_secret_behind() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    cluster.edit(suspend=True)
    cluster.train(0, "Suspended")
    cluster.settle()
    assert len(cluster.children["Secret"]) == 1
    cluster.end_deleted()
    cluster.settle()
    assert not cluster.children["Secret"]
    cluster.edit(suspend=False)
    cluster.up()
    assert set(cluster.children["Secret"]) == {cluster.status.ray_token_secret}


def test_without_the_right_to_delete_secrets_stay_and_nothing_is_tried() -> None:
    cluster = SimulatedCluster(may_delete=False)
    cluster.up()
    cluster.train(100, "Succeeded")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert len(cluster.children["Secret"]) == 1
    assert plan(cluster.observed(), cluster.now).empty


def with_old_policy(cluster: SimulatedCluster) -> None:
    """As a job of release 0.2.0 has it: the policy has the job's own name."""
    policies = cluster.children["NetworkPolicy"]
    policies["sums"] = policies.pop("sums-job")
    policies["sums"]["metadata"]["name"] = "sums"


def test_a_running_job_goes_over_to_the_new_name_of_its_networkpolicy() -> None:
    cluster = SimulatedCluster()
    cluster.up()
    with_old_policy(cluster)
    pods = {pod["metadata"]["uid"] for pod in cluster.pods()}
    (first,) = cluster.reconcile().actions
    assert isinstance(first, ApplyObject)
    assert first.body["metadata"]["name"] == "sums-job"
    assert "sums" in cluster.children["NetworkPolicy"], "the pods are never without one"
    (second,) = cluster.reconcile().actions
    assert isinstance(second, DeleteObject)
    assert second.uid
    assert set(cluster.children["NetworkPolicy"]) == {"sums-job", "sums-reward"}
    assert plan(cluster.observed(), cluster.now).empty
    assert {pod["metadata"]["uid"] for pod in cluster.pods()} == pods


def test_without_the_right_to_delete_the_old_networkpolicy_stays_as_long_as_the_job() -> None:
    cluster = SimulatedCluster(may_delete=False)
    cluster.up()
    with_old_policy(cluster)
    cluster.settle()
    assert set(cluster.children["NetworkPolicy"]) == {"sums", "sums-job", "sums-reward"}
    assert plan(cluster.observed(), cluster.now).empty
    cluster.delete_job()
    assert not cluster.children["NetworkPolicy"]


def test_another_jobs_policy_of_the_jobs_own_name_is_left_alone() -> None:
    cluster = SimulatedCluster()
    metadata = {"namespace": "research", "name": "sums", "uid": cluster.uid(), "labels": {LABEL_JOB: "sums"}}
    theirs = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata}
    cluster.children["NetworkPolicy"]["sums"] = theirs
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    assert cluster.children["NetworkPolicy"]["sums"] is theirs


def after_an_earlier_job(**checkpoint: Any) -> SimulatedCluster:
    earlier = SimulatedCluster()
    earlier.up()
    earlier.delete_job()
    cluster = SimulatedCluster(spec_of(checkpoint=checkpoint))
    assert cluster.job is not None
    cluster.job["metadata"]["uid"] = "later"
    cluster.children[CLAIM] = earlier.children[CLAIM]
    return cluster


def test_a_job_takes_over_its_predecessors_claim_if_it_is_told_to() -> None:
    cluster = after_an_earlier_job()
    cluster.settle()
    reason, text = message(cluster, ConditionType.SCHEDULED)
    assert reason == Reason.NAME_TAKEN
    assert "set spec.checkpoint.adopt: true" in text
    cluster = after_an_earlier_job(adopt=True)
    claim = cluster.children[CLAIM]["sums-checkpoint"]
    uid = claim["metadata"]["uid"]
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING
    adopted = cluster.children[CLAIM]["sums-checkpoint"]["metadata"]
    assert adopted["uid"] == uid
    assert adopted["labels"]["longboat.dev/job-uid"] == adopted["annotations"]["longboat.dev/job-uid"] == "later"
    assert plan(cluster.observed(), cluster.now).empty
    cluster.delete_job()
    assert set(cluster.children[CLAIM]) == {"sums-checkpoint"}


def test_an_adopted_claim_is_deleted_with_the_job_where_that_is_asked() -> None:
    cluster = after_an_earlier_job(adopt=True, reclaimPolicy="Delete")
    cluster.up()
    cluster.delete_job()
    assert not cluster.children[CLAIM]


def test_a_claim_that_no_job_left_is_not_adopted() -> None:
    cluster = SimulatedCluster(spec_of(checkpoint={"adopt": True}))
    metadata = {"namespace": "research", "name": "sums-checkpoint", "uid": cluster.uid(), "labels": {LABEL_JOB: "sums"}}
    cluster.children[CLAIM]["sums-checkpoint"] = {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata}
    cluster.settle()
    assert message(cluster, ConditionType.SCHEDULED)[0] == Reason.NAME_TAKEN


def test_a_left_claim_that_is_being_deleted_is_waited_for() -> None:
    cluster = after_an_earlier_job(adopt=True)
    cluster.children[CLAIM]["sums-checkpoint"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    cluster.settle()
    assert message(cluster, ConditionType.SCHEDULED)[0] == Reason.PODS_STARTING
    assert not cluster.pods()
    del cluster.children[CLAIM]["sums-checkpoint"]
    cluster.up()
    assert cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"kind": "ClusterRLRuntime", "name": "cpuu"}, "ClusterRLRuntime cpuu does not exist; did you mean cpu?"),
        ({"kind": "ClusterRLRuntime", "name": "else"}, "ClusterRLRuntime else does not exist; there are cpu"),
        (
            {"kind": "RLRuntime", "name": "cpu"},
            "RLRuntime cpu does not exist; there is ClusterRLRuntime cpu: set spec.runtimeRef.kind",
        ),
        ({"kind": "RLRuntime", "name": "else"}, "RLRuntime else does not exist; there is no RLRuntime yet"),
    ],
)
def test_a_template_that_does_not_exist_is_told_with_the_nearest(reference: dict[str, str], words: str) -> None:
    cluster = SimulatedCluster(spec_of(runtimeRef=reference))
    cluster.settle()
    assert message(cluster) == (Reason.RUNTIME_NOT_FOUND, words)
