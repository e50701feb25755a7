"""CPUs that move between running reward pods: the way there, and what becomes of a change that fails."""

from __future__ import annotations

import pytest

from longboat_crds.reasons import ConditionType, Reason
from longboat_crds.status import CpuMoveOutcome, Phase
from longboat_operator.model import CreateObject, ResizePod
from longboat_operator.reading.conditions import find
from longboat_operator.rejections import UNANSWERED
from tests.operator_plan.reward_cluster import RewardCluster, graders, reward_spec
from tests.operator_plan.simulated_cluster import KEY, SimulatedCluster, runtime_of, spec_of

CODE = "sums-reward-code-0-a0"
TWO = [{"name": "code"}, {"name": "math", "replicas": 2}]


def two_pools() -> RewardCluster:
    """Three graders share 3 CPUs."""
    cluster = RewardCluster(reward_spec("3", TWO))
    cluster.up()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}
    return cluster


def two_pools_with_a_pending_pod() -> RewardCluster:
    """The same, where the first pod of the pool `math` has a successor that waits for a node."""
    cluster = two_pools()
    cluster.delete_pod("sums-reward-math-0-a0", grace=0)
    cluster.settle()
    cluster.advance(2)
    cluster.settle()
    assert cluster.children["Pod"]["sums-reward-math-0-a1"]["status"]["phase"] == "Pending"
    return cluster


def asks_for_two(cluster: RewardCluster) -> None:
    """The driver asks for two CPUs for the pool `code`, and the other pool's pods have given them back."""
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 500, "math-1-a0": 500}
    for name in ("sums-reward-math-0-a0", "sums-reward-math-1-a0"):
        cluster.node(name)
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 2000


def events(cluster: RewardCluster, reason: str) -> list[str]:
    return [event.message for event in cluster.events if event.reason == reason]


def test_pods_are_created_with_their_share_whatever_the_template_says_of_cpus() -> None:
    limits = {"cpu": "7", "memory": "2Gi"}
    policy = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    container = {"name": "graders", "resources": {"limits": limits, "requests": {"cpu": "5"}}, "resizePolicy": policy}
    cluster = RewardCluster(reward_spec("3", TWO))
    cluster.runtime = runtime_of(roles={"reward": {"template": {"spec": {"containers": [container]}}}})
    cluster.up()
    made = graders(cluster.children["Pod"][CODE]["spec"]["containers"])
    assert made["resources"] == {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "1"}}
    assert made["resizePolicy"] == [*policy, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]
    assert cluster.status.roles.reward.cpu_text == "3/3"


def test_the_first_pods_of_a_template_are_checked_with_their_cpus() -> None:
    cluster = RewardCluster(reward_spec("3", TWO))
    cluster.reconcile()  # its account and services
    made = [*cluster.reconcile().actions]
    checked = [a.body for a in made if isinstance(a, CreateObject) and a.dry_run and a.body["kind"] == "Pod"]
    assert "1" in {
        graders(body["spec"]["containers"])["resources"]["limits"]["cpu"]
        for body in checked
        if "reward" in body["metadata"]["name"]
    }


def test_without_a_total_nothing_is_shared_and_nothing_told() -> None:
    cluster = SimulatedCluster(spec_of())
    cluster.up()
    assert cluster.status.reward_cpu is None
    assert "reward" not in cluster.job["status"]["allocation"]["grant"]


def test_donors_first_then_the_receiver_and_each_move_is_told_with_its_reason() -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    assert cluster.cpus.moves[-1].outcome is CpuMoveOutcome.UNDER_WAY
    cluster.advance(0.4)
    cluster.node(CODE)
    cluster.settle()
    move = cluster.cpus.moves[-1]
    assert (move.source, move.target, move.cpu, move.outcome) == ("math", "code", "1", CpuMoveOutcome.DONE)
    assert events(cluster, "CPUsMoved") == ["1 CPUs from reward pool math to code in 0.40 s: grades wait in code"]
    _, made = cluster.planned()
    assert made.empty
    assert made.look_again_seconds is None, "at rest it costs nothing"
    assert cluster.cpus.resizes is None


@pytest.mark.parametrize("answer", ["allocated", "in force", "Error"])
def test_nothing_is_given_on_before_the_donors_node_says_that_it_is_done(answer: str) -> None:
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    for name in ("sums-reward-math-0-a0", "sums-reward-math-1-a0"):
        cluster.node(name, answer)
        cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000
    cluster.nodes()
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 2000


