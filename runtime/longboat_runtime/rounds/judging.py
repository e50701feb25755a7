"""What becomes of a group by itself, whatever the policy. Pure."""

from __future__ import annotations

from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.policy import Action, Drop, Keep
from longboat_runtime.rounds.records import State
from longboat_runtime.rounds.view import GroupView, View
from longboat_runtime.samples import SampleId


def judge(group: GroupView | None, *, drop_zero_variance: bool) -> Action | None:
    """Keeps a group once all of it is graded; drops it for a grader error, or for equal rewards where that is asked for."""
    if group is None:
        return None
    if group.errors:
        return Drop(group.prompt, DropReason.GRADER_ERROR)
    if not group.rewarded or group.state is State.KEPT:
        return None
    if drop_zero_variance and group.zero_variance:
        return Drop(group.prompt, DropReason.ZERO_VARIANCE)
    return Keep(group.prompt)


def off_version(view: View, sample: SampleId) -> bool:
    """The sample has tokens of other weights than its round's."""
    group, record = view.group(sample.prompt), view.sample(sample)
    if group is None or record is None:
        return False
    version = view.rounds[group.round].version
    return any(span.version != version for span in record.spans)
