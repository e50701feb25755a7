"""Jobs that wait for room for their pods, found without a look at the others. In memory; no awaits, no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from longboat_operator.model import Contention, JobKey, Object, Rank
from longboat_operator.reading.waiting import half_placed_rank, is_refused_by_quota, keeps_unplaced_pods


class WaitingJobs:
    """Holds what plans need to know of other jobs. Follows the jobs' statuses, so every operator sees the same."""

    def __init__(self) -> None:
        self._ranks: dict[JobKey, Rank] = {}
        # All of `_ranks`, in order.
        self._order: list[Rank] = []
        self._refused: defaultdict[str, set[JobKey]] = defaultdict(set)
        self._unplaced: defaultdict[str, set[JobKey]] = defaultdict(set)

    def note(self, key: JobKey, job: Object | None) -> None:
        """Takes the job as it is now; None: it is gone."""
        self._note_rank(key, half_placed_rank(job) if job else None)
        _note(self._refused, key, holds=job is not None and is_refused_by_quota(job))
        _note(self._unplaced, key, holds=job is not None and keeps_unplaced_pods(job))

    def besides(self, key: JobKey) -> Contention:
        """Summarizes the jobs besides this one."""
        own = self._ranks.get(key)
        first = next((rank for rank in self._order[:2] if rank != own), None)
        return Contention(first, bool(self._refused.get(key.namespace, set()) - {key}))

    def disturbed_by(self, key: JobKey, old: Object | None, new: Object | None) -> set[JobKey]:
        """Returns the other jobs that have to be planned because of a noted change of a job.

        Rule: those with pods but no nodes that learn by it that a quota refuses another job's pod. Jobs with some nodes look at their rank
        when their time is over, so other jobs' changes needn't wake them.
        """
        if new is None or not is_refused_by_quota(new) or (old is not None and is_refused_by_quota(old)):
            return set()
        before = self._refused[key.namespace] - {key}
        unplaced = self._unplaced.get(key.namespace, set()) - {key}
        if not before:
            return unplaced
        # One that was the only refused job learns of another one; all others know.
        return unplaced & before if len(before) == 1 else set()

    def _note_rank(self, key: JobKey, rank: Rank | None) -> None:
        old = self._ranks.get(key)
        if old == rank:
            return
        if old is not None:
            del self._order[bisect_left(self._order, old)]
            del self._ranks[key]
        if rank is not None:
            insort(self._order, rank)
            self._ranks[key] = rank


def _note(jobs: defaultdict[str, set[JobKey]], key: JobKey, *, holds: bool) -> None:
    if holds:
        jobs[key.namespace].add(key)
    elif key in jobs.get(key.namespace, ()):
        jobs[key.namespace].discard(key)
        if not jobs[key.namespace]:
            del jobs[key.namespace]
