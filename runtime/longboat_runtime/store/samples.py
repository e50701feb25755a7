"""Generated samples by id, and how much memory they take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId


def sample_bytes(sample: GeneratedSample) -> int:
    """Bytes of a sample's arrays and text."""
    arrays = sample.prompt_ids.nbytes + sample.token_ids.nbytes + sample.logprobs.nbytes
    return arrays + len(sample.text.encode())


class HeldSamples:
    """A dictionary that counts bytes. Putting a finished sample that is held, and deleting one that isn't, change nothing."""

    def __init__(self) -> None:
        self._samples: dict[SampleId, GeneratedSample] = {}
        self.nbytes = 0
        self.peak_bytes = 0

    def put(self, samples: Iterable[GeneratedSample]) -> None:
        for sample in samples:
            held = self._samples.get(sample.id)
            if held is not None and held.finish_reason is not FinishReason.ABORT:
                continue
            if held is not None:
                self.nbytes -= sample_bytes(held)
            self._samples[sample.id] = sample
            self.nbytes += sample_bytes(sample)
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def get(self, ids: Sequence[SampleId]) -> list[GeneratedSample]:
        """Raises KeyError whose arguments are the missing ids."""
        if missing := [sample for sample in ids if sample not in self._samples]:
            raise KeyError(*missing)
        return [self._samples[sample] for sample in ids]

    def delete(self, ids: Iterable[SampleId]) -> None:
        for sample in ids:
            if (held := self._samples.pop(sample, None)) is not None:
                self.nbytes -= sample_bytes(held)

    def ids(self) -> list[SampleId]:
        return sorted(self._samples)
