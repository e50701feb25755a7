import datetime
import json
from decimal import Decimal

from longboat_runtime.data.columns import plain


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
