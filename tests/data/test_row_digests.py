"""Digests of rows: the same for the same values, and different where a row is."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from longboat_runtime.data.source import RowDigests
from longboat_runtime.data.tables import JsonLines, Parquet, Table


def digests(records: list[dict]) -> dict[str, str]:
    rows = RowDigests(len(records))
    for row, record in enumerate(records):
        rows.add(row, record)
    return rows.digests


@given(st.integers(1, 1000), st.data())
def test_one_changed_row_changes_the_block_that_names_it(count: int, data: st.DataObject) -> None:
    records = [{"prompt": str(row), "answer": row} for row in range(count)]
    changed = data.draw(st.integers(0, count - 1))
    before = digests(records)
    records[changed] = {"prompt": str(changed), "answer": -1}
    after = digests(records)
    assert before.keys() == after.keys()
    assert len(before) <= 257
    (name,) = [name for name in before if before[name] != after[name]]
    first, *last = [int(word) for word in name.split() if word.isdecimal()]
    assert first <= changed <= (last or [first])[0]


def test_neither_the_order_of_columns_nor_the_format_of_the_file_matters(tmp_path: Path) -> None:
    records = [{"prompt": [{"role": "user", "content": "é"}], "answer": row, "score": 0.5} for row in range(3)]
    lines = "".join(json.dumps(dict(reversed(record.items()))) + "\n\n" for record in records)
    (tmp_path / "rows.jsonl").write_text(lines)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    tables: list[Table] = [JsonLines(tmp_path / "rows.jsonl", ""), Parquet(tmp_path / "rows.parquet", "")]
    for table in tables:
        assert digests([table.record(row) for row in range(len(table))]) == digests(records)


def test_values_do_not_run_into_each_other() -> None:
    one, other = digests([{"a": "x"}, {"a": "y"}]), digests([{"a": "y"}, {"a": "x"}])
    assert one.keys() == other.keys()
    assert one != other