def test_a_generation_that_the_node_has_not_seen_counts_as_not_done() -> None:
    """Its status says what was in force before, which may be anything by now."""
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    for name in ("sums-reward-math-0-a0", "sums-reward-math-1-a0"):
        cluster.node(name)
        cluster.children["Pod"][name]["status"]["observedGeneration"] -= 1
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000


@pytest.mark.parametrize(("answer", "patience"), [("Deferred", 5), ("Infeasible", 0), ("Error", 5), ("in force", 60)])
def test_a_change_that_fails_is_taken_back_the_donors_get_theirs_and_it_is_remembered(
    answer: str, patience: float
) -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    cluster.node(CODE, answer)
    if patience:
        cluster.settle()
        assert cluster.asks()["code-0-a0"] == 2000, "not at once"
        _, made = cluster.planned()
        assert made.look_again_seconds == pytest.approx(patience)
        cluster.advance(patience)
    cluster.settle()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 500, "math-1-a0": 500}
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}
    refusal = cluster.cpus.refusals[0]
    outcome = "Silent" if answer == "in force" else answer
    assert (refusal.pod, refusal.cpu, refusal.outcome) == (CODE, "2", outcome)
    assert [(pool.name, pool.cpu) for pool in refusal.sources] == [("math", "1")]
    assert cluster.cpus.moves[-1].outcome is CpuMoveOutcome.INCOMPLETE
    assert "they go back to pool math" in events(cluster, "CPUsRefused")[0]
    assert events(cluster, "CPUsNotMoved")


def test_what_failed_is_tried_again_later_and_later_whichever_operator_looks() -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    waits = []
    for _ in range(3):
        cluster.node(CODE, "Infeasible")
        cluster.swing()
        cluster.forget()
        _, made = cluster.planned()
        assert made.empty
        assert made.look_again_seconds is not None
        waits.append(round(made.look_again_seconds))
        cluster.advance(made.look_again_seconds)
        cluster.settle()  # donors give again
        for name in ("sums-reward-math-0-a0", "sums-reward-math-1-a0"):
            cluster.node(name)
        cluster.settle()
        assert cluster.asks()["code-0-a0"] == 2000
    assert waits == [30, 60, 120]
    cluster.swing()
    assert cluster.cpus.refusals is None, "forgotten once it went well"
    assert cluster.cpus.moves[-1].outcome is CpuMoveOutcome.DONE


def test_a_refusal_of_the_api_server_is_remembered_in_its_words() -> None:
    cluster = two_pools()
    cluster.refused[CODE] = "forbidden: Node didn't have enough allocatable resources: cpu"
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    cluster.advance(20)
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}
    refusal = cluster.cpus.refusals[0]
    assert refusal.outcome == "Refused"
    assert "enough allocatable" in refusal.message
    assert [a.name for a in cluster.resized].count(CODE) == 0


def test_a_resize_that_gets_no_final_answer_is_no_refusal_and_is_told_of() -> None:
    """It may have been carried out."""
    cluster = two_pools()
    donor = "sums-reward-math-1-a0"
    cluster.refused[donor] = f"{UNANSWERED}: failed calling webhook"
    cluster.ask_cpus(code="2", math="1")
    for _ in range(8):
        cluster.reconcile()
        cluster.nodes()
    assert not cluster.cpus.refusals
    degraded = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert degraded
    assert degraded.reason == Reason.REQUEST_FAILED
    assert degraded.message == f"Pod {donor}: {UNANSWERED}: failed calling webhook"
    del cluster.refused[donor]
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 2000, "math-0-a0": 500, "math-1-a0": 500}
    degraded = find(cluster.status.conditions, ConditionType.DEGRADED)
    assert degraded
    assert degraded.status == "False"


def test_a_donor_that_may_not_give_keeps_its_cpus_and_the_receiver_gets_what_there_is() -> None:
    cluster = two_pools()
    cluster.refused["sums-reward-math-1-a0"] = "forbidden: minimum cpu usage per Container is 1"
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1500, "math-0-a0": 500, "math-1-a0": 1000}
    assert cluster.cpus.moves[-1].outcome is CpuMoveOutcome.INCOMPLETE


