"""Does packing change what a model computes?"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.samples import GeneratedSample
from longboat_runtime.trainer import attention
from longboat_runtime.trainer.batch import WeightedSample, pack_batch, token_sample
from longboat_runtime.trainer.forward import packed_logprobs

# Packed and plain log-probs of one model differ by rounding only; this is float32.
TOLERANCE = 1e-3


def check_packing(model: nn.Module) -> None:
    """Compares two packed samples with the model's own forward of each alone. Raises SpecProblem if they differ.

    Guards against architectures whose layers pass information along the sequence by other means than attention.
    """
    vocabulary = model.config.get_text_config().vocab_size
    tokens = (np.arange(1, 14, dtype=np.int32) * 7) % vocabulary
    samples = [token_sample(tokens[:5], 2), token_sample(tokens[5:], 2)]
    batch = pack_batch([WeightedSample(sample, 0.0, 1.0) for sample in samples], torch.device("cpu"))
    model.eval()
    problem = None
    with torch.no_grad():
        try:
            packed, _ = packed_logprobs(model, batch)
            model.set_attn_implementation("eager")
            plain = torch.cat([_plain_logprobs(model, sample) for sample in samples])
            difference = float((packed - plain).abs().max())
            if not difference < TOLERANCE:
                problem = f"log-probs of packed samples differ from those of single ones by {difference:.2g}"
        except (NotImplementedError, TypeError, ValueError) as error:
            problem = f"it can't be packed: {error}"
    if problem:
        raise SpecProblem(
            Reason.MODEL_INVALID,
            "spec.model.path",
            f"the architecture {model.config.model_type} is not supported: {problem}",
        )
    model.set_attn_implementation(attention.NAME)


def _plain_logprobs(model: nn.Module, sample: GeneratedSample) -> torch.Tensor:
    tokens = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.token_ids]).astype(np.int64))
    logprobs = model(input_ids=tokens[None], use_cache=False).logits[0].float().log_softmax(-1)
    start = len(sample.prompt_ids)
    return logprobs[start - 1 : -1].gather(-1, tokens[start:, None])[:, 0]
