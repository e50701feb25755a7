"""The trainer's side of the tests: the same tiny model in transformers, which publishes and judges log-probs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from longboat_runtime.samples import GeneratedSample, SampleId, SampleRequest, Sampling
from longboat_runtime.trainer.full_weights import full_weights
from longboat_runtime.weights.publication import WeightPublication
from tests.support.publications import pack

PROBE = tuple(range(4, 64))


class ReferenceModel:
    """Keeps the weights of every version it has published."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.versions: dict[int, dict[str, torch.Tensor]] = {}
        self.version = -1
        self._generator = torch.Generator().manual_seed(0)

    def step(self, size: float) -> None:
        """Changes every weight by about `size`, as an optimizer step does."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=self._generator), alpha=size)

    def publication(self) -> WeightPublication:
        """The weights as they are, under the next version's number."""
        self.version += 1
        self.versions[self.version] = {name: value.clone() for name, value in self.model.state_dict().items()}
        packed = pack(full_weights(self.model, torch.float32), limit=200_000)
        return WeightPublication(self.version, packed, PROBE, tuple(self.logprobs(PROBE)))

    def stale_publication(self, step: float) -> WeightPublication:
        """Says it is the model after a step of this size, and carries the weights from before it: bytes and checksum agree."""
        before = pack(full_weights(self.model, torch.float32))
        self.step(step)
        return replace(self.publication(), payload=before)

    def logprobs(self, ids: tuple[int, ...]) -> list[float]:
        """Log-probs of tokens 1..n given those before them."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, :-1]
        return torch.log_softmax(logits, dim=-1)[range(len(ids) - 1), list(ids[1:])].tolist()

    def difference(self, sample: GeneratedSample) -> float:
        """The largest |engine - reference| log-prob over the response, each span under its own version's weights."""
        current = {name: value.clone() for name, value in self.model.state_dict().items()}
        whole = (*sample.prompt_ids.tolist(), *sample.token_ids.tolist())
        largest = 0.0
        for span in sample.spans:
            self.model.load_state_dict(self.versions[span.version])
            expected = self.logprobs(whole)[len(sample.prompt_ids) - 1 :]
            largest = max(largest, *(abs(expected[i] - float(sample.logprobs[i])) for i in range(span.start, span.end)))
        self.model.load_state_dict(current)
        return largest


def request(row: int, index: int = 0, *, tokens: int = 32, attempt: int = 0, **sampling: object) -> SampleRequest:
    """One sample of prompt `row`; its seed depends on row and index only."""
    return SampleRequest(
        id=SampleId(0, row, attempt, index),
        prompt_ids=tuple(4 + (row * 7 + i) % 200 for i in range(8 + row)),
        seed=1000 * row + index,
        sampling=Sampling(max_tokens=tokens, **sampling),  # type: ignore[arg-type]
    )
