"""Random interleavings under all policies, with and without chunks and episodes: finish, move, abort, pause, lose, wait for a slot, grade,
accumulate, lose chunks, duplicate, late, skip, restart and edits of the spec.

    python -m tests.rounds.interleavings 10000

runs this many, different ones each time, and prints how many ran under each policy (as does `make interleavings`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from longboat_runtime.rounds import events
from longboat_runtime.rounds.bounded_async import BoundedAsync
from longboat_runtime.rounds.by_domain import ByDomain
from longboat_runtime.rounds.continue_unfinished import ContinueUnfinished
from longboat_runtime.rounds.events import Event, LogEntry
from longboat_runtime.rounds.policy import Policy
from longboat_runtime.rounds.records import RoundState, SampleState
from longboat_runtime.rounds.rules import MOST_ENGINE_DEATHS, MOST_ENVIRONMENT_LOSSES, phases
from longboat_runtime.rounds.snapshot import from_snapshot, to_snapshot
from longboat_runtime.rounds.streaming import Streaming
from longboat_runtime.rounds.synchronous import Synchronous
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import GradeKind, LossCause, PromptId, SampleId
from tests.rounds.policies import Racing
from tests.rounds.world import World, replay

STEPS, PROMPTS, GROUP = 3, 2, 2
PHASES = tuple(zip("abc", phases(3), strict=True))
POLICIES = (
    Synchronous(PROMPTS, GROUP),
    Synchronous(PROMPTS, GROUP, drop_zero_variance=True),
    Racing(PROMPTS, GROUP),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.0),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.5, audit_every=2),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=2.0, sample_overcommit=1.5, drop_zero_variance=True),
    ByDomain(3, GROUP, {"a": Synchronous(1, GROUP), "b": Synchronous(2, GROUP)}),
    ByDomain(3, GROUP, {domain: TailBatching(1, GROUP, 1.5, 1.0, phase=phase) for domain, phase in PHASES}),
    ByDomain(3, GROUP, {domain: TailBatching(1, GROUP, 2.0, 1.5, True) for domain in "abc"}),
    ContinueUnfinished(PROMPTS, GROUP, prompt_overcommit=1.5),
    ContinueUnfinished(PROMPTS, GROUP, prompt_overcommit=2.5, drop_zero_variance=True),
    BoundedAsync(PROMPTS, GROUP, max_staleness=1),
    BoundedAsync(PROMPTS, GROUP, max_staleness=2, drop_zero_variance=True),
)
ON_POLICY = (Synchronous, Racing, TailBatching, ByDomain)
# Policies of jobs with environments.
OF_EPISODES = (
    Synchronous(PROMPTS, GROUP),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=1.5, sample_overcommit=1.0, episodes=True),
    TailBatching(PROMPTS, GROUP, prompt_overcommit=2.0, sample_overcommit=1.0, drop_zero_variance=True, episodes=True),
    ByDomain(
        3, GROUP, {domain: TailBatching(1, GROUP, 1.5, 1.0, phase=phase, episodes=True) for domain, phase in PHASES}
    ),
    BoundedAsync(PROMPTS, GROUP, max_staleness=1),
)
CALLBACKS = (events.Generated, events.Graded, events.Stopped, events.Paused)
LEFT_OUT = (events.DeferReason.TOO_LONG, events.DeferReason.HELD_UP)
# The least tokens of a chunk: those of one group, of two.
CHUNKS = (1, 14)


class Interleavings(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the right samples are trained."""

    @initialize(
        policy=st.sampled_from(
            [*((policy, False) for policy in POLICIES), *((policy, True) for policy in OF_EPISODES)]
        ),
        flat=st.booleans(),
        least_tokens=st.sampled_from([None, *CHUNKS]),
    )
    def begin(self, policy: tuple[Policy, bool], flat: bool, least_tokens: int | None) -> None:
        score = (
            (lambda sample: float(sample.row % 2 and sample.index)) if flat else (lambda sample: float(sample.index))
        )
        self.policy, episodes = policy
        deciding = Streaming(self.policy, least_tokens, frozenset({"main"})) if least_tokens else self.policy
        self.world = World(deciding, GROUP, score, STEPS, episodes=episodes)
        self.world.start()
        self.lowered, self.most = False, STEPS
        self.fixed: dict = {}
        self.kept: set = set()
        self.streamed: dict = {}

    def _some(self, data: st.DataObject, state: SampleState) -> SampleId:
        return data.draw(st.sampled_from(self.world.samples(state)))

    def _has(self, state: SampleState) -> bool:
        return bool(self.world.samples(state))

    @precondition(lambda self: self._has(SampleState.RUNNING))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        assert self.world.finish(self._some(data, SampleState.RUNNING))

    @precondition(lambda self: self.world.episodes and self._has(SampleState.RUNNING))
    @rule(data=st.data())
    def begin_episode(self, data: st.DataObject) -> None:
        """A pod begins an episode: nothing follows from it, and it begins once in a launch."""
        sample, before = self._some(data, SampleState.RUNNING), len(self.world.log)
        waited = not self.world.ledger.sample(sample).playing
        assert self.world.begin_episode(sample) == waited
        assert len(self.world.log) == before + waited

    @precondition(lambda self: self.world.episodes and self._has(SampleState.RUNNING))
    @rule(data=st.data(), losses=st.integers(1, MOST_ENVIRONMENT_LOSSES), held_up=st.booleans())
    def lose_episodes(self, data: st.DataObject, losses: int, held_up: bool) -> None:
        """An environment fails again and again, or its pods go, as long as the episode is played again."""
        sample = self._some(data, SampleState.RUNNING)
        for _ in range(losses):
            record = self.world.ledger.sample(sample)
            if record and record.state is SampleState.RUNNING:
                self.world.begin_episode(sample)
                assert self.world.lose_episode(sample, held_up=held_up)

    @precondition(lambda self: self.world.episodes and self._has(SampleState.GENERATED))
    @rule(data=st.data())
    def reach_deadline(self, data: st.DataObject) -> None:
        """The deadline of an episode is a grade of its sample, not a loss."""
        sample = self._some(data, SampleState.GENERATED)
        losses = self.world.ledger.sample(sample).environment_losses
        assert self.world.grade(sample, GradeKind.TIMEOUT)
        record = self.world.ledger.sample(sample)
        assert record is None or record.environment_losses == losses

    @precondition(lambda self: self._has(SampleState.RUNNING) and self.world.view.serving is not None)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """A move changes nothing but where a sample runs, and how much of it the store has: nothing follows from it."""
        sample, before = self._some(data, SampleState.RUNNING), len(self.world.log)
        assert self.world.move(sample)
        assert len(self.world.log) == before + 1

    @precondition(lambda self: self._has(SampleState.GENERATED))
    @rule(data=st.data(), kind=st.sampled_from([GradeKind.SCORED] * 6 + list(GradeKind)))
    def grade(self, data: st.DataObject, kind: GradeKind) -> None:
        assert self.world.grade(self._some(data, SampleState.GENERATED), kind)

    @precondition(lambda self: self.world.pausing)
    @rule(data=st.data(), finished=st.booleans())
    def pause(self, data: st.DataObject, finished: bool) -> None:
        """An engine returns a sample that it was told to pause; it may have ended on its own just before."""
        sample = data.draw(st.sampled_from(self.world.pausing))
        assert self.world.finish(sample) if finished else self.world.paused(sample)

    @rule(
        data=st.data(),
        state=st.sampled_from(
            [SampleState.RUNNING, SampleState.PAUSED, SampleState.GENERATED, SampleState.REWARDED, SampleState.KEPT]
        ),
    )
    def lose(self, data: st.DataObject, state: SampleState) -> None:
        if self._has(state):
            assert self.world.lose(self._some(data, state))

    @precondition(lambda self: self._streamed())
    @rule(data=st.data())
    def lose_streamed(self, data: st.DataObject) -> None:
        """The store loses what the trainer has read, or is about to read: nothing follows from it."""
        before = len(self.world.log)
        assert self.world.lose(data.draw(st.sampled_from(self._streamed())))
        assert len(self.world.log) == before + 1

    def _streamed(self) -> list[SampleId]:
        """Samples of chunks whose data the store has."""
        kept = self.world.samples(SampleState.KEPT)
        return [sample for sample in kept if self.world.ledger.streamed(sample.prompt)]

    @precondition(lambda self: self._has(SampleState.RUNNING))
    @rule(data=st.data(), deaths=st.integers(1, MOST_ENGINE_DEATHS))
    def kill_engines(self, data: st.DataObject, deaths: int) -> None:
        """One engine after another dies with a sample, as long as it is retried."""
        sample = self._some(data, SampleState.RUNNING)
        for _ in range(deaths):
            record = self.world.ledger.sample(sample)
            if record and record.state is SampleState.RUNNING:
                assert self.world.lose(sample, engine_died=True)

    @precondition(lambda self: self.world.stopping)
    @rule(data=st.data(), finished=st.booleans())
    def stop(self, data: st.DataObject, finished: bool) -> None:
        """An engine returns a sample that it was told to stop, perhaps long afterwards, perhaps complete."""
        sample = data.draw(st.sampled_from(self.world.stopping))
        before = to_snapshot(self.world.ledger)
        if not self.world.stopped(sample, finished=finished):
            assert to_snapshot(self.world.ledger) == before

    @rule(steps=st.integers(1, 2 * STEPS))
    def edit(self, steps: int) -> None:
        """The number of steps is raised, or lowered, in which case the current step is the last one."""
        self.lowered = self.lowered or steps < self.world.wanted
        self.most = max(steps, self.world.ledger.step + 1)
        self.world.edit(steps)

    @rule(count=st.integers(1, 20), quick_trainer=st.booleans())
    def proceed(self, count: int, quick_trainer: bool) -> None:
        """Nothing goes wrong for a while: group after group is generated and graded, and rounds are trained."""
        for _ in range(count):
            generated, running = self.world.samples(SampleState.GENERATED), self.world.samples(SampleState.RUNNING)
            if quick_trainer and self.world.accumulate():
                continue
            if generated:
                self.world.grade(generated[0])
            elif running:
                self.world.finish(running[0])
            elif not (self.world.train() or self.world.publish() or self.world.accumulate()):
                break

    @precondition(lambda self: self.world.streaming)
    @rule(before_losses=st.booleans())
    def accumulate(self, before_losses: bool) -> None:
        assert self.world.accumulate(before_losses=before_losses)

    @precondition(lambda self: self.world.streaming or self.world.accumulated)
    @rule()
    def lose_chunks(self) -> None:
        """A rank dies during a chunk, between two, or during the step."""
        assert self.world.lose_chunks()

    @rule()
    def late_chunk(self) -> None:
        """Chunks that are done or lost are reported once more."""
        before, step = to_snapshot(self.world.ledger), self.world.ledger.step
        present = {(chunk.step, chunk.number) for chunk in self.world.streaming}
        for body in [event.body for event in self.world.log]:
            if isinstance(body, events.ChunkStarted) and (body.step, body.number) not in present:
                assert not self.world.record(events.ChunkDone(body.step, body.number))
        assert not self.world.record(events.ChunksLost(step))
        assert to_snapshot(self.world.ledger) == before

    @rule()
    def train(self) -> None:
        self.world.train()

    @precondition(lambda self: self.world.training)
    @rule(all_of_them=st.booleans())
    def skip(self, all_of_them: bool) -> None:
        """The gradients of a step, or of some minibatches of it, are not finite."""
        self.world.train(skipped=1, dropped=events.DropReason.NOT_FINITE if all_of_them else None)

    @rule()
    def publish(self) -> None:
        self.world.publish()

    @precondition(lambda self: self.world.log)
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        """The same numbered event arrives again."""
        before = to_snapshot(self.world.ledger)
        assert not self.world.ledger.apply(data.draw(st.sampled_from(self.world.log)))
        assert to_snapshot(self.world.ledger) == before

    @rule(data=st.data())
    def late(self, data: st.DataObject) -> None:
        """A callback arrives again for a sample whose state has changed: finished, graded, moved, aborted."""
        callbacks = [e.body for e in self.world.log] + self.world.late
        callbacks = [b for b in callbacks if isinstance(b, CALLBACKS)]
        stale = [b for b in callbacks if not self._expects(b)]
        if stale:
            before = to_snapshot(self.world.ledger)
            assert not self.world.record(data.draw(st.sampled_from(stale)))
            assert to_snapshot(self.world.ledger) == before

    def _expects(self, body: events.Generated | events.Graded | events.Stopped | events.Paused) -> bool:
        if isinstance(body, events.Stopped):
            return self.world.view.awaits(body.sample)
        if isinstance(body, events.Generated) and self.world.view.awaits(body.sample):
            return True
        pausing = body.sample in self.world.pausing
        if isinstance(body, events.Paused):
            return pausing
        record = self.world.ledger.sample(body.sample)
        if isinstance(body, events.Graded):
            return record is not None and record.state is SampleState.GENERATED
        return record is not None and (record.state is SampleState.RUNNING or pausing)

    @rule()
    def from_older_incarnation(self) -> None:
        before = to_snapshot(self.world.ledger)
        for sample in self.world.samples(SampleState.RUNNING):
            body = events.Lost(sample, "said by a driver that is gone")
            assert not self.world.ledger.apply(Event(self.world.ledger.seq + 1, self.world.incarnation - 1, 0.0, body))
        assert to_snapshot(self.world.ledger) == before

    @rule()
    def restart(self) -> None:
        boundary = self.world.boundary[0]
        self.fixed, self.kept, self.streamed = {}, set(), {}
        self.world.start()
        ledger = self.world.ledger
        assert (ledger.step, ledger.trained, ledger.dropped) == (
            boundary["step"],
            boundary["trained"],
            boundary["dropped"],
        )

    @invariant()
    def every_prompt_has_one_place(self) -> None:
        ledger = self.world.ledger
        places = [*ledger.queue, *ledger.groups, *self.world.fate]
        assert len(places) == len(set(places)) == ledger.drawn
        assert ledger.drawn == len(ledger.queue) + len(ledger.groups) + ledger.trained + sum(ledger.dropped.values())

    @invariant()
    def batches_are_whole_groups(self) -> None:
        for step, samples in self.world.batches.items():
            sizes: dict = {}
            for sample in samples:
                sizes[sample.prompt] = sizes.get(sample.prompt, 0) + 1
            assert set(sizes.values()) <= {GROUP}
            assert list(samples) == sorted(set(samples)), f"step {step}"

    @invariant()
    def on_policy_means_one_version(self) -> None:
        if not isinstance(self.policy, ON_POLICY):
            return
        for group in self.world.ledger.groups.values():
            version = self.world.ledger.rounds[group.round].version
            for index in group.counted:
                assert all(span.version == version for span in group.samples[index].spans)

    @invariant()
    def no_trained_token_is_too_old(self) -> None:
        policy = self.policy
        bound = policy.max_staleness if isinstance(policy, BoundedAsync) else 0
        if not isinstance(policy, ContinueUnfinished):
            assert all(staleness <= bound for staleness in self.world.oldest.values())

    @invariant()
    def first_generated_count_and_stay(self) -> None:
        """Which samples count depends only on the numbers of `generated` events, and never changes while the attempt lives."""
        for group in self.world.ledger.groups.values():
            by_number = sorted((s for s in group.samples if s.seq is not None), key=lambda s: s.seq)
            assert group.counted == [s.index for s in by_number[:GROUP]]
            key = group.prompt, group.attempt
            before = self.fixed.get(key, [])
            assert group.counted[: len(before)] == before
            self.fixed[key] = list(group.counted)

    @invariant()
    def kept_groups_are_never_unseated(self) -> None:
        ledger = self.world.ledger
        for prompt, attempt in self.kept:
            group = ledger.groups.get(prompt)
            lost_data = any(isinstance(e.body, events.Lost) and e.body.sample.prompt == prompt for e in self.world.log)
            skipped = self._skipped(prompt)
            kept = group is not None and group.attempt == attempt
            assert kept or self.world.fate.get(prompt) == "trained" or lost_data or skipped
        self.kept |= {(g.prompt, g.attempt) for g in ledger.groups.values() if g.state is SampleState.KEPT}

    @invariant()
    def streamed_groups_stay(self) -> None:
        """Until their step, or until the trainer has lost its chunks; only the round that trains next has any, whole and with final rewards."""
        rounds = list(self.world.ledger.rounds.values())
        assert not any(round_.streamed or round_.streaming or round_.chunks for round_ in rounds[1:])
        streamed = dict(rounds[0].streamed) if rounds else {}
        lost = sum(isinstance(event.body, events.ChunksLost) for event in self.world.log)
        before, before_lost = self.streamed.get("chunks", {}), self.streamed.get("lost", 0)
        if lost == before_lost:
            assert all(prompt in streamed or prompt in self.world.fate for prompt in before)
        self.streamed = {"chunks": streamed, "lost": lost}
        for prompt in streamed:
            group = self.world.ledger.groups[prompt]
            assert group.state is SampleState.KEPT
            assert group.rewarded
            assert not group.timed_out
            assert {group.samples[i].state for i in group.counted} <= {SampleState.KEPT, SampleState.LOST}
        assert self.world.ledger.step < self.world.ledger.steps or not streamed

    @invariant()
    def chunks_are_the_trainers(self) -> None:
        rounds = list(self.world.ledger.rounds.values())
        streamed = rounds[0].streamed if rounds else {}
        present = {prompt for chunk in self.world.streaming for prompt in chunk.prompts}
        assert {sample.prompt for sample in self.world.accumulated} == streamed.keys() - present

    def _skipped(self, prompt: PromptId) -> bool:
        """Whether the prompt was in a step that trained nothing."""
        steps = [event.body for event in self.world.log if isinstance(event.body, events.StepCommitted)]
        return any(sample.prompt == prompt for step in steps if step.dropped for sample in step.samples)

    @invariant()
    def no_sample_kills_engines_for_ever(self) -> None:
        """Its group is dropped once `MOST_ENGINE_DEATHS` engines have died with it, and only then."""
        deaths = Counter(
            e.body.sample for e in self.world.log if isinstance(e.body, events.Lost) and e.body.engine_died
        )
        assert max(deaths.values(), default=0) <= MOST_ENGINE_DEATHS
        assert not any(deaths[sample] == MOST_ENGINE_DEATHS for sample in self.world.samples(SampleState.RUNNING))
        killers = {sample.prompt for sample, count in deaths.items() if count == MOST_ENGINE_DEATHS}
        if self.world.episodes:  # one that is played kills them with one turn, and is reported once
            killers = {sample.prompt for sample in deaths}
        dropped = [e.body for e in self.world.log if isinstance(e.body, events.GroupDropped)]
        assert {body.prompt for body in dropped if body.reason is events.DropReason.ENGINE_DEATHS} <= killers

    @invariant()
    def no_environment_fails_for_ever(self) -> None:
        """A group is dropped once an episode of it was lost MOST_ENVIRONMENT_LOSSES times by its environment or pod, and only then."""
        losses = Counter(
            e.body.sample
            for e in self.world.log
            if isinstance(e.body, events.Lost) and e.body.cause is LossCause.ENVIRONMENT
        )
        assert max(losses.values(), default=0) <= MOST_ENVIRONMENT_LOSSES
        assert not any(losses[sample] == MOST_ENVIRONMENT_LOSSES for sample in self.world.samples(SampleState.RUNNING))
        failed = {sample.prompt for sample, count in losses.items() if count == MOST_ENVIRONMENT_LOSSES}
        dropped = [e.body for e in self.world.log if isinstance(e.body, events.GroupDropped)]
        assert {body.prompt for body in dropped if body.reason is events.DropReason.ENVIRONMENT_ERROR} <= failed

    @invariant()
    def what_holds_an_episode_up_is_not_its_length(self) -> None:
        """A group left out of a race is held up if and only if an episode of it that isn't generated waits, or was lost with its pod."""
        log = [event.body for event in self.world.log]
        waits: dict[SampleId, bool] = {}
        lost_with_pods: set[SampleId] = set()
        generated: set[SampleId] = set()
        for body in log:
            match body:
                case events.Launched(prompt=prompt, attempt=attempt, samples=samples):
                    waits |= {SampleId(*prompt, attempt, index): True for index in range(samples)}
                case events.Started():
                    waits |= dict.fromkeys(waits, True)
                case events.EpisodeStarted(sample=sample):
                    waits[sample] = False
                case events.Lost(sample=sample, held_up=held_up):
                    waits[sample] = True
                    lost_with_pods |= {sample} if held_up else set()
                case events.Generated(sample=sample):
                    generated.add(sample)
                case events.GroupDeferred(prompt=prompt, attempt=attempt, reason=reason) if reason in LEFT_OUT:
                    ids = [SampleId(*prompt, attempt, index) for index in range(GROUP)]
                    held_up = any(waits[s] or s in lost_with_pods for s in ids if s not in generated)
                    assert (reason is events.DeferReason.HELD_UP) == (held_up and self.world.episodes)

    @invariant()
    def indexes_agree_with_records(self) -> None:
        ledger = self.world.ledger
        states = [s.state for g in ledger.groups.values() for s in g.samples]
        assert {s: n for s, n in ledger.counts.items() if n} == {s: states.count(s) for s in set(states)}
        assert set(ledger.deferred_prompts) == {prompt for prompt, attempt in ledger.queue.items() if attempt}
        assert set(ledger.domains) <= {*ledger.queue, *ledger.groups}
        for domain, waiting in ledger.waiting.items():
            of = {prompt for prompt, its in ledger.domains.items() if its == domain}
            assert waiting.queue == {prompt: attempt for prompt, attempt in ledger.queue.items() if prompt in of}
            assert waiting.deferred == {prompt: one for prompt, one in ledger.deferred_prompts.items() if prompt in of}
        for round_ in ledger.rounds.values():
            for domain, part in round_.parts.items():
                for index in ("groups", "completed", "kept"):
                    whole = [prompt for prompt in getattr(round_, index) if ledger.domains[prompt] == domain]
                    assert list(getattr(part, index)) == whole
            if round_.parts:
                assert round_.launched == sum(part.launched for part in round_.parts.values())
        assert set(ledger.lost) == set(self.world.samples(SampleState.LOST))
        assert set(ledger.carried) <= set(ledger.groups)
        paused = [
            g.sample_id(s.index) for g in ledger.groups.values() for s in g.samples if s.state is SampleState.PAUSED
        ]
        unanswered = {sample for sample in paused if not ledger.sample(sample).resumable}
        assert unanswered == set(self.world.pausing)
        for group in ledger.groups.values():
            kinds = [s.kind for s in group.samples if s.kind is not None]
            assert (group.graded, group.errors) == (len(kinds), kinds.count(GradeKind.GRADER_ERROR))
        for round_ in ledger.rounds.values():
            unstreamed = [prompt for prompt in round_.kept if prompt not in round_.streamed]
            data = [s.state for p in unstreamed for s in ledger.groups[p].samples if s.counts]
            assert round_.missing == len(data) - data.count(SampleState.KEPT)
            live = {g.prompt for g in ledger.groups.values() if g.round == round_.number}
            assert set(round_.groups) == live - set(ledger.carried)
            kept = {p for p in round_.groups if ledger.groups[p].state is SampleState.KEPT}
            assert set(round_.kept) == kept
            assert round_.state is RoundState.OPEN or not round_.undecided

    @invariant()
    def replay_and_snapshot_give_the_same_state(self) -> None:
        world = self.world
        log = [LogEntry.from_json(json.loads(json.dumps(e.to_json()))) for e in world.log]
        assert log == world.log
        present = to_snapshot(world.ledger)
        assert to_snapshot(replay(log, GROUP, STEPS)) == present
        doubled = [e for event in log for e in (event, event)]
        assert to_snapshot(replay(doubled, GROUP, STEPS)) == present
        assert to_snapshot(from_snapshot(json.loads(json.dumps(present)))) == present

    @invariant()
    def quotas_hold(self) -> None:
        """No step trains more of a domain than its quota, or less unless graders failed or data was lost too late to replace it."""
        policy = self.policy
        if not isinstance(policy, ByDomain):
            return
        quotas = Counter({domain: rule.prompts_per_round for domain, rule in policy.rules.items()})
        whole = not any(isinstance(event.body, events.GroupDropped | events.Lost) for event in self.world.log)
        for samples in self.world.batches.values():
            found = Counter(self.world.domain_of(row) for _, row in {sample.prompt for sample in samples})
            assert found <= quotas
            assert found == quotas or not whole

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run()
        assert self.world.wanted <= self.world.ledger.step <= self.most, "the job ends, whatever happened"
        assert self.lowered or not self.world.ledger.groups
        RAN[str(self.policy)] += 1
        EVENTS[str(self.policy)] += len(self.world.log)


def interleavings(count: int) -> settings:
    """The settings to run `count` interleavings."""
    return settings(max_examples=count, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


# The number of interleavings that ran to their end, and of events of their last incarnations, by policy.
RAN: Counter[str] = Counter()
EVENTS: Counter[str] = Counter()


def main(count: int) -> None:
    """Raises the error of the first interleaving that fails, in its shortest form."""
    run_state_machine_as_test(Interleavings, settings=settings(interleavings(count), database=None))
    for policy in dict.fromkeys(map(str, (*POLICIES, *OF_EPISODES))):
        print(f"{RAN[policy]:7} {EVENTS[policy]:9} events  {policy}")
    print(f"{RAN.total():7} {EVENTS.total():9} events  in all; invariants held in every state")


if __name__ == "__main__":
    main(int(sys.argv[1]))
