"""The metrics of episodes: those that a step trains, and what became of those of its round. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from longboat_runtime.metrics.batch import spread
from longboat_runtime.metrics.groups import MOST_DOMAINS
from longboat_runtime.rounds.episodes import EpisodeRound
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.records import SampleRecord
from longboat_runtime.samples import PromptId

# What is counted of requests (`Episode.requests`).
_REQUESTS = ("ignored", "repeats", "undelivered")


def trained_episodes(samples: Sequence[SampleRecord]) -> dict[str, float]:
    """Returns the metrics of the episodes of a step's batch; empty without samples.

    `environment/computed_to_trained` is how many tokens a forward pass computes for each one that is trained.
    """
    if not samples:
        return {}
    sizes = [sample.size for sample in samples]
    return {
        **spread("environment/turns", [float(sample.turns) for sample in samples]),
        **spread("environment/segments", [float(len(size.segments)) for size in sizes]),
        **spread("environment/seconds", [sample.environment_seconds for sample in samples]),
        **spread("environment/cpu_seconds", [sample.environment_cpu_seconds for sample in samples]),
        **{f"environment/{name}": float(sum(sample.requests.get(name, 0) for sample in samples)) for name in _REQUESTS},
        "environment/computed_to_trained": sum(size.computed for size in sizes)
        / max(1, sum(size.trained for size in sizes)),
    }


def round_episodes(round_: EpisodeRound, domains: Mapping[PromptId, str]) -> dict[str, float]:
    """Returns what became of the episodes of a round; `domains` are those of its prompts.

    `environment/dropped_share/REASON` is the share of its groups that were dropped for this reason, by domain too: that of the
    MOST_DOMAINS domains with the most groups, if there are several.
    """
    metrics = {
        "environment/losses": float(round_.losses),
        "environment/waiting_share": round_.waiting_share,
        **_shares("environment/dropped_share", [*round_.fates.values()]),
    }
    by_domain: dict[str, list[DropReason | None]] = {}
    for prompt, fate in round_.fates.items():
        if domain := domains.get(prompt):
            by_domain.setdefault(domain, []).append(fate)
    largest = sorted(by_domain, key=lambda domain: (-len(by_domain[domain]), domain))[:MOST_DOMAINS]
    for domain in sorted(largest) if len(by_domain) > 1 else ():
        metrics |= _shares(f"environment/dropped_share/{domain}", by_domain[domain])
    return metrics


def _shares(name: str, fates: Sequence[DropReason | None]) -> dict[str, float]:
    counts = Counter(fates)
    return {f"{name}/{reason}": counts[reason] / len(fates) for reason in DropReason} if fates else {}
