"""When the inputs of a checkpoint and those at hand differ, and how that is told."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.checkpoint import TrainingInput
from longboat_runtime.checkpoint.digests import differences, read, spec_differences, with_weights

MODEL, DATA = TrainingInput.MODEL, TrainingInput.DATA
items = st.dictionaries(
    st.sampled_from(["a", "b", "weights in Float32 (by tensor)", "the evaluation"]), st.text(max_size=3)
)
digests = st.dictionaries(st.sampled_from(TrainingInput), items)


@given(digests, digests)
def test_what_both_sides_have_is_compared_and_what_one_lacks_entirely_is_not(saved: dict, present: dict) -> None:
    found = differences(saved, present)
    assert [each.input for each in found] == sorted((each.input for each in found), key=[*TrainingInput].index)
    for name in TrainingInput:
        texts = [each.text for each in found if each.input is name]
        before, now = saved.get(name), present.get(name)
        if before is None or now is None:
            assert not texts
            continue
        changed = {item for item in before.keys() & now.keys() if before[item] != now[item]}
        assert len(texts) == len(changed | ((before.keys() ^ now.keys()) & {"a", "b"}))
        assert all(any(text.startswith(item) for text in texts) for item in changed)


@given(digests)
def test_digests_come_back_from_a_checkpoint_as_they_were(saved: dict) -> None:
    state = json.loads(json.dumps({"digests": saved}))
    assert read(state) == saved
    assert not differences(saved, read(state))


def test_a_release_without_digests_and_a_later_one_with_more_are_read() -> None:
    assert read({}) == {}
    assert read({"digests": {"Model": {"config.json": "1"}, "Weather": {"wind": "2"}}}) == {MODEL: {"config.json": "1"}}


def test_versions_stand_in_the_text_and_digests_do_not() -> None:
    saved = {MODEL: {"config.json": "a" * 32, "old": "1"}, DATA: {"math_verify": "0.7.0"}}
    present = {MODEL: {"config.json": "b" * 32, "new": "1"}, DATA: {"math_verify": "0.8.0"}}
    assert [str(each) for each in differences(saved, present)] == [
        "Model: config.json has changed",
        "Model: old is gone",
        "Model: new is new",
        "Data: math_verify was 0.7.0, and is 0.8.0",
    ]


def test_weights_are_compared_within_a_number_format() -> None:
    saved = with_weights({MODEL: {"config.json": "1"}}, "aa", "Float32")
    assert not differences(saved, with_weights({MODEL: {"config.json": "1"}}, "bb", "BFloat16"))
    (other,) = differences(saved, with_weights({MODEL: {"config.json": "1"}}, "bb", "Float32"))
    assert other.text.startswith("weights in Float32")


def test_another_number_of_rows_can_not_be_accepted() -> None:
    saved, present = {DATA: {"number of rows": "2", "row 0": "x"}}, {DATA: {"number of rows": "3", "row 0": "y"}}
    (only,) = differences(saved, present)
    assert (only.text, only.acceptable) == ("number of rows was 2, and is 3", False)


def test_fields_of_the_spec_are_listed_with_both_values() -> None:
    before = {"trainer": {"optimizer": {"learningRate": 1e-3}}, "rewards": [{"name": "a"}], "checkpoint": {"keep": 1}}
    now = {"trainer": {"optimizer": {"learningRate": 1e-4}}, "rewards": [{"name": "a", "weight": 2}], "suspend": True}
    assert spec_differences(before, now, ["checkpoint", "suspend"]) == [
        "rewards[0].weight: unset -> 2",
        "trainer.optimizer.learningRate: 0.001 -> 0.0001",
    ]
    assert not spec_differences(before, before)
