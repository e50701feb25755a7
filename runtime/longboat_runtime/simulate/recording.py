"""Reads from a job's log what a simulation needs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longboat_runtime.rollout.step_times import merged
from longboat_runtime.rounds import events
from longboat_runtime.rounds.audit.history import LengthHistory
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.measurements import RoundMeasured, StepTimes
from longboat_runtime.samples import PromptId

# A recording has the lengths of at most this many prompts, the newest.
PROMPTS = 2048


@dataclass(frozen=True, slots=True)
class Recording:
    """Holds what a simulation needs from a recorded job.

    `quotas` has the prompts of a step by domain, or all of them under "" if rounds have no quotas. Groups have `group_size` samples;
    no response has more than `longest` tokens; prompts have `prompt_tokens` on average. `flat` is the share of prompts that were
    dropped for equal rewards, 0 for a job that drops none. `rounds` are the measured rounds whose engines have the most common size of
    those with step times; `others` counts the rest.
    """

    prompts: Sequence[PromptLengths]
    quotas: Mapping[str, int]
    group_size: int
    longest: int
    prompt_tokens: int
    flat: float
    rounds: Sequence[RoundMeasured]
    others: int

    @property
    def step_times(self) -> dict[int, StepTimes]:
        """The steps of all engines, by the number of sequences they worked on."""
        return merged(measured.step_times for measured in self.rounds)

    @property
    def max_sequences(self) -> int | None:
        """The most samples that an engine ran at once; None if none ever waited."""
        waited = any(measured.waiting for measured in self.rounds)
        return max(measured.running for measured in self.rounds) if waited else None

    @property
    def round_seconds(self) -> Sequence[float]:
        """The seconds from the opening of each round until its last response."""
        return [measured.work.seconds for measured in self.rounds if measured.work is not None]


def fold(log: Iterable[events.Entry]) -> Recording:
    """Folds a job's log into a Recording.

    Raises ValueError if it has trained no step, if no step of an engine was timed, or if samples had several turns or were in environments.
    """
    history, domains = LengthHistory(), dict[PromptId, str]()
    quotas, group_sizes, dropped, trained = dict[str, int](), Counter[int](), 0, 0
    prompt_tokens, responses, longest = 0, 0, 1
    rounds: list[RoundMeasured] = []
    for entry in log:
        history.fold(entry)
        match body := entry.body:
            case RoundMeasured():
                rounds.append(body)
            case events.Drawn(prompts=prompts, domain=domain) if domain:
                domains.update(dict.fromkeys(prompts, domain))
            case events.Generated(turns=turns, environment_seconds=seconds) if turns > 1 or seconds:
                raise ValueError(
                    "its samples are episodes, and lengths alone don't say how long their rounds take; simulate their turns by a program: see "
                    "docs/simulator.md, Episodes of several turns"
                )
            case events.Generated(prompt_tokens=tokens):
                prompt_tokens, responses, longest = prompt_tokens + tokens, responses + 1, max(longest, body.tokens)
            case events.Stopped(tokens=tokens):
                longest = max(longest, tokens)
            case events.GroupDropped(reason=DropReason.ZERO_VARIANCE):
                dropped += 1
            case events.StepCommitted(samples=samples):
                groups = Counter(sample.prompt for sample in samples)
                trained += len(groups)
                group_sizes.update(groups.values())
                for domain, count in Counter(domains.get(prompt, "") for prompt in groups).items():
                    quotas[domain] = max(count, quotas.get(domain, 0))
    sizes = Counter(measured.tensor_parallel for measured in rounds if measured.step_times)
    if not trained:
        raise ValueError("no step was trained yet; try again later")
    if not sizes:
        raise ValueError("the log has no engine step times, which earlier releases didn't record; run another job")
    size = sizes.most_common(1)[0][0]
    return Recording(
        prompts=[each.lengths(domains.get(each.prompt, "")) for each in history.newest(PROMPTS)],
        quotas=quotas,
        group_size=group_sizes.most_common(1)[0][0],
        longest=longest,
        prompt_tokens=round(prompt_tokens / max(1, responses)),
        flat=dropped / (dropped + trained),
        rounds=[measured for measured in rounds if measured.tensor_parallel == size],
        others=sum(measured.tensor_parallel != size for measured in rounds),
    )
