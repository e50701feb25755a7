"""When an agent starts, ends and gives up its child."""

from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.agent.decide import Action, AgentState, Observation, Phase, Rules, next_state

RULES = Rules(quick=30.0, quick_failures=3, backoff=1.0, max_backoff=30.0)
LOCAL = Rules(patience=1.0, restart_on_success=False)


def run(
    observations: list[Observation], rules: Rules = RULES, state: AgentState | None = None
) -> tuple[AgentState, list[Action]]:
    state = state or AgentState()
    actions = []
    for seen in observations:
        state, action = next_state(state, seen, rules)
        actions.append(action)
    return state, actions


def test_a_child_starts_once_the_head_answers() -> None:
    state, actions = run(
        [Observation(0, None, refused=True), Observation(1, None), Observation(2, "a"), Observation(3, "a")]
    )
    assert actions == [Action.NONE, Action.NONE, Action.START, Action.NONE]
    assert (state.phase, state.cluster) == (Phase.RUNNING, "a")


def test_a_head_that_is_not_settled_gets_no_node_but_ends_the_last_ones() -> None:
    unsettled = Observation(1, "b", settled=False)
    assert run([Observation(0, "a"), unsettled, Observation(2, "b")])[1] == [Action.START, Action.END, Action.START]


def test_another_cluster_ends_the_child_at_once_and_a_new_one_starts() -> None:
    _, actions = run([Observation(0, "a"), Observation(1, "b"), Observation(1.5, "b")])
    assert actions == [Action.START, Action.END, Action.START]


def test_a_silent_head_ends_nothing_a_refusing_one_ends_a_local_child() -> None:
    silence = [Observation(0, "a"), *(Observation(t, None) for t in range(1, 600)), Observation(600, "a")]
    assert set(run(silence, LOCAL)[1][1:]) == {Action.NONE}
    refusal = [
        Observation(0, "a"),
        Observation(10, None, True),
        Observation(10.5, None, True),
        Observation(11, None, True),
    ]
    assert run(refusal, LOCAL)[1] == [Action.START, Action.NONE, Action.NONE, Action.END]
    assert run(refusal, RULES)[1] == [Action.START, Action.NONE, Action.NONE, Action.NONE]
    hiccup = [Observation(0, "a"), Observation(10, None, True), Observation(10.9, "a"), Observation(11.2, None, True)]
    assert run(hiccup, LOCAL)[1] == [Action.START, Action.NONE, Action.NONE, Action.NONE]


def test_quick_failures_wait_ever_longer_and_then_end_the_agent() -> None:
    state, actions = run([Observation(0, "a"), Observation(5, "a", exit_code=1)])
    assert (actions[-1], state.not_before) == (Action.END, 6.0)
    state, actions = run([Observation(5.5, "a"), Observation(6, "a"), Observation(10, "a", exit_code=1)], state=state)
    assert actions == [Action.NONE, Action.START, Action.END]
    assert state.not_before == 12.0
    state, actions = run([Observation(12, "a"), Observation(20, "a", exit_code=-9)], state=state)
    assert actions == [Action.START, Action.GIVE_UP]


def test_a_slow_failure_ends_the_agent_so_that_the_kubelet_counts_it() -> None:
    for rules in (RULES, LOCAL):
        assert run([Observation(0, "a"), Observation(30, "a", exit_code=1)], rules)[1] == [Action.START, Action.GIVE_UP]
        quick = [Observation(0, "a"), Observation(29, "a", exit_code=1), Observation(30, "a")]
        slow = [*quick, Observation(90, "a", exit_code=1)]
        assert run(slow, rules)[1] == [Action.START, Action.END, Action.START, Action.GIVE_UP]


def test_a_child_that_ends_with_its_head_has_not_failed() -> None:
    """A raylet gives up a minute after its head; the driver may see the head go before its agent does."""
    for end in (Observation(90, None, refused=True, exit_code=1), Observation(90, "b", exit_code=1)):
        state, actions = run([Observation(0, "a"), end, Observation(91, "b")])
        assert actions == [Action.START, Action.END, Action.START]
        assert state.failures == 0


def test_failures_before_a_child_that_ran_long_enough_are_forgotten() -> None:
    """Two bad starts, a week of work, a new head, one bad start: no reason to give up."""
    state, _ = run([Observation(0, "a"), Observation(1, "a", exit_code=1), Observation(2, "a")])
    state, _ = run([Observation(3, "a", exit_code=1), Observation(5, "a"), Observation(600_000, "b")], state=state)
    _, actions = run([Observation(600_001, "b"), Observation(600_002, "b", exit_code=1)], state=state)
    assert actions == [Action.START, Action.END]


def test_ending_because_of_the_head_is_no_failure() -> None:
    state = AgentState()
    for time in range(20):
        state, _ = next_state(state, Observation(time, str(time // 2)), RULES)
    assert state.failures == 0


def test_success_ends_a_driver_and_restarts_a_ray_node() -> None:
    ended = [Observation(0, "a"), Observation(20, "a", exit_code=0), Observation(200, "a"), Observation(300, "b")]
    assert run(ended, LOCAL)[1] == [Action.START, Action.END, Action.NONE, Action.NONE]
    assert run(ended, RULES)[1] == [Action.START, Action.END, Action.START, Action.END]


observations = st.lists(
    st.tuples(
        st.floats(0.01, 60),
        st.sampled_from(["a", "b", None]),
        st.booleans(),
        st.sampled_from([None, None, None, 0, 1, -9]),
    ),
    max_size=40,
)


@given(observations, st.sampled_from([RULES, LOCAL]))
def test_starts_and_ends_alternate_whatever_happens(
    steps: list[tuple[float, str | None, bool, int | None]], rules: Rules
) -> None:
    state, now, running = AgentState(), 0.0, False
    for wait, cluster, refused, code in steps:
        now += wait
        seen = Observation(now, cluster, refused and cluster is None, code if running else None)
        before = state
        state, action = next_state(state, seen, rules)
        if action is Action.START:
            assert not running
            assert cluster is not None
            assert now >= before.not_before
            running = True
        elif action in (Action.END, Action.GIVE_UP):
            assert running
            running = False
        assert (state.phase is Phase.RUNNING) == running
        if action is Action.GIVE_UP:
            assert code is not None
            assert cluster == before.cluster, "its head serves"
            assert state.failures >= rules.quick_failures or now - before.started >= rules.quick
            return
