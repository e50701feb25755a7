import datetime
import json
from decimal import Decimal

import pytest

from longboat_runtime.data.columns import lookup, plain


def test_nested_values_are_found_by_path() -> None:
    record = {"reward_model": {"ground_truth": "42"}, "a.b": 1}
    assert lookup(record, "reward_model.ground_truth") == "42"
    assert lookup(record, "a.b") == 1
    with pytest.raises(KeyError, match=r"reward_model\.nothing"):
        lookup(record, "reward_model.nothing")


def test_plain_values_survive_json() -> None:
    value = {
        "when": datetime.date(2026, 1, 2),
        "much": Decimal("1.10"),
        "raw": b"\xff",
        "text": b"hi",
        "pair": (1, 2.5),
    }
    kept = {"when": "2026-01-02", "much": "1.10", "raw": "/w==", "text": "hi", "pair": [1, 2.5]}
    assert json.loads(json.dumps(plain(value))) == kept