def test_a_former_leaders_patch_is_counted_until_it_can_come_no_more() -> None:
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    cluster.nodes()
    late = cluster.late(cluster.planned()[1])
    assert [action.name for action in late] == [CODE]
    cluster.forget()
    cluster.ask_cpus(code="1", math="2")
    cluster.settle()
    assert cluster.asks()["math-0-a0"] == 500, "the CPUs may be gone already"
    cluster.resize(late[0])
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}


def test_a_patch_that_a_changed_pod_refuses_is_counted_no_more() -> None:
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    cluster.nodes()
    late = cluster.late(cluster.planned()[1])
    cluster.children["Pod"][CODE]["status"]["message"] = "it has another resourceVersion now"
    cluster.ask_cpus(code="1", math="2")
    cluster.swing()
    cluster.resize(late[0])
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}
    assert CODE not in [action.name for action in cluster.resized]


def test_pods_on_the_node_of_one_that_lacks_cpus_give_first() -> None:
    pools = [{"name": "code"}, {"name": "math"}, {"name": "style"}]
    cluster = RewardCluster(reward_spec("3", pools))
    cluster.settle()
    for name, node in (("code", "here"), ("math", "there"), ("style", "here")):
        cluster.schedule(f"sums-reward-{name}-0-a0", node)
    cluster.up()
    cluster.refused["sums-reward-style-0-a0"] = "not now"
    cluster.ask_cpus(code="1500m", math="750m", style="750m")
    cluster.grant()
    _, made = cluster.planned()
    assert next(a.name for a in made.actions if isinstance(a, ResizePod)) == "sums-reward-style-0-a0"


def test_a_lost_pod_is_counted_until_it_is_gone_and_its_successor_gets_the_share_that_is_free() -> None:
    cluster = two_pools()
    cluster.delete_pod("sums-reward-math-0-a0")
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1500, "math-0-a0": 1000, "math-1-a0": 500}
    assert cluster.cpus.used == "3"
    cluster.end_deleted()
    cluster.settle()
    cluster.advance(2)
    cluster.settle()
    cluster.start_all()
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 2000, "math-0-a1": 500, "math-1-a0": 500}


def test_a_pod_that_is_to_be_created_is_promised_its_cpus_before() -> None:
    cluster = two_pools()
    cluster.delete_pod("sums-reward-math-0-a0", grace=0)
    cluster.settle()
    cluster.advance(2)
    made = cluster.reconcile()
    assert not [a for a in made.actions if isinstance(a, CreateObject)]
    assert [(r.pod, r.before, r.cpu) for r in cluster.cpus.resizes or ()] == [("sums-reward-math-0-a1", None, "1")]
    cluster.forget()
    cluster.ask_cpus(code="3", math="200m")
    cluster.grant()
    [created] = [a for a in cluster.reconcile().actions if isinstance(a, CreateObject)]
    assert graders(created.body["spec"]["containers"])["resources"]["limits"]["cpu"] == "1", "as promised"


def test_a_pod_that_waits_for_a_node_gives_like_any_other() -> None:
    """It may wait for long, and would hold CPUs that nobody uses."""
    cluster = two_pools_with_a_pending_pod()
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 2000, "math-0-a1": 500, "math-1-a0": 500}
    assert cluster.cpus.resizes is None
    assert cluster.cpus.moves[-1].outcome is CpuMoveOutcome.DONE


def test_a_change_of_a_pod_that_then_starts_slowly_is_not_taken_back() -> None:
    cluster = two_pools_with_a_pending_pod()
    cluster.ask_cpus(code="2", math="1")
    cluster.grant()
    cluster.reconcile()
    cluster.schedule("sums-reward-math-0-a1", "here")
    cluster.node("sums-reward-math-1-a0")
    cluster.settle()
    cluster.node(CODE)
    cluster.advance(100)
    cluster.swing()
    assert cluster.asks()["math-0-a1"] == 500
    assert cluster.cpus.refusals is None


def test_what_somebody_else_asks_of_a_pod_is_counted_and_undone() -> None:
    cluster = two_pools()
    resources = graders(cluster.children["Pod"][CODE]["spec"]["containers"])["resources"]
    resources["limits"]["cpu"] = resources["requests"]["cpu"] = "600m"
    cluster.children["Pod"][CODE]["metadata"]["generation"] += 1
    cluster.swing()
    assert cluster.asks()["code-0-a0"] == 1000


