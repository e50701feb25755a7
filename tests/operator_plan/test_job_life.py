"""Whatever kubelets, nodes, the driver, the user and the operator's own crashes do: invariants hold, and it converges."""

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longboat_crds.base import Role
from longboat_crds.reasons import ConditionType
from longboat_crds.status import Phase
from longboat_operator.model import ANNOTATION_RAY_TOKEN, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB, LABEL_ROLE, Contention
from longboat_operator.plan.records import remembered
from longboat_operator.planner import plan
from longboat_operator.reading.conditions import holds
from longboat_operator.reading.status import rollout_grant
from tests.operator_plan.simulated_cluster import KEY, SimulatedCluster, place, spec_of, with_environments
from tests.support.examples import examples

PICK = st.integers(0, 1_000)


def foreign_pod() -> dict[str, object]:
    """A pod of an earlier job of the same name that the garbage collector has not reached yet."""
    labels = {LABEL_JOB: "sums", LABEL_ROLE: "trainer", LABEL_INDEX: "0", LABEL_ATTEMPT: "7"}
    owner = {"kind": "RLJob", "name": "sums", "uid": "an-earlier-job"}
    metadata = {"name": "sums-trainer-0-a7", "uid": "foreign", "labels": labels, "ownerReferences": [owner]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {},
        "status": {"phase": "Running", "conditions": []},
    }


