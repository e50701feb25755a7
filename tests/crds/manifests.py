"""Whole RLJobs for tests, as plain data."""

from copy import deepcopy
from typing import Any

MINIMAL: dict[str, Any] = {
    "apiVersion": "longboat.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "minimal"},
    "spec": {
        "runtimeRef": {"name": "cpu"},
        "model": {"path": "/models/tiny"},
        "dataset": {"files": {"paths": ["/data/train.jsonl"]}},
        "rounds": {"steps": 4, "promptsPerRound": 8},
        "rollout": {"sampling": {"maxTokens": 64}},
        "rewards": [{"name": "exact", "function": "rewards:exact"}],
    },
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The minimal job with values at dotted paths replaced; None removes the key. A number in a path is a list's index."""
    job = deepcopy(MINIMAL)
    for path, value in changes.items():
        *way, last = path.split(".")
        at: Any = job
        for key in way:
            at = at[int(key)] if key.isdigit() else at.setdefault(key, {})
        if value is None:
            at.pop(last, None)
        else:
            at[int(last) if last.isdigit() else last] = deepcopy(value)
    return job
