"""The columns of a row."""

import pytest

from longboat_crds.problems import SpecProblem
from longboat_runtime.data.prompts import column


def test_nested_values_are_found_by_path() -> None:
    record = {"reward_model": {"ground_truth": "42"}, "a.b": 1}
    assert column(record, "reward_model.ground_truth", "spec", "row 0") == "42"
    assert column(record, "a.b", "spec", "row 0") == 1
    assert column(record, None, "spec", "row 0") is None
    with pytest.raises(
        SpecProblem, match=r"No column 'reward_model\.nothing' in row 0\..* It has reward_model, a\.b\."
    ) as missing:
        column(record, "reward_model.nothing", "spec.dataset.columns.domain", "row 0")
    assert missing.value.field == "spec.dataset.columns.domain"
