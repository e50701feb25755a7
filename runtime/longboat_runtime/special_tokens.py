"""Special tokens of a response: where its text, which doesn't have them, would have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from longboat_runtime.samples import FinishReason, Sampling, SpecialToken

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# More tokens than these within a response, which only a broken model draws, may be some characters beside their places.
_MOST_EXACT = 32


def special_texts(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Returns the texts of the tokens that the tokenizer leaves out if special ones are skipped, by id."""
    return {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}


def special_tokens(
    token_ids: Sequence[int], text: str, texts: Mapping[int, str], decode: Callable[[Sequence[int]], str]
) -> tuple[SpecialToken, ...]:
    """Finds the special tokens of a response and their places in `text`, which a stop text may have cut short.

    `texts` are those of special tokens, by id. `decode` decodes token ids without special tokens.
    """
    last = len(token_ids)
    while last and token_ids[last - 1] in texts:
        last -= 1
    inner = [place for place in range(last) if token_ids[place] in texts]
    places = []
    if inner:
        pieces = [decode(token_ids[first + 1 : end]) for first, end in pairwise([-1, *inner, last])]
        places = list(accumulate(map(len, pieces[:-1])))
        if len(inner) <= _MOST_EXACT and not "".join(pieces).startswith(text):
            # What some tokenizers make of tokens depends on those before.
            places = [len(decode(token_ids[:place])) for place in inner]
    special = [token_ids[place] for place in inner] + list(token_ids[last:])
    places += [len(text)] * (len(token_ids) - last)
    return tuple(
        SpecialToken(at, texts[token_id]) for at, token_id in zip(places, special, strict=True) if at <= len(text)
    )


def response_text(
    token_ids: Sequence[int],
    text: str | None,
    reason: FinishReason,
    sampling: Sampling,
    texts: Mapping[int, str],
    decode: Callable[[Sequence[int]], str],
) -> tuple[str, tuple[SpecialToken, ...]]:
    """Returns the text of a response, and the special tokens that it doesn't have (`special_tokens`).

    `text` is what engines have made of the tokens where there are stop texts, else None: then the tokens are decoded. A stop token is part
    of the text only with `includeStop`.
    """
    stopped = reason is FinishReason.STOP and token_ids[-1:] and token_ids[-1] in sampling.stop_token_ids
    if text is None:
        text = decode(token_ids[:-1] if stopped and not sampling.include_stop else token_ids)
    left_out = special_tokens(token_ids, text, texts, decode)
    if stopped and sampling.include_stop and token_ids[-1] in texts:
        text, left_out = text + texts[token_ids[-1]], left_out[:-1]
    return text, left_out


def with_special_tokens(text: str, tokens: Sequence[SpecialToken]) -> str:
    """Returns the text with the special tokens in their places."""
    for token in reversed(tokens):
        text = text[: token.at] + token.text + text[token.at :]
    return text
