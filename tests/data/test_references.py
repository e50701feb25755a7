"""What the spec only names, and what no response could ever have."""

from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.rewards import RewardSpec
from longboat_crds.rollout import SamplingSpec
from longboat_runtime.data.references import check_tags, with_stop_tokens

SPECIAL = {5: "<|im_end|>", 6: "</think>", 7: "<answer>"}


def sampling(**fields: Any) -> SamplingSpec:
    return SamplingSpec.model_validate({"maxTokens": 16, **fields})


def test_stop_texts_that_are_special_tokens_work_as_these_tokens() -> None:
    read = with_stop_tokens(sampling(stop=["<|im_end|>", "User:"], stopTokenIds=[3]), SPECIAL, 300)
    assert (read.stop, read.stop_token_ids) == (["User:"], [3, 5])
    assert with_stop_tokens(sampling(stop=["im_end"]), SPECIAL, 300).stop == ["im_end"]


@pytest.mark.parametrize("stop", ["<|im_end|>\n", "x</think>", "<|im_end|><|im_end|>"])
def test_a_special_token_and_more_is_refused(stop: str) -> None:
    with pytest.raises(SpecProblem, match=r"has the special token .* and more") as caught:
        with_stop_tokens(sampling(stop=["a", stop]), SPECIAL, 300)
    assert caught.value.field == "spec.rollout.sampling.stop[1]"


def test_a_token_that_the_tokenizer_lacks_is_refused() -> None:
    with pytest.raises(SpecProblem, match="has 300 tokens, and none with the id 300") as caught:
        with_stop_tokens(sampling(stopTokenIds=[299, 300]), SPECIAL, 300)
    assert caught.value.field == "spec.rollout.sampling.stopTokenIds[1]"


def gym(tag: str | None = "result", **fields: Any) -> RewardSpec:
    parameters = {} if tag is None else {"tag": tag}
    return RewardSpec.model_validate({"name": "gym", "kind": "ReasoningGym", "parameters": parameters, **fields})


@pytest.mark.parametrize("stop", ["</result>", "</res", ">", "result"])
def test_a_tag_that_a_stop_text_cuts_off_is_refused(stop: str) -> None:
    with pytest.raises(SpecProblem, match="so none has </result>") as caught:
        check_tags([gym(None), gym()], sampling(stop=[stop]), ())
    assert caught.value.field == "spec.rewards[1].parameters.tag"
    check_tags([gym(None), gym()], sampling(stop=[stop], includeStop=True), ())
    check_tags([gym()], sampling(stop=["</results>"]), ())


def test_a_tag_of_special_tokens_is_refused_unless_the_text_has_them() -> None:
    with pytest.raises(SpecProblem, match="<answer> is a special token"):
        check_tags([gym("answer")], sampling(), SPECIAL.values())
    check_tags([gym("answer", specialTokens=True)], sampling(), SPECIAL.values())
