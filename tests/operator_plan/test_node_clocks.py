"""Nodes whose clocks are wrong: plans are the same as with right ones."""

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from longboat_operator.planner import plan
from tests.operator_plan.simulated_cluster import SimulatedCluster, spec_of
from tests.operator_plan.test_plan_restarts import trained, trainers
from tests.support.examples import examples

HOUR = timedelta(hours=1)
POD_EVENTS = ("start", "crash", "hang", "evict", "delete_pod", "lose_node_of")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(POD_EVENTS), st.integers(0, 5)),
        st.tuples(st.sampled_from(["reconcile", "start_all", "end_deleted", "forget", "train"]), st.none()),
        st.tuples(st.just("advance"), st.sampled_from([1, 9, 31, 61, 130, 301])),
    ),
    min_size=5,
    max_size=40,
)


def lived(nodes_ahead: timedelta) -> SimulatedCluster:
    """A job that runs; its pods have two nodes, whose clocks differ from the API server's in opposite directions."""
    limits = {f"max{role}Restarts": 3 for role in ("Driver", "Rollout", "Reward", "Trainer")}
    cluster = SimulatedCluster(spec_of(failurePolicy=limits))
    cluster.nodes_ahead = {"node0": nodes_ahead, "node1": -nodes_ahead}
    cluster.settle()
    for number, pod in enumerate(cluster.pods()):
        cluster.schedule(pod["metadata"]["name"], f"node{number % 2}")
    cluster.up()
    return cluster


@settings(max_examples=examples(60), deadline=None)
@given(EVENTS)
def test_the_same_life_gets_the_same_plans_whatever_the_nodes_clocks_say(events: list[tuple[str, int | None]]) -> None:
    right, *wrong = clusters = [lived(timedelta()), lived(HOUR), lived(-HOUR)]
    for event, value in events:
        for cluster in clusters:
            if event in POD_EVENTS:
                pods = cluster.pods()
                if pods and value is not None:
                    getattr(cluster, event)(pods[value % len(pods)]["metadata"]["name"])
            elif value is not None:
                cluster.advance(value)
            elif event != "train" or (cluster.job and cluster.number):
                getattr(cluster, event)()
        expected = right.planned()[1]
        for cluster in wrong:
            assert cluster.planned()[1] == expected
            assert cluster.job == right.job


def test_a_pod_is_stuck_after_the_same_time_on_every_node() -> None:
    for ahead in (timedelta(), HOUR, -HOUR):
        cluster = trained()
        cluster.nodes_ahead = {"node0": ahead}
        cluster.hang("sums-trainer-0-a0")
        cluster.settle()
        cluster.advance(299)
        cluster.settle()
        assert cluster.status.restarts == 0
        cluster.advance(1)
        cluster.settle()
        assert cluster.status.restarts == 1


def test_a_restarted_operator_is_patient_with_a_pod_that_may_be_stuck() -> None:
    cluster = trained()
    cluster.hang("sums-trainer-0-a0")
    cluster.settle()
    cluster.advance(200)
    cluster.forget()
    assert plan(cluster.observed(), cluster.now).look_again_seconds == 300


def test_an_incident_that_a_restarted_operator_sees_in_part_is_one_incident() -> None:
    """Of two trainers that ended together the first operator saw one, the next the other, long after."""
    for ahead in (timedelta(), HOUR, -HOUR):
        cluster = trained()
        cluster.nodes_ahead = {"node0": ahead}
        cluster.crash("sums-trainer-0-a0")
        cluster.settle()
        cluster.advance(5)
        cluster.crash("sums-trainer-1-a0")
        cluster.forget()
        cluster.advance(1000)
        cluster.settle()
        assert (trainers(cluster).restarts, trainers(cluster).recent_restarts) == (2, 1)
