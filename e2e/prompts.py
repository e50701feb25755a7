"""Reads from a job's event logs what became of every prompt."""

from collections import Counter
from pathlib import Path
from typing import Any

from e2e import volumes
from e2e.jobs import Job
from longboat_runtime.eventlog import newest, surviving
from longboat_runtime.rounds import events
from longboat_runtime.samples import GradeKind
from tests.support.replay import replay


def fates_in(job: Job) -> dict[str, Any]:
    """Returns the `fates` of a job whose claim the operator made, even while it runs: what is on disk is a state that it was in."""
    return fates(volumes.folder(job.cluster, job.namespace, f"{job.name}-checkpoint"))


def nothing_is_lost(job: Job) -> dict[str, Any]:
    """Returns `fates_in` the job, having asserted that no prompt or token was lost or trained twice."""
    fates = fates_in(job)
    assert (fates["lost"], fates["doubled"], fates["uncovered"]) == ([], [], [])
    return fates


def fates(root: Path) -> dict[str, Any]:
    """Counts over the surviving incarnations, and the prompts that broke the rule.

    `begun` are the steps that its incarnations went on from.

    Every prompt drawn ended once (trained or dropped), or the ledger still has it (queued or in a round): never twice, and never
    neither. `behind` counts trained responses by how many steps their oldest token's weights were behind, `mixed` those that several
    versions drew; `uncovered` are those whose spans are not just their tokens. `lost_samples` and `moved_samples` count how often
    one's engine or data was gone, and how often another engine continued one. `failed_calls` are errors of the model's endpoint that
    ended episodes, `timed_out` the samples that were graded as timeouts.
    """
    end = newest(root)
    if end is None:
        raise ValueError(f"no event log below {root}")
    log = list(surviving(root, end))
    bodies = [event.body for event in log]
    drawn = {prompt for body in bodies if isinstance(body, events.Drawn) for prompt in body.prompts}
    steps = [body for body in bodies if isinstance(body, events.StepCommitted)]
    ended = Counter(prompt for step in steps for prompt in {sample.prompt for sample in step.samples})
    ended.update(body.prompt for body in bodies if isinstance(body, events.GroupDropped))
    trained = {sample: step.step for step in steps if not step.dropped for sample in step.samples}
    generated = {body.sample: body for body in bodies if isinstance(body, events.Generated) and body.sample in trained}
    ends = {sample: [0, *(span.end for span in body.spans)] for sample, body in generated.items()}
    ledger = replay(root, end)
    waiting = {*ledger.queue, *ledger.groups}
    return {
        "begun": [body.step for body in bodies if isinstance(body, events.Started)],
        "incarnations": len({event.incarnation for event in log}),
        "deferred": sum(isinstance(body, events.GroupDeferred) for body in bodies),
        "behind": Counter(trained[sample] - 1 - body.spans[0].version for sample, body in generated.items()),
        "mixed": sum(len(body.spans) > 1 for body in generated.values()),
        "uncovered": [
            str(sample)
            for sample, body in generated.items()
            if [span.start for span in body.spans] != ends[sample][:-1] or ends[sample][-1] != body.tokens
        ],
        "lost_samples": sum(isinstance(body, events.Lost) for body in bodies),
        "moved_samples": sum(isinstance(body, events.Moved) for body in bodies),
        "failed_calls": [body.reason for body in bodies if isinstance(body, events.Lost) and "openai." in body.reason],
        "timed_out": [
            str(body.sample) for body in bodies if isinstance(body, events.Graded) and body.kind is GradeKind.TIMEOUT
        ],
        "drawn": len(drawn),
        "ended": len(ended),
        "doubled": [str(prompt) for prompt, times in ended.items() if times > 1 or prompt in waiting],
        "lost": [str(prompt) for prompt in drawn if prompt not in ended and prompt not in waiting],
    }
