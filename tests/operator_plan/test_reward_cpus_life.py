"""Whatever nodes, the API server, the driver and the operator's own crashes do: the sum of CPUs holds, and it converges."""

import copy
from datetime import datetime

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from longboat_crds.quantities import cpu_quantity
from longboat_crds.status import CPU_REFUSALS, RECENT_CPU_MOVES, CpuMoveOutcome, Phase
from longboat_operator.model import REQUEST_TIMEOUT_SECONDS, ResizePod
from longboat_operator.plan.reward_cpus import AFTER_REQUEST_SECONDS
from longboat_operator.planner import plan
from tests.operator_plan.reward_cluster import RewardCluster
from tests.operator_plan.simulated_cluster import KEY
from tests.support.examples import examples

PICK = st.integers(0, 1_000)
ANSWERS = st.sampled_from(["done", "done", "allocated", "in force", "Deferred", "Infeasible", "Error"])


class CpuLife(RuleBasedStateMachine):
    """Each rule is one thing that happens. The cluster itself checks the sum at every write and every word of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = RewardCluster()
        # Patches that are under way, and when they were sent.
        self.late: list[tuple[datetime, ResizePod]] = []
        self.ever_refused: set[str] = set()

    def pod(self, pick: int) -> str | None:
        pods = self.cluster.reward_pods()
        return pods[pick % len(pods)] if pods else None

    @initialize(up=st.booleans())
    def begin(self, up: bool) -> None:
        if up:
            self.cluster.up()

    # The operator.

    @rule()
    def reconcile(self) -> None:
        seen, made = self.cluster.planned()
        kept = copy.deepcopy(seen)
        assert plan(seen, self.cluster.now) == plan(kept, self.cluster.now) == made, "deterministic"
        self.cluster.carry_out(made)

    @rule()
    def grant(self) -> None:
        self.cluster.grant()
        assert self.cluster.planned(KEY.capacity)[1].empty, "once is enough"

    @rule(cut=st.integers(0, 12))
    def crash_in_the_middle(self, cut: int) -> None:
        self.cluster.reconcile(cut)
        self.cluster.forget()

    @rule()
    def the_leader_stops_before_it_resizes(self) -> None:
        """Another one goes on, and knows nothing that isn't in the status."""
        self.late += [(self.cluster.now, action) for action in self.cluster.late(self.cluster.planned()[1])]
        self.cluster.forget()

    @precondition(lambda self: self.late)
    @rule(pick=PICK)
    def a_late_patch_comes(self, pick: int) -> None:
        sent, action = self.late.pop(pick % len(self.late))
        # One that was refused from another leader counts for as long as a request can be under way; any other for as long as it can come.
        if (
            action.name not in self.ever_refused
            or (self.cluster.now - sent).total_seconds() < REQUEST_TIMEOUT_SECONDS + AFTER_REQUEST_SECONDS
        ):
            self.cluster.resize(action)

    @rule(pick=PICK, answer=ANSWERS)
    def act_on_an_old_snapshot(self, pick: int, answer: str) -> None:
        """Between snapshot and writes a node has its say, or a pod goes."""
        _, made = self.cluster.planned()
        version = self.cluster.version
        if name := self.pod(pick):
            if pick % 5 == 0:
                self.cluster.delete_pod(name, grace=30 * (pick % 2))
            else:
                self.cluster.node(name, answer)
        self.cluster.carry_out(made, version=version)

    @rule(seconds=st.sampled_from([1, 2, 6, 20, 61, 400]))
    def time_passes(self, seconds: int) -> None:
        self.cluster.advance(seconds)

    @rule(pick=PICK, yes=st.booleans())
    def the_server_refuses(self, pick: int, yes: bool) -> None:
        if not yes:
            self.cluster.refused.clear()
        elif name := self.pod(pick):
            self.cluster.refused[name] = "forbidden: exceeded quota"
            self.ever_refused.add(name)

    # Nodes.

    @rule(pick=PICK, answer=ANSWERS)
    def node(self, pick: int, answer: str) -> None:
        if name := self.pod(pick):
            self.cluster.node(name, answer)

    @rule()
    def nodes(self) -> None:
        self.cluster.nodes()

    @rule(pick=PICK, number=st.integers(0, 2))
    def pods_are_scheduled(self, pick: int, number: int) -> None:
        if name := self.pod(pick):
            self.cluster.schedule(name, f"node{number}")

    @rule()
    def start_all(self) -> None:
        self.cluster.start_all()

    @rule(pick=PICK, grace=st.sampled_from([0, 30]))
    def a_pod_goes(self, pick: int, grace: int) -> None:
        if name := self.pod(pick):
            self.cluster.delete_pod(name, grace=grace)

    @rule(pick=PICK)
    def evict(self, pick: int) -> None:
        if name := self.pod(pick):
            self.cluster.evict(name)

    @rule()
    def end_deleted(self) -> None:
        self.cluster.end_deleted()

    # The driver and the user.

    @rule()
    def driver_starts(self) -> None:
        self.cluster.tokens += 1
        self.cluster.drive(demand={"incarnationRequest": f"token-{self.cluster.tokens}"})

    @precondition(lambda self: self.cluster.number)
    @rule(asks=st.lists(st.sampled_from([0, 500, 1000, 1900, 3000, 7000]), min_size=3, max_size=3), late=st.booleans())
    def driver_demands(self, asks: list[int], late: bool) -> None:
        """And is answered; donors have given back when the leader stops, or when it doesn't."""
        self.cluster.ask_cpus(**dict(zip(("code", "math", "style"), map(cpu_quantity, asks), strict=True)))
        self.cluster.grant()
        if late:
            self.cluster.reconcile()
            self.cluster.nodes()
            self.the_leader_stops_before_it_resizes()

    @rule(suspend=st.booleans(), often=st.integers(0, 3))
    def toggle_suspend(self, suspend: bool, often: int) -> None:
        if often == 0:
            self.cluster.edit(suspend=suspend)

    # What holds at all times.

    @invariant()
    def the_sum_holds(self) -> None:
        self.cluster.check()

    @invariant()
    def what_is_told_is_bounded(self) -> None:
        cpus = self.cluster.status.reward_cpu
        if cpus:
            assert len(cpus.moves or ()) <= RECENT_CPU_MOVES
            assert len(cpus.refusals or ()) <= CPU_REFUSALS

    def teardown(self) -> None:
        """Left in peace it comes to rest with what was granted, and stays there."""
        cluster = self.cluster
        cluster.refused.clear()
        cluster.edit(suspend=False)
        for _ in range(80):
            made = cluster.reconcile()
            cluster.end_deleted()
            cluster.start_all()
            cluster.nodes()
            if made.empty and made.look_again_seconds is None and cluster.planned()[1].empty:
                break
            if made.empty and made.look_again_seconds is not None:
                cluster.advance(made.look_again_seconds + 1)
        else:
            raise AssertionError(f"no rest: {cluster.cpus} {cluster.asks()}")
        status = cluster.status
        if status.phase in {Phase.SUCCEEDED, Phase.FAILED, Phase.SUSPENDED}:
            return
        shares = cluster.shares()
        per_pod = {"code": shares["code"], "math": shares["math"] // 2, "style": shares["style"] // 2}
        wrong = {n: cpu for n, cpu in cluster.asks().items() if cpu != per_pod[n.partition("-")[0]]}
        lacking = {n for n, cpu in wrong.items() if cpu < per_pod[n.partition("-")[0]]}
        assert not lacking, f"{wrong} of {per_pod}: {cluster.cpus}"
        assert len(cluster.asks()) == 5
        assert cluster.cpus.resizes is None
        assert all(m.outcome is not CpuMoveOutcome.UNDER_WAY for m in cluster.cpus.moves or ())


CpuLife.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestCpuLife = CpuLife.TestCase
