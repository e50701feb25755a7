"""The metrics of a batch by groups and domains: pass@k, and what each domain's rewards and lengths are. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# This many domains have metrics of their own: those with the most groups, dropped ones included.
MOST_DOMAINS = 64


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """One group: the rewards of its samples, as far as they have one, and the number of response tokens of each.

    `solved` says of each sample of which it can be told whether it solves the row, `equal_scores` whether all samples are worth the same.
    """

    domain: str
    rewards: Sequence[float]
    tokens: Sequence[int]
    solved: Sequence[bool]
    equal_scores: bool

    @property
    def all_solved(self) -> bool:
        """Whether it can be told of each sample that it solves the row."""
        return len(self.solved) == len(self.rewards) and all(self.solved)


def group_metrics(groups: Sequence[GroupOutcome], given_up: Sequence[GroupOutcome]) -> dict[str, float]:
    """Returns the metrics of the groups of a step's batch; `given_up` are those of its round that were dropped for their equal scores.

    `critic/zero_variance` is the share of groups with equal scores, the dropped ones included; `critic/pass@K` is over the batch. The
    MOST_DOMAINS domains with most groups, dropped ones included, also have `critic/zero_variance/DOMAIN` and, if they are in the batch,
    `critic/rewards/DOMAIN/mean` and `response_length/DOMAIN/mean`.
    """
    dropped = Counter(group.domain for group in given_up)
    metrics = {f"critic/{name}": value for name, value in pass_rates([group.solved for group in groups]).items()}
    metrics |= _zero_variance("critic/zero_variance", groups, sum(dropped.values()))
    by_domain: dict[str, list[GroupOutcome]] = {domain: [] for domain in dropped if domain}
    for group in groups:
        if group.domain:
            by_domain.setdefault(group.domain, []).append(group)
    largest = sorted(by_domain, key=lambda domain: (-len(by_domain[domain]) - dropped.get(domain, 0), domain))
    for domain in sorted(largest[:MOST_DOMAINS]):
        members = by_domain[domain]
        metrics |= _mean(f"critic/rewards/{domain}/mean", [reward for group in members for reward in group.rewards])
        metrics |= _mean(f"response_length/{domain}/mean", [tokens for group in members for tokens in group.tokens])
        metrics |= _zero_variance(f"critic/zero_variance/{domain}", members, dropped.get(domain, 0))
    return metrics


def pass_rates(groups: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Computes `pass@K` for K = 1, 2, 4, ... up to the largest group: the mean over the groups with at least K samples.

    `groups` says of each sample whether it solves its row.
    """
    largest = max(map(len, groups), default=0)
    rates = {}
    for k in _powers_of_two(largest):
        counted = [(len(solved), sum(solved)) for solved in groups if len(solved) >= k]
        rates[f"pass@{k}"] = math.fsum(pass_at_k(n, passed, k) for n, passed in counted) / len(counted)
    return rates


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Returns the chance that at least one of `k` responses, drawn without replacement from `n` of which `passed` pass, passes.

    This is the unbiased estimator of pass@k (Chen et al. 2021, arXiv:2107.03374, equation 1). Raises ValueError unless 0 < k <= n.
    """
    if not 0 < k <= n:
        raise ValueError(f"k is {k}, but there are {n} responses")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def _powers_of_two(largest: int) -> Iterator[int]:
    k = 1
    while k <= largest:
        yield k
        k *= 2


def _zero_variance(name: str, groups: Sequence[GroupOutcome], dropped: int) -> dict[str, float]:
    count = len(groups) + dropped
    return {name: (sum(group.equal_scores for group in groups) + dropped) / count} if count else {}


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: math.fsum(values) / len(values)} if values else {}
