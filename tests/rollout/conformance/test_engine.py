"""What every kind of engine does. The tests of one engine run in order; the last one kills it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from longboat_runtime.rollout.engine import EngineDead, kv_tokens
from longboat_runtime.rollout.factory import read_model_config
from longboat_runtime.samples import FinishReason, GeneratedSample, Repetition, SampleId, SampleRequest, VersionSpan
from longboat_runtime.weights.bucket import Bucket
from longboat_runtime.weights.gate import FetchFailed, PublicationRefused
from longboat_runtime.weights.payload import WeightPayload
from tests.rollout.conformance.conftest import MAX_SEQUENCES
from tests.rollout.conformance.hosted import HostedEngine
from tests.rollout.reference import ReferenceModel, request
from tests.support.samples import with_response
from tests.support.tiny_model import SPECIAL_TOKENS
from tests.support.waiting import DEADLINE_SECONDS, eventually

LONG = 480  # tokens of a response that is still running when something happens to it


def collect(
    engine: HostedEngine, number: int, samples: Sequence[GeneratedSample] = ()
) -> dict[SampleId, GeneratedSample]:
    """Collects `number` samples and no more, each id once. `samples` are those that have come already."""
    samples = list(samples)
    while len(samples) < number:
        samples += engine.drain_finished(DEADLINE_SECONDS)
    by_id = {sample.id: sample for sample in samples}
    assert len(by_id) == len(samples) == number
    return by_id


def run(engine: HostedEngine, requests: Sequence[SampleRequest]) -> dict[SampleId, GeneratedSample]:
    engine.submit(requests)
    return collect(engine, len(requests))


def draw(engine: HostedEngine, tokens: int, running: int) -> list[GeneratedSample]:
    """Waits until the engine has drawn `tokens` more, or has ended all `running` samples; returns those that have ended."""
    ended: list[GeneratedSample] = []
    engine.take_load()
    target = engine.load.generated_tokens + tokens

    def look() -> bool:
        ended.extend(engine.drain_finished(0))
        engine.take_load()
        return len(ended) == running or engine.load.generated_tokens >= target

    eventually(look)
    return ended


def long_response(engine: HostedEngine, row: int) -> tuple[SampleRequest, GeneratedSample]:
    """A request whose response has many tokens, and these."""
    requests = [request(row, index, tokens=LONG) for index in range(MAX_SEQUENCES)]
    samples = run(engine, requests)
    longest = max(requests, key=lambda asked: len(samples[asked.id].token_ids))
    return longest, samples[longest.id]


def stopped(engine: HostedEngine, id_: SampleId) -> GeneratedSample:
    """Aborts the running sample once it has some more tokens, and returns it; it is whole if it ended before."""
    ended = draw(engine, 3, running=1)
    engine.abort([id_])
    return collect(engine, 1, ended)[id_]


def test_samples_are_complete(engine: HostedEngine, reference: ReferenceModel) -> None:
    requests = [request(row, index) for row in range(3) for index in range(4)]
    samples = run(engine, requests)
    for asked in requests:
        sample = samples[asked.id]
        assert sample.prompt_ids.tolist() == list(asked.prompt_ids)
        assert sample.token_ids.dtype == np.int32
        assert sample.logprobs.dtype == np.float32
        assert len(sample.logprobs) == len(sample.token_ids) <= 32
        assert sample.finish_reason == (FinishReason.LENGTH if len(sample.token_ids) == 32 else FinishReason.STOP)
        assert sample.spans == (VersionSpan(reference.version, 0, len(sample.token_ids)),)
        assert reference.difference(sample) < 1e-4
    assert {sample.engine for sample in samples.values()} == {engine.name}


def test_every_token_is_of_a_step_that_was_timed(engine: HostedEngine, reference: ReferenceModel) -> None:
    engine.take_load()
    run(engine, [request(row, 9) for row in range(MAX_SEQUENCES + 2)])
    load = engine.take_load()
    # Batch sizes are rounded by a fifth at most.
    tokens = sum(batch * times.steps for batch, times in load.step_times.items())
    assert load.generated_tokens / 1.2 <= tokens <= load.generated_tokens * 1.2
    assert all(times.seconds > 0 for times in load.step_times.values())


def test_an_engine_has_the_kv_cache_that_vllm_has_made_of_the_memory(engine: HostedEngine) -> None:
    size = engine.config.tensor_parallel
    assert engine.kv_tokens() == kv_tokens(engine.config, read_model_config(engine.config), {}, (size,))[size]


def test_a_seed_gives_the_same_tokens_in_any_company(engine: HostedEngine, reference: ReferenceModel) -> None:
    requests = [request(row, index) for row in range(3) for index in range(4)]
    together = run(engine, requests)
    alone = [run(engine, [asked])[asked.id] for asked in reversed(requests[::5])]
    for sample in alone:
        assert sample.token_ids.tolist() == together[sample.id].token_ids.tolist()
        np.testing.assert_allclose(sample.logprobs, together[sample.id].logprobs, atol=1e-5)
    assert len({tuple(sample.token_ids.tolist()) for sample in together.values()}) == len(requests)


def test_preemption_changes_no_token(engine: HostedEngine, reference: ReferenceModel) -> None:
    requests = [request(row, 5, tokens=LONG) for row in range(MAX_SEQUENCES)]
    engine.take_load()
    together = run(engine, requests)
    assert engine.take_load().preemptions > 0
    longest = max(requests, key=lambda asked: len(together[asked.id].token_ids))
    alone = run(engine, [longest])[longest.id]
    assert alone.token_ids.tolist() == together[longest.id].token_ids.tolist()
    assert all(reference.difference(sample) < 1e-4 for sample in together.values())


def test_a_round_repeats_bit_for_bit(engine: HostedEngine, reference: ReferenceModel) -> None:
    """Of an engine with a process of its own chance decides what it begins together, and so the last bits of log-probs."""
    requests = [request(row, index) for row in range(3) for index in range(4)]
    rounds = []
    for _ in range(2):
        engine.update_weights(reference.publication())
        rounds.append(run(engine, requests))
    for asked in requests:
        first, second = (samples[asked.id] for samples in rounds)
        assert first.token_ids.tolist() == second.token_ids.tolist()
        if engine.spawned:
            np.testing.assert_allclose(first.logprobs, second.logprobs, rtol=0.0, atol=1e-5)
        else:
            assert first.logprobs.tobytes() == second.logprobs.tobytes()


def test_a_stop_string_ends_a_response(engine: HostedEngine, reference: ReferenceModel) -> None:
    asked = request(0, tokens=LONG)
    whole = run(engine, [asked])[asked.id]
    stop = whole.text[3:5]
    with_stop = request(0, tokens=LONG, stop=(stop,))
    sample = run(engine, [with_stop])[with_stop.id]
    assert sample.finish_reason is FinishReason.STOP
    assert sample.text == whole.text[: whole.text.index(stop)]
    assert sample.token_ids.tolist() == whole.token_ids.tolist()[: len(sample.token_ids)]


def test_a_stop_token_ends_a_response(engine: HostedEngine, reference: ReferenceModel) -> None:
    asked, whole = long_response(engine, 0)
    last = next(letter for letter in whole.text if letter.isascii() and letter.isalnum())
    stop = len(SPECIAL_TOKENS) + sorted(ByteLevel.alphabet()).index(last)
    for include in (False, True):
        sampling = replace(asked.sampling, stop_token_ids=(stop,), include_stop=include)
        sample = run(engine, [replace(asked, sampling=sampling)])[asked.id]
        assert sample.finish_reason is FinishReason.STOP
        assert sample.token_ids.tolist() == whole.token_ids.tolist()[: whole.token_ids.tolist().index(stop) + 1]
        assert sample.text == whole.text[: whole.text.index(last) + include]


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"min_p": 1.0}])
def test_top_k_and_min_p_leave_out_all_but_the_likeliest_tokens(
    engine: HostedEngine, reference: ReferenceModel, sampling: dict[str, float]
) -> None:
    """Taken to the extreme they leave one token: that of temperature 0."""
    greedy, drawn = (request(0, 9, temperature=0.0), request(0, 9, attempt=1, **sampling))
    samples = run(engine, [greedy, drawn])
    assert samples[drawn.id].token_ids.tolist() == samples[greedy.id].token_ids.tolist()


def test_a_loop_is_ended_and_named(engine: HostedEngine, reference: ReferenceModel) -> None:
    """Hardly any temperature: a small model soon repeats itself."""
    whole = run(engine, [request(0, tokens=LONG, temperature=0.01)]).popitem()[1].token_ids.tolist()
    asked = request(0, tokens=LONG, temperature=0.01, repetition=Repetition(pattern_tokens=8, count=3))
    sample = run(engine, [asked])[asked.id]
    made = sample.token_ids.tolist()
    assert sample.finish_reason is FinishReason.REPETITION
    assert made == whole[: len(made)]
    assert any(made[-3 * n :] == made[-n:] * 3 for n in range(1, 9))


def test_abort_returns_the_tokens_so_far(engine: HostedEngine, reference: ReferenceModel) -> None:
    asked, whole = long_response(engine, 1)

    def aborted() -> GeneratedSample:
        engine.submit([asked])
        return stopped(engine, asked.id)

    # On a machine that stalls it may have ended before.
    sample = eventually(aborted, lambda sample: sample.finish_reason is FinishReason.ABORT)
    drawn = len(sample.token_ids)
    assert 0 < drawn < len(whole.token_ids)
    assert sample.token_ids.tolist() == whole.token_ids.tolist()[:drawn]
    assert sample.spans == (VersionSpan(reference.version, 0, drawn),)
    assert reference.difference(sample) < 1e-4


def aborted_late(engine: HostedEngine, late: SampleRequest) -> GeneratedSample:
    """Aborts a request while others fill the engine, and returns its sample, which has tokens if another one ended before."""
    first = [request(2, index, tokens=LONG) for index in range(MAX_SEQUENCES)]
    engine.submit([*first, late])
    engine.abort([late.id])
    engine.abort([asked.id for asked in first])
    return collect(engine, len(first) + 1)[late.id]


def test_abort_before_the_first_token(engine: HostedEngine, reference: ReferenceModel) -> None:
    sample = eventually(lambda: aborted_late(engine, request(3)), lambda sample: len(sample.token_ids) == 0)
    assert (sample.finish_reason, sample.spans, sample.text) == (FinishReason.ABORT, (), "")


def test_abort_racing_with_the_end_gives_one_result(engine: HostedEngine, reference: ReferenceModel) -> None:
    for tokens in range(1, 8):
        requests = [request(row, tokens=tokens) for row in range(4)]
        engine.submit(requests)
        engine.abort([asked.id for asked in requests])
        engine.abort([asked.id for asked in requests])
        samples = collect(engine, len(requests))
        assert {sample.finish_reason for sample in samples.values()} <= {
            FinishReason.ABORT,
            FinishReason.LENGTH,
            FinishReason.STOP,
        }
    later = request(0, tokens=2)
    assert run(engine, [later]).keys() == {later.id}, "nothing came twice"


def test_abort_of_what_does_not_run_does_nothing(engine: HostedEngine, reference: ReferenceModel) -> None:
    done = request(0, tokens=2)
    run(engine, [done])
    engine.abort([done.id, SampleId(9, 9, 9, 9)])
    assert run(engine, [done]).keys() == {done.id}


def test_a_request_it_cannot_take_harms_nothing(engine: HostedEngine, reference: ReferenceModel) -> None:
    good = request(0)
    with pytest.raises(ValueError, match="prompt of 512 tokens"):
        engine.submit([good, replace(request(1), prompt_ids=(5,) * 512)])
    with pytest.raises(ValueError, match="outside the vocabulary"):
        engine.submit([good, replace(request(1), prompt_ids=(5, 100_000))])
    assert run(engine, [good]).keys() == {good.id}


def test_new_weights_take_over_in_mid_flight(engine: HostedEngine, reference: ReferenceModel) -> None:
    requests = [request(row, 3, tokens=LONG) for row in range(MAX_SEQUENCES + 2)]

    def updated() -> list[GeneratedSample]:
        """Returns samples during which the weights were updated, unless they ended before."""
        engine.submit(requests)
        ended = draw(engine, 3 * MAX_SEQUENCES, len(requests))
        reference.step(0.02)
        assert engine.update_weights(reference.publication()) < 1e-4
        ended += draw(engine, 3 * MAX_SEQUENCES, len(requests) - len(ended))
        engine.abort([asked.id for asked in requests])
        samples = collect(engine, len(requests), ended)
        return list(samples.values())

    def drawn_by_both(samples: list[GeneratedSample]) -> bool:
        versions = [reference.version - 1, reference.version]
        return any([span.version for span in sample.spans] == versions for sample in samples)

    for sample in eventually(updated, drawn_by_both):
        ends = [0, *(span.end for span in sample.spans)]
        assert [span.start for span in sample.spans] == ends[:-1]
        assert ends[-1] == len(sample.token_ids)
        assert reference.difference(sample) < 1e-4


def test_a_paused_sample_goes_on_under_new_weights(engine: HostedEngine, reference: ReferenceModel) -> None:
    """Twice: its log-probs are those of the weights that drew each token, and the spans say which these are."""
    for index in count(8):
        asked, parts = request(1, index, tokens=LONG), list[GeneratedSample]()
        engine.submit([asked])
        while len(parts) < 2:
            part = stopped(engine, asked.id)
            if part.finish_reason is not FinishReason.ABORT:
                break  # it had ended before: another one
            parts.append(part)
            reference.step(0.02)
            engine.update_weights(reference.publication())
            engine.submit([replace(asked, seed=asked.seed + len(parts), begun=part.spans)], [part])
        else:
            break
    whole = collect(engine, 1)[asked.id]
    first, second, total = (len(sample.token_ids) for sample in (*parts, whole))
    newest = reference.version
    assert whole.spans == (
        VersionSpan(newest - 2, 0, first),
        VersionSpan(newest - 1, first, second),
        VersionSpan(newest, second, total),
    )
    assert 0 < first < second < total == len(whole.logprobs) <= LONG
    assert whole.finish_reason == (FinishReason.LENGTH if total == LONG else FinishReason.STOP)
    assert whole.prompt_ids.tolist() == list(asked.prompt_ids)
    for part in parts:
        drawn = len(part.token_ids)
        assert whole.token_ids[:drawn].tolist() == part.token_ids.tolist()
        assert whole.logprobs[:drawn].tobytes() == part.logprobs.tobytes()
        assert whole.text.startswith(part.text.rstrip("\ufffd"))
    assert reference.difference(whole) < 1e-4


def test_a_sample_paused_before_its_first_token_begins_anew(engine: HostedEngine, reference: ReferenceModel) -> None:
    asked = request(2, 8)
    whole = run(engine, [asked])[asked.id]
    part = eventually(lambda: aborted_late(engine, asked), lambda part: len(part.token_ids) == 0)
    assert part.spans == ()
    assert run(engine, [asked])[asked.id].token_ids.tolist() == whole.token_ids.tolist()


def test_a_stop_string_that_was_begun_before_the_pause_ends_the_response(
    engine: HostedEngine, reference: ReferenceModel
) -> None:
    asked = request(0, 9, tokens=4, temperature=0.0)
    made = run(engine, [asked])[asked.id]
    spans = (VersionSpan(reference.version, 0, 1),)

    def go_on(first: int, **sampling: object) -> GeneratedSample:
        """What comes behind this token."""
        part = with_response(made, np.array([first], np.int32), np.zeros(1, np.float32), spans)
        part = replace(part, finish_reason=FinishReason.ABORT, text=chr(first + 29))
        # Drawn, since the likeliest token may be the same after every first one.
        again = request(0, 9, tokens=4, temperature=1.0, **sampling)
        engine.submit([replace(again, begun=spans)], [part])
        return collect(engine, 1)[asked.id]

    # Printable characters are tokens 4 and up.
    whole = next(
        sample
        for sample in map(go_on, range(4, 90))
        if 4 <= sample.token_ids[1] < 90 and sample.token_ids[1] != sample.token_ids[0]
    )
    ended = go_on(int(whole.token_ids[0]), stop=(whole.text[:2],))
    assert (ended.finish_reason, ended.text) == (FinishReason.STOP, "")
    assert ended.token_ids.tolist() == whole.token_ids[:2].tolist()


def test_damaged_weights_are_refused(engine: HostedEngine, reference: ReferenceModel) -> None:
    damaged = replace(reference.publication(), checksum="0" * 32)
    running, _ = long_response(engine, 1)

    def lost() -> tuple[SampleId, ...]:
        """Returns what is lost: the running sample, unless it ended before."""
        engine.update_weights(reference.publication())
        engine.submit([running])
        ended = draw(engine, 1, running=1)
        with pytest.raises(PublicationRefused, match="checksum") as caught:
            engine.update_weights(damaged)
        ended += engine.drain_finished(0)
        assert (*(sample.id for sample in ended), *caught.value.lost) == (running.id,)
        return caught.value.lost

    eventually(lost)
    with pytest.raises(PublicationRefused, match="checksum"):
        engine.submit([request(0)])


def test_weights_one_tiny_step_old_are_refused(engine: HostedEngine, reference: ReferenceModel) -> None:
    with pytest.raises(PublicationRefused, match="log-probs of the probe differ"):
        engine.update_weights(reference.stale_publication(step=1e-4))


def test_after_a_refusal_good_weights_serve_again(engine: HostedEngine, reference: ReferenceModel) -> None:
    assert engine.update_weights(reference.publication()) < 1e-4
    asked = request(2)
    sample = run(engine, [asked])[asked.id]
    assert sample.spans == (VersionSpan(reference.version, 0, len(sample.token_ids)),)
    assert reference.difference(sample) < 1e-4


class Unreachable:
    """The buckets of a publication, of which one can't be had."""

    def __init__(self, payload: WeightPayload, gone: int) -> None:
        self.payload, self.gone = payload, gone
        self.nbytes = payload.nbytes

    def __len__(self) -> int:
        return len(self.payload)

    def bucket(self, index: int) -> Bucket:
        if index == self.gone:
            raise OSError("no route to host")
        return self.payload.bucket(index)