def test_what_somebody_else_adds_beyond_the_total_is_taken_back_though_nobody_lacks_it() -> None:
    cluster = two_pools()
    pod = cluster.children["Pod"][CODE]
    resources = graders(pod["spec"]["containers"])["resources"]
    resources["limits"]["cpu"] = resources["requests"]["cpu"] = "1700m"
    pod["metadata"]["generation"] += 1
    cluster.total = lambda: 0  # type: ignore[method-assign]  # the sum is exceeded, by somebody else
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "math-1-a0": 1000}
    assert cluster.cpus.used == "3"


def test_a_total_that_is_lowered_before_the_job_has_started_is_kept() -> None:
    cluster = RewardCluster(reward_spec("3", TWO))
    cluster.settle()
    for _ in range(3):
        cluster.reconcile()
    assert set(cluster.asks().values()) == {1000}
    cluster.total = lambda: 0  # type: ignore[method-assign]  # the pods that are there have more
    cluster.edit(rewardCpu={"total": "1500m"})
    cluster.up()
    cluster.swing()
    assert set(cluster.asks().values()) == {500}
    assert cluster.cpus.used == "1500m"


def test_each_of_several_donors_gets_back_what_it_gave() -> None:
    pools = [{"name": "code"}, {"name": "math"}, {"name": "style", "cpu": {"max": "1200m"}}]
    cluster = RewardCluster(reward_spec("3", pools))
    cluster.up()
    cluster.ask_cpus(code="2200m", math="300m", style="500m")
    cluster.settle()
    cluster.nodes()
    cluster.settle()
    assert cluster.asks() == {"code-0-a0": 2200, "math-0-a0": 300, "style-0-a0": 500}
    cluster.node(CODE, "Infeasible")
    cluster.swing()
    assert cluster.asks() == {"code-0-a0": 1000, "math-0-a0": 1000, "style-0-a0": 1000}
    refusal = cluster.cpus.refusals[0]
    assert [(pool.name, pool.cpu) for pool in refusal.sources] == [("math", "700m"), ("style", "500m")]
    assert "they go back to pools math and style" in events(cluster, "CPUsRefused")[0]


def test_what_goes_back_to_a_pool_stays_within_its_bounds() -> None:
    pools = [{"name": "code"}, {"name": "math", "cpu": {"max": "1"}}, {"name": "style"}]
    cluster = RewardCluster(reward_spec("3", pools))
    cluster.up()
    cluster.ask_cpus(code="2", math="500m", style="500m")
    cluster.settle()
    cluster.nodes()
    cluster.settle()
    cluster.node(CODE, "Infeasible")
    cluster.swing()
    cluster.ask_cpus(code="2", math="1", style="0")
    cluster.swing()
    assert cluster.asks()["math-0-a0"] == 1000, "not what it has been granted and what comes back"


def test_a_refused_donor_gives_nothing_back() -> None:
    cluster = two_pools()
    cluster.refused["sums-reward-math-1-a0"] = "forbidden: minimum cpu usage per Container is 1"
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    assert cluster.cpus.refusals[0].sources is None
    assert "go back" not in events(cluster, "CPUsRefused")[0]


def test_what_takes_a_change_back_is_never_taken_back_and_the_failure_is_remembered() -> None:
    """A node that carries nothing out would get one request after another, and each would count as a failure of its own."""
    cluster = two_pools()
    asks_for_two(cluster)
    cluster.node(CODE, "Error")
    cluster.settle()
    cluster.advance(5)
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000
    for _ in range(5):
        cluster.node(CODE, "Error")
        cluster.advance(70)
        cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000
    assert [held.times for held in cluster.cpus.refusals] == [1]
    assert len(events(cluster, "CPUsRefused")) == 1
    cluster.node(CODE)
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 2000, "it is tried again"
    cluster.node(CODE, "Infeasible")
    cluster.settle()
    assert [held.times for held in cluster.cpus.refusals] == [2], "what was taken back went well, the change didn't"


def test_patience_begins_when_the_node_says_that_it_has_trouble() -> None:
    """The request may have been answered long after it was decided: the API server was away."""
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    cluster.nodes()
    [late] = cluster.late(cluster.planned()[1])
    cluster.advance(20)
    cluster.resize(late)
    cluster.node(CODE, "Deferred")
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 2000
    assert cluster.planned()[1].look_again_seconds == pytest.approx(5)
    cluster.advance(5)
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000


