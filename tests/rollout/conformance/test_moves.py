"""A response that moved is like one that didn't: equal in distribution, judged as a whole, with the log-probs of whoever drew it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.samples import FinishReason, GeneratedSample, Repetition, SampleId, SampleRequest
from tests.rollout.conformance.hosted import HostedEngine
from tests.rollout.reference import ReferenceModel, request
from tests.support.samples import with_response
from tests.support.tiny_model import build_tiny_model
from tests.support.waiting import DEADLINE_SECONDS

LONGEST = 40
# One token in sixteen or so ends a response: the model is nearly uniform over its bytes.
STOP = tuple("abcdefghijklmnop")
# Equal distributions differ by more than this once in a thousand runs (Kolmogorov's distribution; standard deviations). Seeds are
# fixed, so these tests give the same each time.
LENGTH_CHANCE, FREQUENCY_CHANCE = 1.95, 3.5


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(directory: Path) -> ReferenceModel:
    return ReferenceModel(directory)


@pytest.fixture(scope="module")
def engine(in_process: HostedEngine, directory: Path, reference: ReferenceModel) -> HostedEngine:
    config = EngineConfig("e", str(directory), "float32", 128, (0,), 512, kv_cache_bytes=2**26, enforce_eager=True)
    in_process.replace(config)
    in_process.update_weights(reference.publication())
    return in_process


class SameSeed(SampleRequest):
    """The mutant: what comes behind a move is drawn by the seed of the first token."""

    @property
    def next_seed(self) -> int:
        return self.seed


def run(
    engine: HostedEngine, requests: Sequence[SampleRequest], begun: Sequence[GeneratedSample] = ()
) -> dict[SampleId, GeneratedSample]:
    engine.submit(requests, begun)
    samples: dict[SampleId, GeneratedSample] = {}
    while len(samples) < len(requests):
        samples |= {sample.id: sample for sample in engine.drain_finished(DEADLINE_SECONDS)}
    return samples


def asked(count: int, attempt: int) -> list[SampleRequest]:
    """Requests for responses to one prompt, each with a seed of its own."""
    one = request(0, tokens=LONGEST, stop=STOP)
    return [
        replace(one, id=SampleId(0, 0, attempt, index), seed=1_000_000 * attempt + index + 1) for index in range(count)
    ]


def moved(
    engine: HostedEngine, requests: Sequence[SampleRequest], kind: type[SampleRequest] = SampleRequest
) -> tuple[dict[SampleId, GeneratedSample], dict[SampleId, int]]:
    """The responses, each moved after a random number of tokens unless it ends before, and after how many they were."""
    chance = random.Random(7)
    places = {one.id: chance.randint(1, LONGEST - 1) for one in requests}
    cut = [replace(one, sampling=replace(one.sampling, max_tokens=places[one.id])) for one in requests]
    first = run(engine, cut)
    parts = {
        sample: replace(part, finish_reason=FinishReason.ABORT)
        for sample, part in first.items()
        if part.finish_reason is FinishReason.LENGTH
    }
    going = [
        kind(one.id, one.prompt_ids, one.seed, one.sampling, begun=parts[one.id].spans)
        for one in requests
        if one.id in parts
    ]
    return first | run(engine, going, list(parts.values())), {sample: places[sample] for sample in parts}


def difference_of_lengths(one: dict[SampleId, GeneratedSample], other: dict[SampleId, GeneratedSample]) -> float:
    """The Kolmogorov-Smirnov distance of two samples' lengths, in units of what chance makes of it."""
    first, second = (np.array([len(sample.token_ids) for sample in of.values()]) for of in (one, other))
    shares = [np.array([(of <= length).mean() for length in range(LONGEST + 1)]) for of in (first, second)]
    scale = np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return float(np.abs(shares[0] - shares[1]).max() * scale)


