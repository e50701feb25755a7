"""Says which environment plays a row, and what it gets of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longboat_crds.environments import environment_of, task_of, withheld_columns
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.samples import Row


@dataclass(frozen=True, slots=True)
class Task:
    """A row as its environment gets it, and the pool that plays it. `arguments` are the chat template's for its requests."""

    pool: str
    environment: str
    columns: Mapping[str, Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Tasks:
    """Makes the tasks of a job's rows."""

    def __init__(self, spec: RLJobSpec) -> None:
        self._environments = list(spec.environments or ())
        self._only_pool = spec.environment_pools[0].name if spec.environment_pools else ""
        evaluation = spec.dataset.evaluation
        self._withheld = withheld_columns(spec.dataset.columns.ground_truth, spec.rewards)
        if evaluation is not None and evaluation.columns is not None:
            self._withheld |= withheld_columns(evaluation.columns.ground_truth, ())

    def task(self, row: Row) -> Task:
        """Returns the task of a row. Raises SpecProblem if no environment plays it, or if it lacks a column."""
        task = self._task(row.columns, row.domain, f"row {row.prompt.row}")
        return replace(task, arguments=row.template_arguments)

    def check(self, columns: Mapping[str, Any], domain: str, truth: Any, place: str) -> None:
        """Checks a row; see `data.protocol.RowCheck`."""
        del truth
        self._task(columns, domain, place)

    def _task(self, columns: Mapping[str, Any], domain: str, place: str) -> Task:
        environment = environment_of(self._environments, domain)
        if environment is None:
            named = ", ".join(sorted({name for each in self._environments for name in each.domains}))
            raise SpecProblem(
                Reason.DOMAINS_MISMATCH,
                "spec.environments",
                f"No environment plays {place}, whose domain is {domain!r}; they play {named}. Add one for that domain, or remove the row.",
            )
        path = f"spec.environments[{self._environments.index(environment)}]"
        return Task(
            environment.pool or self._only_pool, environment.name, task_of(environment, path, columns, self._withheld)
        )
