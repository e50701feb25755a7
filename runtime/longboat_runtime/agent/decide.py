"""Decides when an agent starts its child, ends it, and gives up. Pure.

An agent follows a Ray head, whose cluster id is new at every start (a GCS without storage forgets everything): a child belongs to
the head it was started for and is useless to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Phase(StrEnum):
    """WAITING for the head, or for the time of the next start; DONE when the child has ended as it should."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class Action(StrEnum):
    """Names what the agent does next. END kills the child with all its descendants; GIVE_UP ends the agent."""

    NONE = "none"
    START = "start"
    END = "end"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Rules:
    """Times in seconds. A child that ends within `quick` of its start has failed quickly, one that ends later slowly.

    `patience` is how long a head may refuse connections before its child is ended. Silence isn't a refusal: a slow head or network
    ends nothing. `restart_on_success` is for children that never end by themselves.
    """

    quick: float = 30.0
    quick_failures: int = 3
    backoff: float = 1.0
    max_backoff: float = 30.0
    patience: float = float("inf")
    restart_on_success: bool = True


@dataclass(frozen=True, slots=True)
class AgentState:
    """`cluster` is the head the child was started for, `failures` counts failures in a row."""

    phase: Phase = Phase.WAITING
    cluster: str | None = None
    started: float = 0.0
    not_before: float = 0.0
    failures: int = 0
    refused_since: float | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Holds what is known now.

    `cluster` is None while the head doesn't answer, `refused` says that nobody listens there, `settled` that it takes nodes.
    `exit_code` is the child's, if it has ended since the last observation.
    """

    now: float
    cluster: str | None
    refused: bool = False
    settled: bool = True
    exit_code: int | None = None


def next_state(state: AgentState, observation: Observation, rules: Rules) -> tuple[AgentState, Action]:
    """Applies the rules, in order.

    1. A child that ends with code 0 is done, without `restart_on_success`. Any other that ends although its head serves has failed.
       After a quick failure it is started again, after a wait that doubles each time, up to `max_backoff`. After `quick_failures` of
       them in a row, and after a slow one, the agent gives up, so that the kubelet restarts the container, counts that and shows it:
       what fails slowly would otherwise fail for ever unnoticed.
    2. A child that ends while its head is away, or is another, has not failed: it can't run without the one it joined.
    3. A child whose head has another cluster id, or refuses for `patience`, is ended; that is no failure of its own.
    4. A child is started once the head is settled and the wait is over.
    """
    if not observation.refused:
        state = replace(state, refused_since=None)
    elif state.refused_since is None:
        state = replace(state, refused_since=observation.now)
    if state.phase is Phase.RUNNING and observation.exit_code is not None:
        return _ended(state, observation, observation.exit_code, rules)
    if state.phase is Phase.RUNNING:
        replaced = observation.cluster is not None and observation.cluster != state.cluster
        gone = state.refused_since is not None and observation.now - state.refused_since >= rules.patience
        if replaced or gone:
            return _without_head(state, observation.now, rules), Action.END
        return state, Action.NONE
    ready = observation.cluster is not None and observation.settled
    if state.phase is Phase.WAITING and ready and observation.now >= state.not_before:
        return replace(state, phase=Phase.RUNNING, cluster=observation.cluster, started=observation.now), Action.START
    return state, Action.NONE


def _ended(state: AgentState, observation: Observation, code: int, rules: Rules) -> tuple[AgentState, Action]:
    if code == 0 and not rules.restart_on_success:
        return replace(state, phase=Phase.DONE, cluster=None), Action.END
    if observation.cluster != state.cluster:
        return _without_head(state, observation.now, rules), Action.END
    slow = observation.now - state.started >= rules.quick
    failures = 1 if slow else state.failures + 1
    wait = min(rules.backoff * 2 ** (failures - 1), rules.max_backoff)
    state = replace(state, phase=Phase.WAITING, cluster=None, failures=failures, not_before=observation.now + wait)
    return state, Action.GIVE_UP if slow or failures >= rules.quick_failures else Action.END


def _without_head(state: AgentState, now: float, rules: Rules) -> AgentState:
    """Waits for the next head; failures before a child that ran long enough are forgotten."""
    failures = 0 if now - state.started >= rules.quick else state.failures
    return replace(state, phase=Phase.WAITING, cluster=None, not_before=now, failures=failures)
