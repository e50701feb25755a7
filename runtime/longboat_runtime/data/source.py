"""Prompt sources: the training rows in their order, and the held-out rows."""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
import xxhash

from longboat_crds.dataset import DatasetSpec, FilesSource, ReasoningGymSource, TooLongPrompts
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_crds.rounds import DomainQuota
from longboat_runtime.checkpoint.digests import ROWS, digest
from longboat_runtime.data.gym import DOMAIN as GYM_DOMAIN
from longboat_runtime.data.gym import GymTable, shares_rows
from longboat_runtime.data.order import Cursor, Order, Rows, RowSubset, draw
from longboat_runtime.data.prompts import Prompts, column, context_length, load_tokenizer
from longboat_runtime.data.protocol import RowCheck
from longboat_runtime.data.tables import Table, open_files
from longboat_runtime.samples import PromptId, Row

log = structlog.get_logger()

# How often the log says how many rows have been checked, in seconds.
_PROGRESS_SECONDS = 10.0
# Generated rows are made on demand; this many are made and checked at the start.
_GENERATED_ROWS_CHECKED = 32
# After this many consecutive generated rows that are too long, all are assumed to be.
_MOST_SKIPPED_IN_A_ROW = 10_000
# How many domains a message names at most.
_DOMAINS_NAMED = 5
# How many digests of rows a checkpoint holds at most.
_BLOCKS = 256


