"""Moves CPUs for grading between running reward pods, step by step, so that their sum is never exceeded. Pure.

The capacity's plan says what each reward pool may have in the end (`reward_shares`); this is the way there. A pod's CPUs are
changed in place (KEP-1287), and the only thing that stops a node from giving a pod what its spec says is that the spec says less.
Until a pod is gone, count the largest of: recorded, requested, allocated, in force.

Every change is recorded in the status before it is asked for, and asked for as of one resourceVersion of the pod. So another
operator counts a change that a former leader has decided, whether it was sent or not; and once the pod has a later
resourceVersion, a patch of the earlier one that still comes is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from longboat_crds.base import Role
from longboat_crds.quantities import cpu_quantity, millicores
from longboat_crds.status import (
    CPU_REFUSALS,
    LINE_LENGTH,
    RECENT_CPU_MOVES,
    CpuMove,
    CpuMoveOutcome,
    CpuRefusal,
    CpuResize,
    PoolCpu,
    RewardCpuStatus,
)
from longboat_operator.model import ResizePod
from longboat_operator.plan.cpu_moves import came_from, moves_of_grant
from longboat_operator.plan.losses import loss_of
from longboat_operator.pods.names import Place
from longboat_operator.pods.workers import GRADERS
from longboat_operator.reading.cpus import PodCpu, pod_cpu
from longboat_operator.reading.times import fine_stamp, moment, seconds_until
from longboat_operator.reading.view import JobView
from longboat_operator.rejections import UNANSWERED

# How long a pod may take before its change is taken back, by what its node says. A node that has no room answers at once, and what
# would make room is unknown; one that says nothing may be busy.
PATIENCE = {"Infeasible": 0.0, "Deferred": 5.0, "Error": 5.0}
SILENT_SECONDS = 60.0
# A write may be under way for this much longer than a request may take.
AFTER_REQUEST_SECONDS = 5.0
# How long a pod keeps what it has once a change has failed: doubled with each failure in a row.
FIRST_PIN_SECONDS = 30.0
LONGEST_PIN_SECONDS = 1800.0
# While more CPUs are coming, a pod waits for its whole share. After that it is created with at least LEAST_START, and raised by at least
# LEAST_RAISE, unless its share is less.
LEAST_START = 100
LEAST_RAISE = 10


@dataclass(frozen=True, slots=True)
class RewardCpus:
    """Holds what to do about reward pods' CPUs; nothing without spec.rewardCpu.

    `resizes` are asked for once `status` is published. `promised` are millicores of pods that were to be created, by name, as
    published; `promises` those that this look adds.
    """

    status: RewardCpuStatus | None = None
    resizes: tuple[ResizePod, ...] = ()
    promised: Mapping[str, int] = field(default_factory=dict)
    promises: Mapping[str, int] = field(default_factory=dict)
    wait: float | None = None


def reward_cpus_of(
    view: JobView, places: Sequence[Place], vacant: Mapping[str, Place], now: datetime, *, runs: bool
) -> RewardCpus:
    """Plans the CPUs of all reward pods.

    `places` are those that should have a pod; `vacant` are those of pods that are to be created now, by the pod's name.

    Rules:
    * CPUs are taken from pods above their share only as far as pods below theirs, and pods that are to be created, lack them, or the total
      is exceeded (it was lowered, or somebody else has changed a pod); first from pods on a node of one that lacks them, since there they
      are the same CPUs;
    * a pod gets what lies free of the total, by the module's count: one that is to be created first, those on a node that others leave
      CPUs on next. It gets its share in one step, or, once nothing more will come, what there is, unless that is too little;
    * a change begins only at a pod that is settled, so what it had before is known;
    * a change that the API server refuses is given up. One that the node defers for too long or can't carry out (`PATIENCE`), or about
      which it says nothing, is taken back. Either way the pod keeps what it has (is pinned) for a while that doubles each time;
    * what a pinned pod was to get goes back to the pools that it came from for as long, within their bounds;
    * what takes a change back is never taken back itself: it stays counted;
    * unless the job `runs` and has a grant, CPUs are only counted.
    """
    if view.spec.reward_cpu is None:
        return RewardCpus()
    look = _CpuPlanner(view, places, vacant, now)
    if runs and view.reward_grant:
        look.judge()
        look.move()
    return look.result()


def ended(status: RewardCpuStatus) -> RewardCpuStatus:
    """Returns what stays of the status when the job has ended, and its pods are deleted."""
    return status.model_copy(update={"used": "0", "pools": None, "refusals": None, "resizes": None})


class _CpuPlanner:
    """Reads, judges and adds to the records of changes; what has to be sent follows from them."""

    def __init__(self, view: JobView, places: Sequence[Place], vacant: Mapping[str, Place], now: datetime) -> None:
        spec = view.spec.reward_cpu
        assert spec is not None
        self._view, self._vacant_places, self._now = view, vacant, now
        self._longest_write = view.observed.request_seconds + AFTER_REQUEST_SECONDS
        self._total = millicores(spec.total)
        self._old = view.status.reward_cpu or RewardCpuStatus(total=spec.total, used="0")
        self._replicas = {pool.name: pool.replicas for pool in view.spec.reward_pools}
        self._granted = {
            pool.name: millicores(pool.cpu) for pool in (view.reward_grant.pools if view.reward_grant else None) or ()
        }
        self._pods = {cpu.name: cpu for pod in view.pods[Role.REWARD] if not pod.ended and (cpu := pod_cpu(pod))}
        newest = {cpu.pod.place: cpu for cpu in self._pods.values()}  # by attempt, of which the last is the newest
        wanted = set(places)
        self._staying = {cpu.name: cpu for place, cpu in newest.items() if place in wanted and loss_of(cpu.pod) is None}
        self._resizes = {
            record.pod: record
            for record in self._old.resizes or ()
            if record.pod in (self._pods if record.before else vacant)
        }
        self._refusals = {refusal.pod: refusal for refusal in self._old.refusals or () if refusal.pod in self._pods}
        self._pinned = {name for name, refusal in self._refusals.items() if moment(refusal.until) > now}
        self._waits = [seconds_until(self._refusals[name].until, 0.0, now) for name in self._pinned]
        self._send: list[str] = []
        self._promises: dict[str, int] = {}

    # --- Changes under way ----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Ends, takes back or continues what is recorded; records what somebody else has asked for."""
        for name, record in list(self._resizes.items()):
            cpu = self._staying.get(name)
            if record.before is None or cpu is None:
                continue  # counted until the pod is there, or gone
            if cpu.spec == millicores(record.cpu):
                self._judge_applied(cpu, record)
            elif millicores(record.cpu) < cpu.spec:
                self._judge_lowering(cpu)
            else:
                self._judge_raise(cpu, record)
        for name, cpu in self._staying.items():
            unknown = name not in self._resizes and name not in self._pinned and not cpu.settled
            if unknown and cpu.actual not in {0, cpu.spec}:
                self._record(cpu, cpu.actual, cpu.spec)

    def _judge_applied(self, cpu: PodCpu, record: CpuResize) -> None:
        """Judges a change that the pod's spec already has.

        Its record ends once the pod is settled; if the node takes too long, the change is taken back.
        """
        if cpu.settled:
            del self._resizes[cpu.name]
            if cpu.name not in self._pinned and not record.takes_back:
                self._refusals.pop(cpu.name, None)
            return
        if cpu.name in self._pinned or record.takes_back or cpu.pod.phase != "Running":
            return  # taking back can't be taken back; a pod that doesn't start has another problem than its CPUs
        remaining = seconds_until(record.time, SILENT_SECONDS, self._now)
        if cpu.trouble:
            since = max(record.time, cpu.trouble_since or record.time, key=moment)
            remaining = min(remaining, seconds_until(since, PATIENCE.get(cpu.trouble, SILENT_SECONDS), self._now))
        if remaining > 0:
            self._waits.append(remaining)
            return
        before = millicores(record.before or "0")
        self._pin(cpu, before, millicores(record.cpu), cpu.trouble or "Silent", cpu.message)
        self._record(cpu, millicores(record.cpu), before, takes_back=True)
        self._send.append(cpu.name)

    def _judge_lowering(self, cpu: PodCpu) -> None:
        """Asks for less, which harms nothing whenever it arrives; gives up, and pins the pod, once that is refused."""
        if (answer := self._answer(cpu)) is None:
            self._send.append(cpu.name)
            return
        if cpu.name not in self._pinned:
            self._pin(cpu, cpu.spec, millicores(self._resizes[cpu.name].cpu), "Refused", answer)
        del self._resizes[cpu.name]

    def _judge_raise(self, cpu: PodCpu, record: CpuResize) -> None:
        """Asks for more by a patch of the recorded version.

        A pod with a later version keeps its record only while it is pinned and not settled; what is then asked for is recorded as of that
        version. The first refusal pins the pod; its record is dropped once no patch can be under way any more (`_longest_write`).
        """
        passed = cpu.version > int(record.version or 0)
        pinned = cpu.name in self._pinned
        if passed and (cpu.settled or not pinned):
            del self._resizes[cpu.name]
        elif pinned and (cpu.settled or self._answer(cpu) is not None):
            # It was refused; a former leader's patch may be under way for as long as a request takes.
            remaining = seconds_until(record.time, self._longest_write, self._now)
            if remaining > 0:
                self._waits.append(remaining)
            else:
                del self._resizes[cpu.name]
        elif (answer := self._answer(cpu)) is not None:
            self._pin(cpu, cpu.spec, millicores(record.cpu), "Refused", answer)
            self._resizes[cpu.name] = record.model_copy(update={"time": fine_stamp(self._now)})
            self._waits.append(self._longest_write)
        else:
            if passed:
                self._record(
                    cpu,
                    millicores(record.before or "0"),
                    millicores(record.cpu),
                    takes_back=bool(record.takes_back),
                )
            self._send.append(cpu.name)

    def _answer(self, cpu: PodCpu) -> str | None:
        """Returns how the API server refused the change; None if it didn't. One that got no final answer may have been carried out."""
        answer = self._view.observed.rejections.get(cpu.name)
        return None if answer is None or UNANSWERED in answer else answer

    def _pin(self, cpu: PodCpu, had: int, wanted: int, outcome: str, message: str) -> None:
        before = self._refusals.get(cpu.name)
        times = before.times + 1 if before else 1
        seconds = min(FIRST_PIN_SECONDS * 2.0 ** min(times - 1, 32), LONGEST_PIN_SECONDS)
        sources = came_from(self._old.moves or (), cpu.pool, wanted - had) if wanted > had else {}
        self._refusals[cpu.name] = CpuRefusal(
            pod=cpu.name,
            node=cpu.pod.node,
            cpu=cpu_quantity(wanted),
            outcome=outcome,
            message=message[:LINE_LENGTH],
            sources=[PoolCpu(name=name, cpu=cpu_quantity(amount)) for name, amount in sources.items()] or None,
            times=times,
            until=fine_stamp(self._now + timedelta(seconds=seconds)),
        )
        self._pinned.add(cpu.name)
        self._waits.append(seconds)

    def _record(self, cpu: PodCpu, before: int, wanted: int, *, takes_back: bool = False) -> None:
        self._resizes[cpu.name] = CpuResize(
            pod=cpu.name,
            before=cpu_quantity(before),
            cpu=cpu_quantity(wanted),
            version=str(cpu.version),
            takes_back=takes_back or None,
            time=fine_stamp(self._now),
        )

    # --- Next changes ---------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """Takes CPUs from pods above their share for those below, or beyond the total, and gives what is free."""
        targets = self._targets()
        idle = {n: c for n, c in self._staying.items() if c.settled and not (n in self._resizes or n in self._pinned)}
        lacking = {n: targets[n] - cpu.spec for n, cpu in idle.items() if targets[n] > cpu.spec}
        vacant = {n: self._share(place.pool) for n, place in self._vacant_places.items() if n not in self._resizes}
        free = self._total - self._used()
        if not lacking and not vacant and free >= 0:
            return
        coming = sum(
            max(0, millicores(record.before or "0") - millicores(record.cpu))
            for name, record in self._resizes.items()
            if name in self._staying and seconds_until(record.time, SILENT_SECONDS, self._now) > 0
        )
        coming += self._take(idle, targets, sum(lacking.values()) + sum(vacant.values()) - free - coming, lacking)
        for name, share in vacant.items():
            gain = min(share, free)
            if gain == share or (gain >= min(share, LEAST_START) and not coming):
                self._promises[name] = gain
                self._resizes[name] = CpuResize(pod=name, cpu=cpu_quantity(gain), time=fine_stamp(self._now))
                free -= gain
            else:
                free = 0  # what is free is for it
        leaving = {cpu.pod.node for n, cpu in idle.items() if cpu.pool in self._sources() and n not in lacking}
        for name in sorted(lacking, key=lambda n: (idle[n].pod.node not in leaving, -lacking[n], n)):
            gain = min(lacking[name], free)
            enough = gain == lacking[name] or (gain >= LEAST_RAISE and not coming)
            if enough and self._may_begin():
                self._record(idle[name], idle[name].spec, idle[name].spec + gain)
                self._send.append(name)
                free -= gain

    def _take(
        self, idle: Mapping[str, PodCpu], targets: Mapping[str, int], lack: int, lacking: Mapping[str, int]
    ) -> int:
        """Lowers pods that are above their share by what is lacking; returns by how much, in millicores."""
        near = {idle[name].pod.node for name in lacking}
        donors = sorted(
            (name for name, cpu in idle.items() if cpu.spec > targets[name]),
            key=lambda n: (idle[n].pod.node not in near, targets[n] - idle[n].spec, n),
        )
        taken = 0
        for name in donors:
            loss = min(idle[name].spec - targets[name], lack - taken)
            if loss <= 0 or not self._may_begin():
                break
            self._record(idle[name], idle[name].spec, idle[name].spec - loss)
            self._send.append(name)
            taken += loss
        return taken

    def _may_begin(self) -> bool:
        """Whether the memory of refusals has room for all that is under way, and one more."""
        begun = {name for name, record in self._resizes.items() if record.before}
        return len(begun | self._pinned) < CPU_REFUSALS

    def _targets(self) -> dict[str, int]:
        """Returns what each pod may have: its share, plus its pool's part of what pinned pods can't be given and had come from there."""
        back: dict[str, int] = {}
        for name in self._pinned & self._staying.keys():
            cpu, record = self._staying[name], self._resizes.get(name)
            sources = {pool.name: millicores(pool.cpu) for pool in self._refusals[name].sources or ()}
            short = self._share(cpu.pool) - max(cpu.spec, millicores(record.cpu) if record else 0)
            for source, amount in sources.items():
                if source in self._replicas and short > 0:
                    back[source] = back.get(source, 0) + min(amount, short * amount // max(sum(sources.values()), 1))
        most = {
            pool.name: pool.cpu_bounds(self._total)[1] // pool.replicas
            for pool in self._view.spec.reward_pools
            if pool.name in back
        }
        targets = {}
        for name, cpu in self._staying.items():
            share = self._share(cpu.pool)
            more = back.get(cpu.pool, 0) // self._replicas.get(cpu.pool, 1)
            targets[name] = max(share, min(share + more, most[cpu.pool])) if more else share
        return targets

    def _share(self, pool: str) -> int:
        return max(1, self._granted.get(pool, 0) // self._replicas.get(pool, 1))

    def _counted(self, name: str) -> int:
        record, cpu = self._resizes.get(name), self._pods.get(name)
        recorded = max(millicores(record.before or "0"), millicores(record.cpu)) if record else 0
        return max(recorded, cpu.counted if cpu else 0)

    def _used(self) -> int:
        return sum(self._counted(name) for name in self._pods.keys() | self._resizes.keys())

    def _sources(self) -> set[str]:
        moves = self._old.moves or ()
        return {move.source for move in moves if move.source and move.outcome is CpuMoveOutcome.UNDER_WAY}

    # --- The result -----------------------------------------------------------------------------------------------------

    def result(self) -> RewardCpus:
        """Returns the plan's part: the new status, and what to send."""
        granted = [PoolCpu(name=name, cpu=cpu_quantity(cpu)) for name, cpu in self._granted.items()]
        refusals = sorted(self._refusals.values(), key=lambda refusal: refusal.until)[-CPU_REFUSALS:]
        status = RewardCpuStatus(
            total=cpu_quantity(self._total),
            used=cpu_quantity(self._used()),
            pools=granted or None,
            moves=self._moves(granted) or None,
            refusals=refusals or None,
            resizes=[self._resizes[name] for name in sorted(self._resizes)] or None,
        )
        return RewardCpus(
            status=status,
            resizes=tuple(map(self._resize, sorted(self._send, key=self._raises))),
            promised={
                record.pod: millicores(record.cpu) for record in self._old.resizes or () if record.before is None
            },
            promises=self._promises,
            wait=min(self._waits, default=None),
        )

    def _raises(self, name: str) -> bool:
        return millicores(self._resizes[name].cpu) > self._pods[name].spec

    def _resize(self, name: str) -> ResizePod:
        cpu = self._resizes[name].cpu
        return ResizePod(name, GRADERS, cpu, cpu, version=str(self._pods[name].version))

    def _moves(self, granted: Sequence[PoolCpu]) -> list[CpuMove]:
        if list(self._old.pools or ()) != list(granted):
            return list(moves_of_grant(self._view, self._old, granted, self._now)[-RECENT_CPU_MOVES:])
        moves = self._old.moves or ()
        last = moves[-1].time if moves else None
        return [self._updated_move(move) if move.time == last else move for move in moves]

    def _updated_move(self, move: CpuMove) -> CpuMove:
        """Judges a move of the newest grant: done when each of the pool's pods has its share.

        It is incomplete while a pod of either pool is pinned and none of the others is being changed.
        """
        if move.outcome not in {CpuMoveOutcome.UNDER_WAY, CpuMoveOutcome.INCOMPLETE}:
            return move
        pods = [cpu for cpu in self._staying.values() if cpu.pool == move.target]
        share = self._share(move.target)
        all_served = all(cpu.settled and cpu.pod.phase == "Running" and cpu.spec >= share for cpu in pods)
        if all_served and len(pods) == self._replicas.get(move.target):
            seconds = (self._now - moment(move.time)).total_seconds()
            return move.model_copy(update={"outcome": CpuMoveOutcome.DONE, "seconds": f"{max(0.0, seconds):.2f}"})
        of_both = {cpu.name for cpu in self._pods.values() if cpu.pool in {move.source, move.target}}
        under_way = of_both & (self._resizes.keys() - self._pinned)
        if of_both & self._pinned and not under_way:
            return move.model_copy(update={"outcome": CpuMoveOutcome.INCOMPLETE})
        return move
