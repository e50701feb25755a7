"""Opens datasets of tests."""

import datetime
import re
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from longboat_crds.dataset import DatasetSpec
from longboat_crds.model import ModelSpec
from longboat_crds.rounds import DomainQuota
from longboat_runtime.data import source
from longboat_runtime.data.prompts import Prompts, context_length, load_tokenizer
from longboat_runtime.data.protocol import RowCheck
from longboat_runtime.samples import Row

STARTED = datetime.datetime(2025, 3, 1, 23, 59, tzinfo=datetime.UTC)
# A bin in which every sample of these tests finds room.
BIN_TOKENS = 8192
_SPECIAL = re.compile(r"<\|[^|<>{}'\"]*\|>|<[a-z_/]+>|\[/?[A-Z_]+\]")


def tokenizer_of(template: str, *, begins: bool = False) -> PreTrainedTokenizerBase:
    """A tokenizer of bytes and the special tokens that the template names. With `begins` it puts `<bos>` before every text."""
    special = sorted({*_SPECIAL.findall(template), "<bos>", "<eos>"})
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*special, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
        )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>")
    fast.chat_template = template
    return fast


def open_prompts(dataset: DatasetSpec, model: ModelSpec, max_tokens: int, bin_tokens: int = BIN_TOKENS) -> Prompts:
    """What renders the rows in a job that began at STARTED."""
    context = context_length(model)
    return Prompts(dataset, load_tokenizer(model), context, max_tokens, bin_tokens, STARTED)


def open_source(
    dataset: DatasetSpec,
    model: ModelSpec,
    max_tokens: int,
    quotas: Sequence[DomainQuota] = (),
    check: RowCheck | None = None,
) -> source.TablePrompts:
    """The training rows."""
    return source.open_source(dataset, open_prompts(dataset, model, max_tokens), quotas, check)


def open_evaluation(dataset: DatasetSpec, model: ModelSpec, max_tokens: int) -> list[Row]:
    """The held-out rows."""
    return source.open_evaluation(dataset, open_prompts(dataset, model, max_tokens))