def test_receivers_on_the_node_that_others_leave_come_first() -> None:
    pools = [{"name": "code", "replicas": 2}, {"name": "math"}]
    cluster = RewardCluster(reward_spec("3", pools))
    cluster.settle()
    for name, node in (("code-0", "there"), ("code-1", "here"), ("math-0", "here")):
        cluster.schedule(f"sums-reward-{name}-a0", node)
    cluster.up()
    cluster.ask_cpus(code="2500m", math="500m")
    cluster.settle()
    cluster.nodes()
    cluster.grant()
    _, made = cluster.planned()
    assert next(a.name for a in made.actions if isinstance(a, ResizePod)) == "sums-reward-code-1-a0"


def test_a_move_that_another_one_supersedes_is_told() -> None:
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    cluster.settle()
    cluster.ask_cpus(code="1", math="2")
    cluster.swing()
    assert events(cluster, "CPUMoveSuperseded") == [
        "1 CPUs were on their way from reward pool math to code when CPUs were divided anew: grades wait in code"
    ]


def test_a_suspended_job_holds_no_cpus_and_resumes_by_graders() -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    cluster.swing()
    cluster.edit(suspend=True)
    cluster.train(0, "Suspended")
    cluster.settle()
    cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.SUSPENDED
    assert (cluster.cpus.used, cluster.cpus.pools) == ("0", None)
    cluster.edit(rewardCpu={"total": "6"})
    cluster.edit(suspend=False)
    cluster.up()
    assert cluster.asks() == {"code-0-a1": 2000, "math-0-a1": 2000, "math-1-a1": 2000}
    assert len(cluster.cpus.moves) == 1, "a new start is no move"


def test_a_job_that_gives_its_pods_back_holds_no_cpus_and_starts_again_by_graders() -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    cluster.swing()
    cluster.edit(failurePolicy={"recoveryTimeoutSeconds": 60, "maxBackoffSeconds": 3600, "backoffSeconds": 3600})
    cluster.delete_pod("sums-trainer-0-a0", grace=0)
    cluster.settle()
    cluster.advance(60)
    for _ in range(3):
        cluster.settle()
        cluster.end_deleted()
    cluster.settle()
    assert cluster.status.phase is Phase.QUEUED
    assert not cluster.pods()
    assert (cluster.cpus.used, cluster.cpus.pools) == ("0", None)
    wait = cluster.planned()[1].look_again_seconds
    assert wait
    cluster.advance(wait + 1)
    cluster.up()
    assert cluster.asks() == {"code-0-a1": 1000, "math-0-a1": 1000, "math-1-a1": 1000}
    assert len(cluster.cpus.moves) == 1, "a new start is no move"


def test_a_finished_job_keeps_what_moved_and_no_cpus() -> None:
    cluster = two_pools()
    asks_for_two(cluster)
    cluster.swing()
    cluster.train(100, "Succeeded")
    cluster.settle()
    assert cluster.status.phase is Phase.SUCCEEDED
    assert (cluster.cpus.used, cluster.cpus.resizes, len(cluster.cpus.moves)) == ("0", None, 1)


def test_a_demand_of_another_incarnation_moves_nothing() -> None:
    cluster = two_pools()
    cluster.ask_cpus(code="2", math="1")
    asked = cluster.job["status"]["demand"]
    cluster.start_driver()
    cluster.drive(demand={**cluster.job["status"]["demand"], "reward": asked["reward"]})
    cluster.swing()
    assert cluster.shares() == {"code": 1000, "math": 2000}
    assert cluster.planned(KEY.capacity)[1].empty


def test_what_somebody_else_takes_from_a_pod_is_free_once_its_node_says_so() -> None:
    cluster = two_pools()
    donors = ("sums-reward-math-0-a0", "sums-reward-math-1-a0")
    cluster.refused = dict.fromkeys(donors, "forbidden: minimum cpu usage per Container is 1")
    cluster.ask_cpus(code="2", math="1")
    cluster.swing()
    resources = graders(cluster.children["Pod"][donors[0]]["spec"]["containers"])["resources"]
    resources["limits"]["cpu"] = resources["requests"]["cpu"] = "600m"
    cluster.children["Pod"][donors[0]]["metadata"]["generation"] += 1
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1000
    cluster.node(donors[0])
    cluster.settle()
    assert cluster.asks()["code-0-a0"] == 1400