def test_weights_that_cannot_all_be_fetched_are_asked_for_again_by_another_update(
    engine: HostedEngine, reference: ReferenceModel
) -> None:
    """Whichever bucket is missing; what the update had brought by then is not counted by the next one."""
    reference.step(0.02)
    whole = reference.publication()
    buckets = len(whole.payload)
    assert buckets > 3
    running = [request(row, 11, tokens=LONG) for row in range(2)]
    engine.submit(running)
    lost: set[SampleId] = set()
    for gone in (0, 1, buckets - 1):
        with pytest.raises(FetchFailed, match=f"bucket {gone + 1} of {buckets} can't be fetched: no route") as caught:
            engine.update_weights(replace(whole, payload=Unreachable(whole.payload, gone)))
        lost |= set(caught.value.lost)
        with pytest.raises(FetchFailed):
            engine.submit([request(3, 11)])
    assert engine.update_weights(whole) < 1e-4
    asked = request(3, 11)
    engine.submit([asked])
    # Each of the running ones was either finished before the first update or is lost.
    samples = collect(engine, 1 + len(running) - len(lost))
    assert {sample.id for sample in running} == (samples.keys() - {asked.id}) | lost
    assert reference.difference(samples[asked.id]) < 1e-4


def test_a_dead_worker_ends_the_engine(engine: HostedEngine, reference: ReferenceModel) -> None:
    if engine.name == "in-process":
        engine.shutdown()  # it has no process of its own to lose
    else:
        engine.submit([request(1, tokens=LONG)])
        engine.kill_a_worker()
    with pytest.raises(EngineDead):
        collect(engine, MAX_SEQUENCES)
    with pytest.raises(EngineDead):
        engine.submit([request(0)])
