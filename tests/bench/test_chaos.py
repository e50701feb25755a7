"""What the summary of `make chaos` adds up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.chaos.summary import by_kind, by_policy, write

RUN = {"kind": "run", "commit": "abc", "settings": {"seed": 3}, "machine": {"processor": "p", "cpus": 2}}


def fault(kind: str, **jobs: tuple[str, float | None]) -> dict[str, Any]:
    hit = [{"policy": p, "job": p, "step": 1, "outcome": o, "seconds": s} for p, (o, s) in jobs.items()]
    return {"kind": "fault", "number": 1, "fault": kind, "target": "x", "overlaps": False, "jobs": hit}


LINES = [
    RUN,
    fault("delete pod", Synchronous=("recovered", 4.0)),
    fault("restart API server", Synchronous=("recovered", 0.5), TailBatching=("stuck", None)),
    {"kind": "audit", "job": "s", "policy": "Synchronous", "steps": 9, "incarnations": 2, "drawn": 40, "ended": 36}
    | {"lost": ["(0, 1)"], "doubled": [], "uncovered": [], "left": []},
]


def test_a_fault_of_the_cluster_counts_for_every_job_that_it_hit() -> None:
    assert {kind: len(jobs) for kind, jobs in by_kind(LINES).items()} == {"delete pod": 1, "restart API server": 2}
    assert by_policy(LINES)["TailBatching"] == {"stuck": 1}
    assert by_policy(LINES)["Synchronous"]["recovered"] == 2


def test_what_was_lost_stands_in_the_table(tmp_path: Path) -> None:
    raw = tmp_path / "chaos.jsonl"
    raw.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    write(raw)
    text = raw.with_suffix(".md").read_text()
    assert "| Synchronous | 1 | 9 | 2 | 2 | 0 | 0 | 40 | 1 | 0 | 0 |" in text
    assert "| restart API server | 2 | 1 | 0.5 | 0.5 | 0.5 |" in text
    assert raw.with_suffix(".svg").read_text().startswith("<?xml")
