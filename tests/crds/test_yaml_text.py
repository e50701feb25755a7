"""JSON for YAML parsers."""

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.yaml_text import json_in_yaml
from tests.support.texts import UNUSUAL

texts = st.text() | st.text(st.characters(max_codepoint=0xFFFF))


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | texts, lambda v: st.dictionaries(texts, v) | st.lists(v))
)
def test_json_and_yaml_parsers_read_the_same(value: object) -> None:
    assert json.loads(json_in_yaml(value)) == value
    assert yaml.safe_load(json_in_yaml({"value": value})) == {"value": value}


def test_unusual_texts_are_whole_and_lone_surrogates_are_replaced() -> None:
    assert json.loads(json_in_yaml(UNUSUAL)) == yaml.safe_load(json_in_yaml(UNUSUAL)) == UNUSUAL
    assert json.loads(json_in_yaml("a\udc80b")) == "a\ufffdb"