class JobLife(RuleBasedStateMachine):
    """Each rule is one thing that happens; plans come in between, whole, cut short, or made from an old snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign = foreign_pod()
        self.numbers: dict[str, int] = {}
        self.drained: set[str] = set()
        self.let_go: dict[str, bool] = {}
        self.ended: Phase | None = None
        self.created_at_end = 0
        self.checked_created = 0

    def pod(self, pick: int, *, recorded: bool = False) -> str | None:
        pods = remaining_pods(self.cluster)
        if recorded:
            pods = [pod for pod in pods if self.is_recorded(pod)]
        return pods[pick % len(pods)]["metadata"]["name"] if pods else None

    def is_recorded(self, pod: dict) -> bool:
        role, *at = place(pod)
        status = getattr(self.cluster.status.roles, role) if self.cluster.status.roles else None
        attempt = int(pod["metadata"]["labels"][LABEL_ATTEMPT])
        return any([*at, attempt] == [*where, record.attempt] for where, record in remembered(status).records.items())

    @initialize(up=st.booleans(), plays=st.booleans())
    def begin(self, up: bool, plays: bool) -> None:
        """A job, with environments if it `plays`."""
        pools = [{"name": "code"}, {"name": "math", "replicas": 2}]
        spec = (with_environments if plays else spec_of)(
            failurePolicy={f"max{role.capitalize()}Restarts": 8 for role in Role},
            rewards=[{"name": pool["name"], "kind": "ReasoningGym", "pool": pool["name"]} for pool in pools],
            rewardPools=pools,
        )
        self.cluster = SimulatedCluster(spec)
        self.cluster.children["Pod"]["sums-trainer-0-a7"] = copy.deepcopy(self.foreign)  # type: ignore[assignment]
        if up:
            self.cluster.up()

    # The operator.

    @rule()
    def reconcile(self) -> None:
        seen, made = self.cluster.planned()
        kept = copy.deepcopy(seen)
        assert plan(seen, self.cluster.now) == plan(kept, self.cluster.now) == made, "deterministic"
        assert seen == kept, "changes nothing it is given"
        self.cluster.carry_out(made)

    @rule()
    def grant(self) -> None:
        seen, made = self.cluster.planned(KEY.capacity)
        kept = copy.deepcopy(seen)
        assert plan(seen, self.cluster.now) == plan(kept, self.cluster.now) == made, "deterministic"
        assert seen == kept, "changes nothing it is given"
        self.cluster.carry_out(made)
        assert self.cluster.grant().empty, "once is enough"

    @rule()
    def plan_the_job_alone(self) -> None:
        """Its capacity is behind."""
        self.cluster.carry_out(self.cluster.planned()[1])

    @rule(pick=PICK)
    def grant_from_an_old_snapshot(self, pick: int) -> None:
        """Between a capacity's snapshot and its write the job's plan writes: the older one of the two comes to nothing."""
        _, made = self.cluster.planned(KEY.capacity)
        version = self.cluster.version
        if pick % 2:
            self.cluster.carry_out(self.cluster.planned()[1])
        elif name := self.pod(pick):
            self.cluster.evict(name)
        self.cluster.carry_out(made, version=version)

    @rule(cut=st.integers(0, 25))
    def crash_in_the_middle(self, cut: int) -> None:
        self.cluster.reconcile(cut)
        self.cluster.forget()

    @rule(pick=PICK)
    def act_on_an_old_snapshot(self, pick: int) -> None:
        """Between snapshot and writes a pod changes; the status write is rejected only if the job did."""
        _, made = self.cluster.planned()
        version = self.cluster.version
        if name := self.pod(pick):
            self.cluster.crash(name)
        if pick % 3 == 0 and self.cluster.number and not self.ended:
            self.cluster.train()
        self.cluster.carry_out(made, version=version)

    @rule(seconds=st.sampled_from([1, 9, 31, 130, 650, 1900]))
    def time_passes(self, seconds: int) -> None:
        self.cluster.advance(seconds)

    # Kubelets and nodes.

    @rule(pick=PICK)
    def start(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.start(name)

    @rule()
    def start_all(self) -> None:
        self.cluster.start_all()

    @rule(pick=PICK)
    def container_crashes(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.crash(name)

    @rule(pick=PICK)
    def evict(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.evict(name)

    @rule(pick=PICK)
    def user_deletes_a_pod(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.delete_pod(name)

    @rule(pick=PICK)
    def pod_vanishes(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.delete_pod(name, grace=0)

    @rule(pick=PICK)
    def node_is_lost(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.lose_node_of(name)

    @rule(pick=PICK)
    def node_is_deleted(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.delete_node_of(name)

    @rule(pick=PICK)
    def node_shuts_down(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.shut_down_node_of(name)

    @rule(pick=PICK)
    def container_hangs(self, pick: int) -> None:
        if name := self.pod(pick, recorded=True):
            self.cluster.hang(name)

    @rule(pick=PICK, ready=st.booleans())
    def foreign_container_fails(self, pick: int, ready: bool) -> None:
        """Of a pod that was started; it counts nowhere."""
        if (name := self.pod(pick)) and is_started(self.cluster.children["Pod"][name]):
            ended = {"exitCode": 1, "finishedAt": self.cluster.node_time(name)}
            state = {"running": {"startedAt": self.cluster.node_time(name)}} if ready else {"waiting": {}}
            last = {"terminated": ended}
            self.cluster.inject(name, "log-shipper", restartCount=1 + pick, state=state, lastState=last, ready=ready)

    @rule(pick=PICK)
    def somebody_keeps_a_pod(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.children["Pod"][name]["metadata"]["finalizers"] = ["backup.example.com/hold"]

    @rule()
    def finalizers_are_taken_off(self) -> None:
        self.cluster.keep()

    @rule()
    def end_deleted(self) -> None:
        self.cluster.end_deleted()

    # The scheduler, and other jobs.

    @rule(pick=PICK)
    def schedule(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.schedule(name)

    @rule(pick=PICK, gated=st.booleans())
    def gate(self, pick: int, gated: bool) -> None:
        if name := self.pod(pick):
            self.cluster.children["Pod"][name]["spec"]["schedulingGates"] = [{"name": "example.com/queue"}] * gated

    @rule(urgent=st.booleans(), refused=st.booleans())
    def others_wait(self, urgent: bool, refused: bool) -> None:
        self.cluster.contention = Contention((-1, "", "other") if urgent else None, refused)

    # The driver. One runs only where its pod does.

    def driver_runs(self) -> bool:
        return not self.ended and any(
            c.get("status") == "True" for p in self.cluster.pods(Role.DRIVER) for c in p["status"]["conditions"]
            if c["type"] == "Ready"
        )  # fmt: skip

    @precondition(lambda self: self.driver_runs())
    @rule()
    def driver_starts(self) -> None:
        self.cluster.tokens += 1
        self.cluster.drive(demand={"incarnationRequest": f"token-{self.cluster.tokens}"})

    @precondition(lambda self: self.driver_runs() and self.cluster.number)
    @rule(steps=st.integers(0, 2))
    def step(self, steps: int) -> None:
        self.cluster.train(steps)

    @precondition(lambda self: self.driver_runs() and self.cluster.number)
    @rule(replicas=st.integers(0, 6), first=PICK, drained=st.booleans(), stale=st.booleans())
    def driver_demands(self, replicas: int, first: int, drained: bool, stale: bool) -> None:
        pods = self.cluster.rollout_pods()
        more = {"giveFirst": [pods[first % len(pods)]]} if pods else {}
        if drained and self.cluster.leaving:
            self.drained |= set(self.cluster.leaving)
            more["drained"] = list(self.cluster.leaving)
        self.cluster.ask(replicas, **more, **({"incarnation": self.cluster.number - 1} if stale else {}))

    @precondition(lambda self: self.driver_runs() and self.cluster.number and plays(self.cluster))
    @rule(replicas=st.integers(0, 3), drained=st.booleans())
    def driver_demands_environments(self, replicas: int, drained: bool) -> None:
        leaving = self.cluster.leaving_environments
        more = {"drained": leaving} if drained and leaving else {}
        self.drained |= set(leaving) if drained else set()
        self.cluster.ask_for_environments({"name": "games", "replicas": replicas, **more})

    @precondition(lambda self: self.driver_runs() and self.cluster.number)
    @rule()
    def driver_stops_for_suspend(self) -> None:
        self.cluster.train(0, "Suspended")

    @precondition(lambda self: self.driver_runs() and self.cluster.number)
    @rule(state=st.sampled_from(["Succeeded", "Failed"]), often=st.integers(0, 9))
    def driver_ends(self, state: str, often: int) -> None:
        if often == 0:
            self.cluster.train(0, state)

    # The user.

    @rule(suspend=st.booleans())
    def toggle_suspend(self, suspend: bool) -> None:
        if not self.ended:
            self.cluster.edit(suspend=suspend)

    @rule(replicas=st.integers(0, 4), least=st.integers(0, 2))
    def scale(self, replicas: int, least: int) -> None:
        if not self.ended:
            self.cluster.edit(rollout={"replicas": replicas, "minReplicas": min(least, replicas)})

    @rule()
    def somebody_deletes_the_token(self) -> None:
        self.cluster.children["Secret"].clear()

    @rule(name=st.sampled_from(["sums-job", "sums-reward", "sums-environment"]), gone=st.booleans())
    def somebody_edits_a_policy(self, name: str, gone: bool) -> None:
        policies = self.cluster.children["NetworkPolicy"]
        if name in policies and gone:
            del policies[name]
        elif name in policies:
            policies[name]["spec"] = {"podSelector": {}}

    @rule(kind=st.sampled_from(["Service", "ServiceAccount", "PersistentVolumeClaim"]))
    def somebody_takes_labels_away(self, kind: str) -> None:
        for found in self.cluster.children[kind].values():
            found["metadata"]["labels"] = {}

    # What holds at all times.

    @invariant()
    def one_pod_a_place(self) -> None:
        places = [place(pod) for pod in remaining_pods(self.cluster)]
        assert len(places) == len(set(places))

    @invariant()
    def attempts_only_grow(self) -> None:
        """A pod made later at a place has a higher attempt, so a name never means two pods."""
        newest: dict[tuple[str, str, int], int] = {}
        for pod in self.cluster.created:
            attempt = int(pod["metadata"]["labels"][LABEL_ATTEMPT])
            assert attempt > newest.get(place(pod), -1)
            newest[place(pod)] = attempt

    @invariant()
    def a_pod_that_is_given_back_is_no_loss(self) -> None:
        """Whatever happens to it once the driver has drained it and the job's plan has let it go."""
        roles = self.cluster.status.roles
        recorded = {
            f"sums-{role}-{where}-a{record.attempt}"
            for role in (Role.ROLLOUT, Role.ENVIRONMENT)
            for where, record in remembered(getattr(roles, role) if roles else None).records.items()
        }
        told = {record.pod for record in self.cluster.status.restart_history or ()}
        for name in self.drained - recorded:
            self.let_go.setdefault(name, name in told)
        assert not [name for name, before in self.let_go.items() if name in told and not before]

    @invariant()
    def one_number_a_request_and_growing(self) -> None:
        allocation = self.cluster.status.allocation
        if allocation and (granted := allocation.incarnation):
            assert granted.number >= max(self.numbers.values(), default=0)
            new = granted.request not in self.numbers
            assert not new or granted.number > max(self.numbers.values(), default=0)
            self.numbers[granted.request] = granted.number

    @invariant()
    def the_end_is_the_end(self) -> None:
        status = self.cluster.status
        if self.ended:
            assert status.phase is self.ended
            assert len(self.cluster.created) == self.created_at_end
        elif any(holds(status.conditions, t) for t in (ConditionType.SUCCEEDED, ConditionType.FAILED)):
            assert status.phase is not None
            self.ended, self.created_at_end = status.phase, len(self.cluster.created)

    @invariant()
    def others_are_left_alone(self) -> None:
        assert self.cluster.children["Pod"]["sums-trainer-0-a7"] == self.foreign

    def teardown(self) -> None:
        """Left in peace, it comes to rest where the spec says, and stays there."""
        cluster = self.cluster
        for _ in range(40):
            made = cluster.reconcile()
            cluster.end_deleted()
            if made.empty and made.look_again_seconds is None and all_started(cluster):
                break
            cluster.start_all()
            if made.empty and made.look_again_seconds is not None:
                cluster.advance(made.look_again_seconds + 1)
        else:
            raise AssertionError("no rest")
        assert plan(cluster.observed(), cluster.now).empty
        status = cluster.status
        if status.phase in {Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED}:
            assert not remaining_pods(cluster)
            assert status.phase is not Phase.SUSPENDED or cluster.job["spec"]["suspend"]
        else:
            granted = rollout_grant(status)
            assert granted
            assert (granted.replicas, granted.leaving) == (expected_replicas(cluster), None)
            assert len(remaining_pods(cluster)) == 1 + granted.replicas + 3 + 2 + expected_environments(cluster)
            assert not cluster.leaving_environments
            assert holds(status.conditions, ConditionType.ROLES_READY)
            assert {pod["metadata"]["annotations"][ANNOTATION_RAY_TOKEN] for pod in remaining_pods(cluster)} == {
                status.ray_token_secret
            }
            assert all(policy["spec"] != {"podSelector": {}} for policy in cluster.children["NetworkPolicy"].values())
        cluster.delete_job()
        assert [pod["metadata"]["uid"] for pod in cluster.children["Pod"].values()] == ["foreign"]
        left = {kind: list(found) for kind, found in cluster.children.items() if found}
        del left["Pod"]
        assert left in ({}, {"PersistentVolumeClaim": ["sums-checkpoint"]})


