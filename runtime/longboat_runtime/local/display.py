"""Shows a local run to a person: what the driver is doing, a line per step, and a table at the end."""

from __future__ import annotations

import math
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from longboat_crds.problems import SpecProblem
from longboat_crds.status import Problem, TrainingState
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.record import Record
from longboat_runtime.trainer.protocol import PACKED

# Heading, metric, format: what people look at first.
COLUMNS = (
    ("reward", "critic/score/mean", ".3f"),
    ("held-out", "val/score/mean", ".3f"),
    ("accuracy", "val/accuracy/mean", ".3f"),
    ("length", "response_length/mean", ".0f"),
    ("longest", "response_length/max", ".0f"),
    ("grad", "actor/grad_norm", ".3f"),
    ("parity", "sync/parity_max", ".0e"),
    ("gen s", "timing_s/gen", ".1f"),
    ("train s", "timing_s/update_actor", ".1f"),
    ("sync s", "timing_s/update_weights", ".1f"),
    ("step s", "timing_s/step", ".1f"),
)
_WIDTH = 9


class Display:
    """A metrics sink that prints a line for each record, above a line that says what is happening."""

    def __init__(self, job: Job, console: Console) -> None:
        self._job, self._console = job, console
        self._records: list[Record] = []
        self._printed_subjects: set[str] = set()
        self.now = "starting"
        self._problem: Problem | None = None
        self._line = console.status(self.now)

    def __enter__(self) -> Display:
        self._console.print(
            f"job {self._job.identity}, {self._job.spec.rounds.steps} steps, in {self._job.root}", highlight=False
        )
        self._line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.stop()

    def show(self, status: DriverStatus) -> None:
        """Shows the driver's status; some parts of it, and each reason of a problem, as a line, the first time only."""
        training, problem = status.training, status.problem
        self._problem = problem
        if problem and not (training and training.state is TrainingState.FAILED):
            self._print_once(problem.reason, explained(problem, "yellow"))
        if training and training.skipped_prompts:
            self._print_once("skipped", f"{training.skipped_prompts} prompts are too long and are skipped")
        if training and training.attention not in (None, PACKED):
            self._print_once("attention", f"samples are {training.attention}")
        for difference in (training.resumed.accepted or ()) if training and training.resumed else ():
            self._print_once(difference, f"resumed all the same: {difference}")
        for tracker, place in (training.tracking.to_json() if training and training.tracking else {}).items():
            self._print_once(tracker, f"tracked in {place}")
        step = f"step {training.step} of {training.steps}: {training.stage or 'waiting'}" if training else "starting"
        self.now = f"{step}  [yellow]{problem.reason}: {escape(problem.message)}[/yellow]" if problem else step
        self._line.update(self.now)

    def _print_once(self, subject: str, line: str) -> None:
        """Prints the line, the first time that there is something to say about the subject."""
        if subject not in self._printed_subjects:
            self._printed_subjects.add(subject)
            self._console.print(line, highlight=False)

    def write(self, record: Record) -> None:
        if not self._records:
            self._console.print(heading(), highlight=False, soft_wrap=True)
        self._records.append(record)
        self._console.print(line(record), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def summarise(self) -> None:
        """Prints first, last and mean of every column that has values, and the problem that the job still had at its end."""
        table = Table(box=None, header_style="bold")
        for title in ("", "first", "last", "mean"):
            table.add_column(title, justify="left" if not title else "right")
        for title, name, form in COLUMNS:
            values = [record.metrics[name] for record in self._records if name in record.metrics]
            if values:
                mean = math.fsum(values) / len(values)
                table.add_row(title, *(format(value, form) for value in (values[0], values[-1], mean)))
        self._console.print(table)
        if self._problem:
            self._console.print(explained(self._problem, "yellow"), highlight=False)


def explained(problem: Problem | SpecProblem, colour: str) -> str:
    """Formats a problem for a console (pure)."""
    field = f" {escape(problem.field)}" if problem.field else ""
    return f"[{colour}]{problem.reason}[/{colour}]{field}\n{escape(problem.message)}"


def heading() -> str:
    """Formats the titles above the lines (pure)."""
    return f"{'step':>6}" + "".join(f"{title:>{_WIDTH}}" for title, _, _ in COLUMNS)


def line(record: Record) -> str:
    """Formats one step (pure)."""
    values = [format(record.metrics[name], form) if name in record.metrics else "" for _, name, form in COLUMNS]
    return f"{record.step:>6}" + "".join(f"{value:>{_WIDTH}}" for value in values)