def difference_of_frequencies(one: dict[SampleId, GeneratedSample], other: dict[SampleId, GeneratedSample]) -> float:
    """Pearson's chi-squared of two samples' token counts: how many standard deviations it is above its mean."""
    counts = [Counter(token for sample in of.values() for token in sample.token_ids.tolist()) for of in (one, other)]
    observed = np.array([[count[token] for token in sorted(counts[0] | counts[1])] for count in counts], float)
    expected = observed.sum(1, keepdims=True) * observed.sum(0) / observed.sum()
    degrees = observed.shape[1] - 1
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


def difference_of_echoes(
    one: dict[SampleId, GeneratedSample], other: dict[SampleId, GeneratedSample], places: dict[int, int]
) -> float:
    """How often the n-th token behind a place is the response's n-th token, in standard deviations of the difference.

    `places` are numbers of tokens by the index of a response.
    """
    shares = []
    for of in (one, other):
        echoes = [
            first == later
            for sample, whole in of.items()
            if sample.index in places
            for first, later in zip(
                whole.token_ids.tolist(), whole.token_ids.tolist()[places[sample.index] :], strict=False
            )
        ]
        shares.append((sum(echoes), len(echoes)))
    (few, count), (many, number) = shares
    share = (few + many) / (count + number)
    return abs(few / count - many / number) / sqrt(share * (1 - share) * (1 / count + 1 / number))


@pytest.mark.parametrize(("responses", "mutants"), [(1500, 1500), pytest.param(5000, 2000, marks=pytest.mark.extended)])
def test_moved_responses_are_distributed_like_others(
    engine: HostedEngine, reference: ReferenceModel, responses: int, mutants: int
) -> None:
    whole = run(engine, asked(responses, 1))
    other, places = moved(engine, asked(responses, 2))
    assert len(places) > responses / 4
    assert {sample.finish_reason for sample in other.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    assert difference_of_lengths(whole, other) < LENGTH_CHANCE
    assert difference_of_frequencies(whole, other) < FREQUENCY_CHANCE
    by_index = {sample.index: place for sample, place in places.items()}
    assert difference_of_echoes(whole, other, by_index) < FREQUENCY_CHANCE
    for sample in [*places][:50]:
        assert reference.difference(other[sample]) < 1e-4
        assert other[sample].spans == other[sample].spans[:1], "one weight version"
    mutated, _ = moved(engine, asked(mutants, 3), SameSeed)
    assert difference_of_lengths(whole, mutated) > LENGTH_CHANCE, (
        "who didn't end by these random numbers doesn't end by them later"
    )
    assert difference_of_echoes(whole, mutated, by_index) > 5 * FREQUENCY_CHANCE


def test_a_loop_that_began_before_a_move_ends_the_response_where_it_would_have_ended(engine: HostedEngine) -> None:
    """At temperature 0 the model repeats itself soon; wherever it moves on the way, the response is the same."""
    one = request(3, tokens=200, temperature=0.0)
    one = replace(one, sampling=replace(one.sampling, repetition=Repetition(4, 5)))
    alone = run(engine, [one])[one.id]
    assert alone.finish_reason is FinishReason.REPETITION
    for place in range(1, len(alone.token_ids)):
        spans = (alone.spans[0]._replace(end=place),)
        part = with_response(alone, alone.token_ids[:place], alone.logprobs[:place], spans)
        part = replace(part, finish_reason=FinishReason.ABORT)
        again = run(engine, [replace(one, begun=part.spans)], [part])[one.id]
        assert again.finish_reason is FinishReason.REPETITION
        assert again.token_ids.tolist() == alone.token_ids.tolist()
        assert (again.text, again.spans, len(again.logprobs)) == (alone.text, alone.spans, len(alone.logprobs))


def test_the_longest_response_is_that_of_both_engines_together(engine: HostedEngine) -> None:
    one = request(2, tokens=20)
    whole = run(engine, [one])[one.id]
    assert whole.finish_reason is FinishReason.LENGTH
    part = run(engine, [replace(one, sampling=replace(one.sampling, max_tokens=13))])[one.id]
    part = replace(part, finish_reason=FinishReason.ABORT)
    assert len(run(engine, [replace(one, begun=part.spans)], [part])[one.id].token_ids) == 20
