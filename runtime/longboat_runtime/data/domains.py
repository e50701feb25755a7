"""Which rows are of which domain of `spec.rounds.quotas`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from longboat_crds.reasons import Reason
from longboat_crds.rounds import DomainQuota
from longboat_runtime.problems import SpecProblem

# As many domains as a message names.
_NAMED = 5

Members = Mapping[str, npt.NDArray[np.bool_]]


def members(domains: Sequence[str], quotas: Sequence[DomainQuota]) -> Members:
    """The rows of each domain as a mask [rows], given the domain of each row.

    Raises SpecProblem if a domain with a quota has no row, or one of the rows' domains has no quota: its rows would never be drawn.
    """
    rows = Counter(domains)
    for index, quota in enumerate(quotas):
        if quota.domain not in rows:
            raise SpecProblem(
                Reason.DOMAINS_MISMATCH,
                f"spec.rounds.quotas[{index}].domain",
                f"No row of the dataset is of domain {quota.domain!r}; there are {_names(rows)}. Correct the name or "
                "spec.dataset.columns.domain, or take the quota out.",
            )
    if left := {domain: count for domain, count in rows.items() if domain not in {quota.domain for quota in quotas}}:
        raise SpecProblem(
            Reason.DOMAINS_MISMATCH,
            "spec.rounds.quotas",
            f"{sum(left.values())} rows are of domains without a quota, and would never be drawn: {_names(left)}. Give each "
            "of them a quota, or take its rows out of the dataset.",
        )
    of = np.array(domains)
    return {quota.domain: of == quota.domain for quota in quotas}


def _names(rows: Mapping[str, int]) -> str:
    named = ", ".join(repr(domain) for domain in sorted(rows, key=lambda domain: -rows[domain])[:_NAMED])
    return named if len(rows) <= _NAMED else f"{named} and {len(rows) - _NAMED} more"