class TablePrompts:
    """Implements `protocol.PromptSource` over a table. Checks all rows of files at the start, and generated rows as they are drawn.

    With `quotas`, rows are drawn by domain, and each domain has its own cursor. With `dataset.tooLongPrompts: Skip` the cursors
    pass over rows that are too long as if the dataset didn't have them: they are never prompts, in any epoch. `check` says whether a row
    can be graded; it sees the rows checked at the start, of generated ones only the first. `field` is the path of the table in the spec,
    for errors. `digests` are those of the rows that were checked at the start (see `RowDigests`).
    """

    def __init__(
        self,
        table: Table,
        dataset: DatasetSpec,
        prompts: Prompts,
        order: Order,
        quotas: Sequence[DomainQuota] = (),
        field: str = "spec.dataset",
        check: RowCheck | None = None,
    ) -> None:
        self._table, self._prompts, self._order, self._field = table, prompts, order, field
        self._skips = dataset.too_long_prompts is TooLongPrompts.SKIP
        self._generated = isinstance(table, GymTable)
        self._too_long: set[int] = set()
        domains, rows = [], RowDigests(len(table))
        checked = min(len(table), _GENERATED_ROWS_CHECKED) if self._generated else len(table)
        last_progress = time.monotonic()
        for row in range(checked):
            if time.monotonic() >= last_progress + _PROGRESS_SECONDS:
                log.info("rows are being checked", table=field, checked=row, rows=checked)
                last_progress = time.monotonic()
            place = table.place(row)
            with _reading(place, field):
                record = table.record(row)
                rows.add(row, record)
                try:
                    prompts.check(record, place)
                except SpecProblem as problem:
                    self._skip(row, problem)
                domain, truth = self._labels(record, place)
                if check is not None:
                    check(record, domain, truth, place)
            domains.append(domain)
        self.digests = rows.digests
        if len(self._too_long) == len(table):
            raise self._empty(f"all {len(table)} rows")
        self._skipped = 0 if self._generated else len(self._too_long)
        self._rows: dict[str, Rows] = {"": order}
        if quotas:
            domains += [self.domain(row) for row in range(len(domains), len(table))]
            of_domains = _rows_by_domain(domains, quotas)
            self._rows = {domain: RowSubset(order, own) for domain, own in of_domains.items()}
            for domain, own in of_domains.items():
                if self._too_long.issuperset(own.nonzero()[0].tolist()):
                    raise self._empty(f"all {own.sum()} rows of domain {domain!r}")
        self._cursors = dict.fromkeys(self._rows, Cursor())
        self._kept: dict[PromptId, Row] = {}

    def __len__(self) -> int:
        return len(self._table)

    @property
    def skipped(self) -> int | None:
        """The number of rows that are too long: all of them in files, of generated rows those that draws have met.

        None if such rows fail the job.
        """
        return self._skipped if self._skips else None

    def draw(self, count: int, domain: str = "") -> list[PromptId]:
        """Draws the next `count` prompts of a domain, which must have a quota; without quotas, of all rows.

        Raises SpecProblem if a row can't be launched, or if too many generated rows, one after another, are too long.
        """
        prompts: list[PromptId] = []
        skipped = 0
        while len(prompts) < count:
            drawn, self._cursors[domain] = draw(self._rows[domain], self._cursors[domain], count - len(prompts))
            fitting = [prompt for prompt in drawn if self._fits(prompt)]
            prompts += fitting
            skipped = 0 if fitting else skipped + len(drawn)
            if self._generated and skipped >= min(len(self._table), _MOST_SKIPPED_IN_A_ROW):
                raise self._empty(f"{skipped} rows, one after another,")
        return prompts

    def first(self, count: int) -> list[Row]:
        """Returns the first `count` rows that aren't skipped, in the order of the table, or all such rows if there are fewer.

        Raises SpecProblem if there is none, or if one of them can't be launched.
        """
        rows: list[Row] = []
        for number in range(len(self._table)):
            if len(rows) == count:
                break
            if self._fits(prompt := PromptId(0, number)):
                rows.append(self.row(prompt))
        if not rows:
            raise self._empty(f"all {len(self._table)} rows")
        return rows

    def _fits(self, prompt: PromptId) -> bool:
        """Whether the prompt is used, not skipped. Raises SpecProblem if it can't be launched and such rows aren't skipped."""
        if prompt.row not in self._too_long:
            try:
                self.row(prompt)
            except SpecProblem as problem:
                self._skip(prompt.row, problem)
            else:
                return True
        # Count in the first epoch only: it has every row once.
        self._skipped += self._generated and prompt.epoch == 0
        return False

    def _skip(self, row: int, problem: SpecProblem) -> None:
        """Notes that the row is too long, if that is the problem; raises it if not, or if such rows fail the job."""
        if not self._skips or problem.reason is not Reason.PROMPT_TOO_LONG:
            raise problem
        self._too_long.add(row)

    def _empty(self, rows: str) -> SpecProblem:
        return SpecProblem(
            Reason.DATASET_EMPTY,
            self._field,
            f"No prompt is left: {rows} have more than {self._prompts.limit} tokens, and spec.dataset.tooLongPrompts is Skip. Lower "
            f"{self._prompts.max_tokens_field}, raise {self._prompts.limiting}, or use rows with shorter prompts.",
        )

    def row(self, prompt: PromptId) -> Row:
        """Returns the row of a prompt, cached until `forget`. Raises SpecProblem if it can't be launched."""
        if prompt not in self._kept:
            place = self._table.place(prompt.row)
            with _reading(place, self._field):
                record = self._table.record(prompt.row)
                rendered = self._prompts.prompt(record, place)
                token_ids = self._prompts.tokens(rendered, place)
                domain, truth = self._labels(record, place)
            self._kept[prompt] = Row(
                prompt,
                rendered.text,
                token_ids,
                domain,
                truth,
                record,
                rendered.messages,
                rendered.prefill,
                rendered.arguments,
            )
        return self._kept[prompt]

    def forget(self, prompts: Iterable[PromptId]) -> None:
        """Drops the cached rows of these prompts, which aren't needed for now."""
        for prompt in prompts:
            self._kept.pop(prompt, None)

    def domain(self, row: int) -> str:
        """Returns the row's domain; empty if rows have none."""
        if isinstance(self._table, GymTable) and self._prompts.columns.domain == GYM_DOMAIN:
            return self._table.source.task
        return self._labels(self._table.record(row), self._table.place(row))[0]

    def _labels(self, record: Mapping[str, Any], place: str) -> tuple[str, Any]:
        """Returns the domain and ground truth of a row: empty and None where the spec names no column for them."""
        columns, field = self._prompts.columns, self._prompts.field
        domain = column(record, columns.domain, field("columns.domain"), place)
        truth = column(record, columns.ground_truth, field("columns.groundTruth"), place)
        return (str(domain) if columns.domain else ""), truth

    def state(self) -> Mapping[str, Any]:
        """Returns the cursors by domain, what determines the order (rows, seed, shuffle), the rows skipped, and the start date."""
        order = self._order
        return {
            "cursors": {domain: [cursor.epoch, cursor.position] for domain, cursor in self._cursors.items()},
            "rows": order.rows,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "skipped": self._skipped,
            "started": self._prompts.started.isoformat(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`. Raises SpecProblem if the dataset's number of rows, order or domains have changed since."""
        order = self._order
        if (state["rows"], state["seed"], state["shuffle"]) != (order.rows, order.seed, order.shuffle):
            raise SpecProblem(
                Reason.CHECKPOINT_MISMATCH,
                "spec.dataset",
                f"The checkpoint was made with {state['rows']} rows, shuffleSeed {state['seed']}, shuffle {state['shuffle']}; now "
                f"there are {order.rows} rows, shuffleSeed {order.seed}, shuffle {order.shuffle}. Restore the dataset, or start "
                "a new job.",
            )
        if set(state["cursors"]) != set(self._cursors):
            before, now = (
                ", ".join(sorted(name for name in names if name)) for names in (state["cursors"], self._cursors)
            )
            raise SpecProblem(
                Reason.CHECKPOINT_MISMATCH,
                "spec.rounds.quotas",
                f"The checkpoint was made with quotas for {before or 'no domain'}; now there are quotas for {now or 'no domain'}. Name "
                "the same domains, or start a new job.",
            )
        self._cursors = {domain: Cursor(*cursor) for domain, cursor in state["cursors"].items()}
        if self._generated:
            self._skipped = state.get("skipped", 0)


def rows_digest(records: Iterable[Mapping[str, Any]]) -> str:
    """Digests rows by their columns and values, whatever the order of columns and the format of the file."""
    return digest(b"".join(map(_bytes_of, records)))


def _bytes_of(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True).encode() + b"\n"


class RowDigests:
    """Digests the rows of a table in blocks, so that a change can be placed: at most _BLOCKS of them, all of one size but for the last."""

    def __init__(self, rows: int) -> None:
        self._rows, self._size = rows, max(1, -(-rows // _BLOCKS))
        self._blocks: dict[int, xxhash.xxh3_128] = {}

    def add(self, row: int, record: Mapping[str, Any]) -> None:
        """Adds a row; rows come in their order."""
        self._blocks.setdefault(row // self._size, xxhash.xxh3_128()).update(_bytes_of(record))

    @property
    def digests(self) -> dict[str, str]:
        """The number of rows of the table, and the digest of each block with rows that were added, by their numbers from 0 on."""
        blocks = {self._name(number): block.hexdigest() for number, block in self._blocks.items()}
        return {ROWS: str(self._rows), **blocks}

    def _name(self, block: int) -> str:
        first, last = block * self._size, min((block + 1) * self._size, self._rows) - 1
        return f"row {first}" if first == last else f"a row of {first} to {last}"


@contextmanager
def _reading(place: str, field: str) -> Iterator[None]:
    """Turns whatever a row's content makes the block raise into a SpecProblem that names the row."""
    try:
        yield
    except RecursionError as error:
        raise SpecProblem(Reason.DATASET_INVALID, field, f"{place} is nested too deeply. Remove the row.") from error
    except (ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        message = f"{place} can't be read ({type(error).__name__}: {error}). Fix or remove the row."
        raise SpecProblem(Reason.DATASET_INVALID, field, message) from error


def began(state: Mapping[str, Any] | None) -> datetime.datetime:
    """Returns when the training began whose checkpoint has this state; now, for one that begins."""
    saved = state["source"].get("started") if state else None
    return datetime.datetime.fromisoformat(saved) if saved else datetime.datetime.now(datetime.UTC)


def open_prompts(spec: RLJobSpec, state: Mapping[str, Any] | None = None) -> Prompts:
    """Opens what renders rows. `state` is that of the checkpoint from which the training resumes. Raises SpecProblem."""
    tokenizer, longest = load_tokenizer(spec.model), context_length(spec.model)
    max_tokens, bin_tokens = spec.rollout.sampling.max_tokens, spec.trainer.max_tokens_per_bin
    episodes = spec.environments is not None
    return Prompts(spec.dataset, tokenizer, longest, max_tokens, bin_tokens, began(state), episodes=episodes)


def open_source(
    dataset: DatasetSpec, prompts: Prompts, quotas: Sequence[DomainQuota] = (), check: RowCheck | None = None
) -> TablePrompts:
    """Opens the training rows. `check` says whether a row can be graded. Raises SpecProblem."""
    table = _open_table(dataset.files, dataset.reasoning_gym, "spec.dataset")
    order = Order(len(table), dataset.shuffle_seed, dataset.shuffle)
    return TablePrompts(table, dataset, prompts, order, quotas, check=check)


def open_evaluation(dataset: DatasetSpec, prompts: Prompts, check: RowCheck | None = None) -> list[Row]:
    """Reads the held-out rows, at most `maxPrompts`, in the order of the table; empty without spec.dataset.evaluation.

    Rows that are too long are skipped or an error, as in training. Raises SpecProblem.
    """
    evaluation = dataset.evaluation
    if evaluation is None:
        return []
    if evaluation.reasoning_gym is not None and dataset.reasoning_gym is not None:
        _check_disjoint(dataset.reasoning_gym, evaluation.reasoning_gym)
    table = _open_table(evaluation.files, evaluation.reasoning_gym, "spec.dataset.evaluation")
    order = Order(len(table), seed=0, shuffle=False)
    source = TablePrompts(
        table, dataset, prompts.held_out(evaluation), order, field="spec.dataset.evaluation", check=check
    )
    return source.first(evaluation.max_prompts)


def read_row(dataset: DatasetSpec, number: int) -> Row:
    """Reads one training row, not rendered: its text and tokens are empty. Raises SpecProblem, and IndexError if there is no such row."""
    table = _open_table(dataset.files, dataset.reasoning_gym, "spec.dataset")
    if not 0 <= number < len(table):
        raise IndexError(f"the dataset has no row {number}: its {len(table)} rows are 0 to {len(table) - 1}")
    place, columns = table.place(number), dataset.columns
    with _reading(place, "spec.dataset"):
        record = table.record(number)
        domain = column(record, columns.domain, "spec.dataset.columns.domain", place)
        truth = column(record, columns.ground_truth, "spec.dataset.columns.groundTruth", place)
    return Row(PromptId(0, number), "", (), str(domain) if columns.domain else "", truth, record)


def _check_disjoint(trained: ReasoningGymSource, held_out: ReasoningGymSource) -> None:
    if shares_rows(trained, held_out):
        raise SpecProblem(
            Reason.DATASET_INVALID,
            "spec.dataset.evaluation.reasoningGym.seed",
            f"Held-out rows would be training rows: row i of {trained.task!r} is made from seed + i, and training uses the seeds "
            f"{trained.seed} to {trained.seed + trained.size - 1}. Set it to {trained.seed + trained.size} or more.",
        )


def _open_table(files: FilesSource | None, gym: ReasoningGymSource | None, field: str) -> Table:
    if files is not None and gym is None:
        return open_files(files, f"{field}.files")
    if gym is not None and files is None:
        return GymTable(gym, f"{field}.reasoningGym")
    raise SpecProblem(Reason.DATASET_INVALID, field, "Give exactly one of `files` and `reasoningGym`.")


def _rows_by_domain(domains: Sequence[str], quotas: Sequence[DomainQuota]) -> Mapping[str, npt.NDArray[np.bool_]]:
    """Returns the rows of each domain as a mask [rows], given the domain of each row.

    Raises SpecProblem if a domain with a quota has no rows, or a domain with rows has no quota: its rows would never be drawn.
    """
    rows = Counter(domains)
    for index, quota in enumerate(quotas):
        if quota.domain not in rows:
            raise SpecProblem(
                Reason.DOMAINS_MISMATCH,
                f"spec.rounds.quotas[{index}].domain",
                f"No row of the dataset belongs to domain {quota.domain!r}; there are {_names(rows)}. Correct the name or "
                "spec.dataset.columns.domain, or remove the quota.",
            )
    if without_quota := {
        domain: count for domain, count in rows.items() if domain not in {quota.domain for quota in quotas}
    }:
        raise SpecProblem(
            Reason.DOMAINS_MISMATCH,
            "spec.rounds.quotas",
            f"{sum(without_quota.values())} rows belong to domains without a quota, and would never be drawn: {_names(without_quota)}. Give each "
            "domain a quota, or remove its rows from the dataset.",
        )
    domain_of_row = np.array(domains)
    return {quota.domain: domain_of_row == quota.domain for quota in quotas}


def _names(rows: Mapping[str, int]) -> str:
    named = ", ".join(repr(domain) for domain in sorted(rows, key=lambda domain: -rows[domain])[:_DOMAINS_NAMED])
    return named if len(rows) <= _DOMAINS_NAMED else f"{named} and {len(rows) - _DOMAINS_NAMED} more"
