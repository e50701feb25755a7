"""A node of driver or trainer pods that is drained: the driver saves first, then the pods may be evicted."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import Phase
from longboat_operator.model import ApplyObject, DeleteObject, target_of
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import find
from longboat_operator.reading.times import moment, stamp
from tests.operator_plan.simulated_cluster import KEY, SimulatedCluster, is_ready, spec_of
from tests.support.examples import examples

GRACE = 120
DRIVER, TRAINER, ROLLOUT = "sums-driver-0-a0", "sums-trainer-0-a0", "sums-rollout-0-a0"
ALL = 3  # a driver and two trainers


def running(**changes: object) -> SimulatedCluster:
    """A job at step 43 with a checkpoint of step 40: the driver is on node0, the others on nodes of their own."""
    cluster = SimulatedCluster(
        spec_of(checkpoint={"graceSeconds": GRACE, "everySteps": 1000}, **changes), cordoned=set()
    )
    cluster.settle()
    for number, pod in enumerate(cluster.pods()):
        cluster.schedule(pod["metadata"]["name"], f"node{number}")
    cluster.up()
    cluster.train(43, checkpoint={"incarnation": 1, "step": 40})
    cluster.settle()
    return cluster


@pytest.fixture
def cluster() -> SimulatedCluster:
    return running()


def node_of(cluster: SimulatedCluster, name: str) -> str:
    return str(cluster.children["Pod"][name]["spec"]["nodeName"])


def cordon(cluster: SimulatedCluster, *names: str) -> None:
    assert cluster.cordoned is not None
    cluster.cordoned |= {node_of(cluster, name) for name in names}
    cluster.settle()


def save(cluster: SimulatedCluster, step: int) -> None:
    cluster.drive(checkpoint={"incarnation": 1, "step": step})
    cluster.settle()


def test_a_running_job_lets_no_driver_or_trainer_pod_be_evicted(cluster: SimulatedCluster) -> None:
    [budget] = cluster.children["PodDisruptionBudget"].values()
    assert budget["spec"] == {
        "minAvailable": ALL,
        "selector": {
            "matchLabels": {"longboat.dev/job": "sums"},
            "matchExpressions": [{"key": "longboat.dev/role", "operator": "In", "values": ["driver", "trainer"]}],
        },
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    [owner] = budget["metadata"]["ownerReferences"]
    assert owner["uid"] == cluster.job["metadata"]["uid"] if cluster.job else False
    assert not cluster.evictable(DRIVER)
    assert cluster.evictable(ROLLOUT)
    assert cluster.status.drain is None


@pytest.mark.parametrize("name", [DRIVER, TRAINER])
def test_the_driver_saves_before_its_or_a_trainers_pod_may_be_evicted(cluster: SimulatedCluster, name: str) -> None:
    cordon(cluster, name)
    drain = cluster.status.drain
    assert drain
    assert (drain.since, drain.step, drain.nodes) == (stamp(cluster.now), 43, [node_of(cluster, name)])
    [event] = [event for event in cluster.events if event.reason == "NodeCordoned"]
    assert node_of(cluster, name) in event.message
    assert "step 43" in event.message
    assert not cluster.evictable(name)
    assert plan(cluster.observed(), cluster.now).look_again_seconds == GRACE
    save(cluster, 42)
    assert not cluster.evictable(name)
    cluster.train(1)
    save(cluster, 43)
    assert cluster.evictable(name)
    assert cluster.status.phase is Phase.RUNNING
    cluster.delete_pod(name, reason="EvictionByEvictionAPI")
    cluster.settle()
    cluster.end_deleted()
    cluster.advance(10)
    cluster.settle()
    cluster.schedule(name.replace("-a0", "-a1"), "spare")
    cluster.start_all()
    cluster.settle()
    assert (cluster.status.drain, cluster.budget) == (None, ALL), "its successor is on another node"


def test_evictions_are_allowed_after_the_grace_at_the_latest(cluster: SimulatedCluster) -> None:
    cordon(cluster, DRIVER)
    cluster.advance(GRACE - 1)
    cluster.settle()
    assert not cluster.evictable(DRIVER)
    cluster.advance(1)
    cluster.settle()
    assert cluster.evictable(DRIVER)
    assert plan(cluster.observed(), cluster.now).empty


def test_what_is_saved_already_is_not_waited_for(cluster: SimulatedCluster) -> None:
    save(cluster, 43)
    cordon(cluster, TRAINER)
    assert cluster.evictable(TRAINER)
    cluster = SimulatedCluster(spec_of(), cordoned=set())
    cluster.up()
    cordon(cluster, DRIVER)
    assert cluster.evictable(DRIVER), "nothing has been trained"


@pytest.mark.parametrize("end", ["crash", "Starting", "evict"])
def test_a_driver_that_does_not_train_is_not_waited_for(cluster: SimulatedCluster, end: str) -> None:
    if end == "Starting":
        cluster.train(0, "Starting")
    elif end == "crash":
        cluster.crash(DRIVER)
        cluster.tokens += 1
        cluster.drive(demand={"incarnationRequest": f"token-{cluster.tokens}"})
    else:
        cluster.evict(DRIVER)
    cluster.settle()
    cordon(cluster, TRAINER)
    assert cluster.evictable(TRAINER)


def test_a_driver_that_went_back_to_its_checkpoint_has_nothing_more_to_save(cluster: SimulatedCluster) -> None:
    cordon(cluster, TRAINER)
    cluster.start_driver()
    cluster.train(-3)
    cluster.settle()
    assert cluster.evictable(TRAINER)


def test_an_uncordoned_node_is_protected_again(cluster: SimulatedCluster) -> None:
    cordon(cluster, TRAINER)
    save(cluster, 43)
    assert cluster.budget == 0
    assert cluster.cordoned
    cluster.cordoned.clear()
    cluster.settle()
    assert (cluster.status.drain, cluster.budget) == (None, ALL)


def test_another_node_has_the_driver_save_again(cluster: SimulatedCluster) -> None:
    cordon(cluster, TRAINER)
    save(cluster, 43)
    cluster.advance(1000)
    cluster.train(7)
    cordon(cluster, DRIVER)
    drain = cluster.status.drain
    assert drain
    assert (drain.since, drain.step, len(drain.nodes)) == (stamp(cluster.now), 50, 2)
    assert not cluster.evictable(TRAINER)
    save(cluster, 50)
    assert cluster.evictable(TRAINER)


def test_nodes_of_other_pods_do_not_matter(cluster: SimulatedCluster) -> None:
    before = cluster.writes
    cordon(cluster, ROLLOUT)
    assert cluster.cordoned is not None
    cluster.cordoned.add("node99")
    cluster.settle()
    assert (cluster.writes, cluster.status.drain, cluster.budget) == (before, None, ALL)


def test_an_operator_that_may_not_watch_nodes_makes_no_budget_and_opens_what_it_finds(
    cluster: SimulatedCluster,
) -> None:
    cordon(cluster, DRIVER)
    cluster.cordoned = None
    cluster.settle()
    assert (cluster.status.drain, cluster.budget) == (None, 0)
    namespaced = SimulatedCluster()
    namespaced.up()
    assert namespaced.budget is None


def test_until_nodes_are_listed_everything_stays_as_it_is(cluster: SimulatedCluster) -> None:
    cordon(cluster, DRIVER)
    unknown = dataclasses.replace(cluster.observed(), cordoned=None)
    assert plan(unknown, cluster.now).empty
    new = SimulatedCluster(cordoned=set())
    new.settle()
    unknown = dataclasses.replace(
        new.observed(), cordoned=None, children={**new.observed().children, "PodDisruptionBudget": {}}
    )
    assert not [a for a in plan(unknown, new.now).actions if target_of(a)[0] == "PodDisruptionBudget"]


def test_a_job_that_ends_or_is_suspended_is_not_drained(cluster: SimulatedCluster) -> None:
    cordon(cluster, DRIVER)
    cluster.edit(suspend=True)
    cluster.settle()
    assert cluster.status.drain is None
    resumed = running()
    cordon(resumed, DRIVER)
    resumed.train(57, "Succeeded")
    resumed.settle()
    assert (resumed.status.phase, resumed.status.drain) == (Phase.SUCCEEDED, None)


def test_what_others_do_to_a_budget_is_undone(cluster: SimulatedCluster) -> None:
    cluster.children["PodDisruptionBudget"][KEY.name]["spec"]["minAvailable"] = 1
    cluster.settle()
    assert cluster.budget == ALL
    del cluster.children["PodDisruptionBudget"][KEY.name]
    cluster.settle()
    assert cluster.budget == ALL


def test_a_budget_that_is_refused_keeps_no_pod_from_being_created() -> None:
    new = SimulatedCluster(cordoned=set())
    new.children["PodDisruptionBudget"][KEY.name] = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": KEY.name, "uid": "a-strangers", "labels": {}},
        "spec": {"minAvailable": 1},
    }
    for _ in range(10):
        new.reconcile()
    assert len(new.pods()) == 6
    assert new.budget == 1, "it is left alone"


def test_pods_that_outlive_their_job_may_be_evicted(cluster: SimulatedCluster) -> None:
    assert cluster.job
    cluster.job["metadata"] |= {"deletionTimestamp": stamp(cluster.now), "finalizers": ["orphan"]}
    cluster.settle()
    assert cluster.budget == 0
    assert len(cluster.pods()) == 6


def test_a_refused_budget_is_shown_and_holds_nothing_up(cluster: SimulatedCluster) -> None:
    del cluster.children["PodDisruptionBudget"][KEY.name]["metadata"]["ownerReferences"]
    for _ in range(10):
        cluster.reconcile()
    degraded = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert degraded
    assert (degraded.status, degraded.reason) == ("True", Reason.NAME_TAKEN)
    assert f"PodDisruptionBudget {KEY.name}" in degraded.message
    assert cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("change", [{"fromTheFuture": True}, {"model": {}}, {"labels": ["x"]}], ids=str)
def test_a_job_whose_spec_is_of_another_version_does_not_hold_up_a_drain(
    cluster: SimulatedCluster, change: dict[str, object]
) -> None:
    assert cluster.job
    cluster.job["spec"] |= change
    cordon(cluster, DRIVER)
    assert cluster.budget == 0
    assert not [a for a in plan(cluster.observed(), cluster.now).actions if isinstance(a, ApplyObject | DeleteObject)]


HAPPENINGS = st.one_of(
    st.tuples(st.just("cordon"), st.integers(0, 5)),
    st.tuples(st.just("uncordon"), st.integers(0, 5)),
    st.tuples(st.just("train"), st.integers(1, 3)),
    st.tuples(st.just("save"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.integers(1, GRACE)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
    st.tuples(st.just("start"), st.just(0)),
    st.tuples(st.just("delete node"), st.integers(0, 5)),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(HAPPENINGS, max_size=12))
def test_a_healthy_pod_is_evicted_only_once_saved_and_no_drain_waits_longer_than_the_grace(
    happenings: list[tuple[str, int]],
) -> None:
    cluster = running(failurePolicy={"maxDriverRestarts": 100, "maxTrainerRestarts": 100, "backoffSeconds": 1})
    assert cluster.cordoned is not None
    for what, number in happenings:
        names = sorted(cluster.children["Pod"])
        name = names[number % len(names)]
        if what == "cordon":
            cluster.cordoned.add(f"node{number}")
        elif what == "uncordon":
            cluster.cordoned.discard(f"node{number}")
        elif what == "train":
            cluster.train(number)
        elif what == "save" and cluster.status.training:
            kept = cluster.status.checkpoint.step if cluster.status.checkpoint else 0
            cluster.drive(checkpoint={"incarnation": 1, "step": max(kept, cluster.status.training.step - number)})
        elif what == "wait":
            cluster.advance(number)
        elif what == "crash":
            cluster.crash(name)
        elif what == "start":
            cluster.start_all()
        else:
            cluster.delete_node_of(name)
        cluster.settle()
        check(cluster)
    cluster.advance(60)
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    check(cluster)
    cluster.advance(GRACE)
    cluster.settle()
    for pod in (*cluster.pods(Role.DRIVER), *cluster.pods(Role.TRAINER)):
        if pod["spec"].get("nodeName") in cluster.cordoned:
            assert cluster.evictable(pod["metadata"]["name"])


def check(cluster: SimulatedCluster) -> None:
    """While all driver and trainer pods are healthy, evictions are allowed only where nothing more would be saved."""
    pods = [*cluster.pods(Role.DRIVER), *cluster.pods(Role.TRAINER)]
    if not len(pods) == sum(is_ready(pod) for pod in pods) == ALL:
        return
    drain, training, checkpoint = cluster.status.drain, cluster.status.training, cluster.status.checkpoint
    drained = {pod["spec"].get("nodeName") for pod in pods} & (cluster.cordoned or set())
    assert set(drain.nodes if drain else ()) == drained
    if cluster.budget == 0:
        assert drain, "nothing is drained"
        waited = (cluster.now - moment(drain.since)).total_seconds() >= GRACE
        saved = checkpoint is not None and training is not None and checkpoint.step >= min(drain.step, training.step)
        assert waited or saved
    else:
        assert cluster.budget == ALL
