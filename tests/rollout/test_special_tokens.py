"""Special tokens that a response's text lacks are known by their places."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longboat_runtime.samples import SpecialToken
from longboat_runtime.special_tokens import special_texts, special_tokens, with_special_tokens

SPECIAL = ["<s>", "</s>", "<think>"]


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Bytes with two words; words of `sentencepiece` begin with a space that the decoder drops from the first."""
    if kind == "bytes":
        words, decoder = sorted(pre_tokenizers.ByteLevel.alphabet()), decoders.ByteLevel()
    else:
        words, decoder = ["▁one", "▁two", "s", "▁"], decoders.Metaspace()
    model = models.BPE(vocab={word: number for number, word in enumerate([*SPECIAL, *words])}, merges=[])
    made = Tokenizer(model)
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    made.add_tokens([AddedToken("<plain>", special=False)])
    made.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


TOKENIZERS = {kind: tokenizer(kind) for kind in ("bytes", "sentencepiece")}


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
def test_special_tokens_are_put_where_the_tokenizer_has_them(kind: str, data: st.DataObject) -> None:
    made = TOKENIZERS[kind]
    # Single bytes of ASCII: half of a character's bytes have no text of their own.
    numbers = [i for i in range(len(made)) if i < len(SPECIAL) or made.decode([i]).isascii()]
    ids = data.draw(st.lists(st.sampled_from(numbers), max_size=12))
    special = special_texts(made)
    assert sorted(special.values()) == sorted(SPECIAL)
    text = made.decode(ids, skip_special_tokens=True)
    tokens = special_tokens(ids, text, special, partial(made.decode, skip_special_tokens=True))
    assert [token.text for token in tokens] == [special[i] for i in ids if i in special]
    whole = with_special_tokens(text, tokens)
    if kind == "bytes":
        assert whole == made.decode(ids, skip_special_tokens=False)
    for token in SPECIAL:
        whole = whole.replace(token, "")
    assert whole == text


def test_a_text_that_a_stop_text_cut_has_only_what_is_before() -> None:
    made = TOKENIZERS["bytes"]
    ids: Sequence[int] = made.encode("<think>ab<s>c", add_special_tokens=False)
    tokens = special_tokens(ids, "a", special_texts(made), partial(made.decode, skip_special_tokens=True))
    assert tokens == (SpecialToken(0, "<think>"),)
    assert with_special_tokens("a", tokens) == "<think>a"
