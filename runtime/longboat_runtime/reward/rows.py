"""Checks whether the rewards of a job can grade the rows of its dataset. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rewards import RewardSpec
from longboat_graders.test_cases import CasesError, check_row
from longboat_runtime.data.protocol import RowCheck


def row_check(rewards: Sequence[RewardSpec]) -> RowCheck:
    """Makes the check of rows for these rewards. It raises SpecProblem for a row that one with a sandbox applies to but can't grade."""
    runs = [(index, reward) for index, reward in enumerate(rewards) if reward.sandbox is not None]

    def check(columns: Mapping[str, Any], domain: str, truth: Any, place: str) -> None:
        for index, reward in runs:
            if reward.sandbox is None or (reward.domains and domain not in reward.domains):
                continue
            try:
                check_row(reward.sandbox.format, truth, columns, python=reward.sandbox.run_command is None)
            except CasesError as error:
                raise SpecProblem(
                    Reason.TEST_CASES_INVALID,
                    f"spec.rewards[{index}].sandbox.format",
                    f"{place[:1].upper()}{place[1:]} can't be graded by reward {reward.name!r}: {error}.",
                ) from error

    return check