def expected_replicas(cluster: SimulatedCluster) -> int:
    """Rollout pods by the rule, read off the objects."""
    bounds, demand = cluster.job["spec"]["rollout"], cluster.job["status"].get("demand", {}).get("rollout")
    counts = demand is not None and demand["incarnation"] == cluster.number
    asked = demand["replicas"] if demand and counts else bounds["replicas"]
    return max(min(asked, bounds["replicas"]), bounds.get("minReplicas", 0))


def plays(cluster: SimulatedCluster) -> bool:
    """Whether the job has environments."""
    return "environments" in cluster.job["spec"]


def expected_environments(cluster: SimulatedCluster) -> int:
    """Environment pods by the rule, read off the objects: one of pool tools, and two of games unless the driver asks for fewer."""
    if not plays(cluster):
        return 0
    demand = cluster.job["status"].get("demand", {}).get("environment")
    counts = demand is not None and demand["incarnation"] == cluster.number
    return 1 + (max(min(demand["pools"][0]["replicas"], 2), 1) if demand and counts else 2)


def remaining_pods(cluster: SimulatedCluster) -> list[dict]:
    """Returns the pods that have not ended, or that more than finalizers keep."""
    return [
        pod
        for pod in cluster.pods()
        if not (pod["metadata"].get("finalizers") and pod["metadata"].get("deletionGracePeriodSeconds") == 0)
    ]


def all_started(cluster: SimulatedCluster) -> bool:
    """Whether every pod is ready."""
    return all(is_started(pod) for pod in remaining_pods(cluster))


def is_started(pod: dict) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])


JobLife.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestJobLife = JobLife.TestCase
