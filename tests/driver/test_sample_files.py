"""The files of `spec.samples`, as a driver orders them: what happened to every group of a step is found in its file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longboat_runtime.driver import sample_files
from longboat_runtime.driver.outcome import RunOutcome
from longboat_runtime.rounds import events
from longboat_runtime.sample_files.reading import Sample, read_file, read_files
from longboat_runtime.samples import GeneratedSample, PromptId, SampleId
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest
from tests.driver.fakes import Site, make_spec
from tests.driver.runs import history

TAIL = {"policy": "TailBatching", "prompt_overcommit": 2.0, "algorithm": {"name": "DAPO", "group_size": 2}}
POLICIES = {
    "Synchronous": {"algorithm": {"name": "DAPO", "group_size": 2}},
    "TailBatching": TAIL,
    "ContinueUnfinished": {"policy": "ContinueUnfinished", "prompt_overcommit": 1.5},
    "BoundedAsync": {"policy": "BoundedAsync", "max_staleness": 2, "algorithm": {"name": "DAPO", "group_size": 2}},
}


def site_of(root: Path, samples: dict[str, Any] | None = None, **spec: Any) -> Site:
    return Site(root, make_spec(**{**TAIL, "steps": 9, "samples": samples or {"every_steps": 1}, **spec}))


def noted(site: Site) -> dict[SampleId, GeneratedSample]:
    """All that comes into the store from now on."""
    every: dict[SampleId, GeneratedSample] = {}
    put = site.store.put

    async def noting(samples: list[GeneratedSample]) -> None:
        every.update({sample.id: sample for sample in samples})
        await put(samples)

    site.store.put = noting
    return every


def files(site: Site) -> dict[int, list[Sample]]:
    return {step: list(read_file(path)) for step, path in read_files(site.root).items()}


def identity(sample: Sample) -> SampleId:
    return SampleId(sample["epoch"], sample["row"], sample["attempt"], sample["sample"])


def happened(site: Site) -> dict[int, dict[SampleId, tuple[str, str | None]]]:
    """The fate of the finished samples of every step, and the reason for it, by the event log."""
    fates: dict[int, dict[SampleId, tuple[str, str | None]]] = {}
    rounds: dict[tuple[PromptId, int], int] = {}
    finished: dict[tuple[PromptId, int], set[SampleId]] = {}
    given_up: dict[int, dict[SampleId, tuple[str, str | None]]] = {}
    for body in history(site):
        match body:
            case events.Launched(round=number) | events.GroupAdopted(round=number):
                rounds[body.prompt, body.attempt] = number
            case events.Generated(sample=sample):
                finished.setdefault((sample.prompt, sample.attempt), set()).add(sample)
            case events.GroupDropped() | events.GroupDeferred():
                group, fate = (body.prompt, body.attempt), type(body).__name__.removeprefix("Group").lower()
                of_round = given_up.setdefault(rounds[group], {})
                of_round |= dict.fromkeys(finished.pop(group, ()), (fate, body.reason.value))
            case events.StepCommitted(step=step, samples=samples):
                fates[step] = {**given_up.pop(body.round, {}), **dict.fromkeys(samples, ("kept", None))}
    return fates


@pytest.mark.parametrize("policy", POLICIES)
async def test_kept_dropped_and_deferred_samples_of_every_step_are_found(tmp_path: Path, policy: str) -> None:
    site = Site(tmp_path, make_spec(**{**POLICIES[policy], "steps": 9, "samples": {"every_steps": 1}}))
    driver = site.driver()
    every = noted(site)
    assert await driver.run() is RunOutcome.DONE
    found, expected = files(site), happened(site)
    assert {
        step: {identity(sample): (sample["fate"], sample["reason"]) for sample in samples}
        for step, samples in found.items()
    } == expected
    advantages = {
        step: {identity(one): one["advantage"] for one in of if one["fate"] == "kept"} for step, of in found.items()
    }
    assert advantages == {
        request.step: {one.id: pytest.approx(one.advantage) for one in request.samples}
        for request in site.trainer.requests
    }
    for sample in (sample for samples in found.values() for sample in samples):
        made = every[identity(sample)]
        assert sample["response"] == made.text
        assert sample["prompt"] == f"prompt {sample['row']}"
        assert (sample["response_tokens"], sample["finish_reason"]) == (len(made.token_ids), made.finish_reason)
        assert sample["versions"] == [span._asdict() for span in made.spans]
        if sample["grade"]:
            assert sample["score"] == int(made.text) % 4
            assert sample["parts"] == {"main": sample["score"]}
        assert (sample["fate"] == "kept") == (sample["advantage"] is not None)
    fates = {sample["fate"] for samples in found.values() for sample in samples}
    if policy == "TailBatching":
        assert fates == {"kept", "dropped", "deferred"}
    assert not {identity(one) for samples in found.values() for one in samples} & site.store.samples.keys()


async def test_rounds_under_way_hold_what_their_own_steps_write(tmp_path: Path) -> None:
    """With BoundedAsync up to three are, and only one in three is written."""
    site = Site(tmp_path, make_spec(**{**POLICIES["BoundedAsync"], "steps": 12, "samples": {"every_steps": 3}}))
    assert await site.driver(3).run() is RunOutcome.DONE
    expected = happened(site)
    assert {step: {identity(sample) for sample in samples} for step, samples in files(site).items()} == {
        step: set(expected[step]) for step in (1, 3, 6, 9, 12)
    }


async def test_a_grader_error_has_no_score_and_its_message(tmp_path: Path) -> None:
    site = site_of(tmp_path, policy="Synchronous", prompt_overcommit=None, steps=1)
    driver = site.driver()
    site.rewards.errors = {PromptId(0, 1)}
    assert await driver.run() is RunOutcome.DONE
    told = {(one["fate"], one["reason"], one["score"], one["message"]) for one in files(site)[1] if one["row"] == 1}
    assert ("dropped", "grader_error", None, "the grader crashed") in told


async def test_only_a_step_that_is_due_holds_what_was_given_up(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"every_steps": 4})
    driver = site.driver()
    train, held = site.trainer.train, {}

    async def noting(request: TrainRequest) -> TrainReport:
        for _ in range(50):
            await asyncio.sleep(0)
        batch = {sample.id for sample in request.samples}
        held[request.step] = site.store.samples.keys() - batch - unfinished(site)
        return await train(request)

    site.trainer.train = noting
    assert await driver.run() is RunOutcome.DONE
    expected = {step: {id_ for id_ in of if of[id_][0] != "kept"} for step, of in happened(site).items()}
    assert all(expected[step] for step in (1, 4, 8))
    assert held == {step: of if step in (1, 4, 8, 9) else set() for step, of in expected.items()}
    assert list(read_files(tmp_path)) == [1, 4, 8, 9]


@pytest.mark.parametrize("prompts", [1, 3])
async def test_no_more_prompts_than_asked_for(tmp_path: Path, prompts: int) -> None:
    site = site_of(tmp_path, {"every_steps": 1, "prompts": prompts})
    assert await site.driver().run() is RunOutcome.DONE
    for step, samples in files(site).items():
        of_step = {(id_.prompt, id_.attempt) for id_ in happened(site)[step]}
        assert len({(one["epoch"], one["row"], one["attempt"]) for one in samples}) == min(prompts, len(of_step))


@pytest.mark.parametrize("crash", [(4, "after"), (7, "before")])
async def test_after_a_death_every_step_has_the_file_of_what_was_trained(
    tmp_path: Path, crash: tuple[int, str]
) -> None:
    site = site_of(tmp_path, checkpoint={"every_steps": 3})
    driver = site.driver()
    site.trainer.crash = crash
    with pytest.raises(ExceptionGroup):
        await driver.run()
    assert await site.driver(5).run() is RunOutcome.DONE
    kept = {
        step: {identity(sample) for sample in samples if sample["fate"] == "kept"}
        for step, samples in files(site).items()
    }
    assert kept == {body.step: set(body.samples) for body in history(site) if isinstance(body, events.StepCommitted)}
    assert list(kept) == list(range(1, 10))


async def test_a_full_volume_is_told_with_the_cure_until_a_file_is_written_and_training_goes_on(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"every_steps": 3})
    driver = site.driver()
    site.trainer.no_space = {3}
    problems = []
    publish = site.broker.publish
    site.broker.publish = lambda status: (problems.append(status.problem), publish(status))
    assert await driver.run() is RunOutcome.DONE
    (told,) = {(problem.reason, problem.field, problem.message) for problem in problems if problem}
    assert told[:2] == ("SamplesNotWritten", "spec.samples.keep")
    assert "no space is left" in told[2]
    assert "Enlarge the claim, or lower samples.keep" in told[2]
    assert problems[-1] is None
    assert list(read_files(tmp_path)) == [1, 6, 9]
    assert [request.step for request in site.trainer.requests] == list(range(1, 10))
    assert not {sample for sample in happened(site)[3] if sample in site.store.samples}


async def test_a_volume_that_hangs_neither_stops_the_job_nor_fills_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_files, "END_SECONDS", 0.01)
    site = site_of(tmp_path)
    driver = site.driver()
    site.trainer.may_write_samples.clear()
    assert await driver.run() is RunOutcome.DONE
    problem = site.broker.status.problem
    assert (problem.reason, problem.field) == ("SamplesNotWritten", "spec.samples.everySteps")
    assert "of step 1 is still being written" in problem.message
    fates = happened(site)
    assert site.store.samples.keys() - unfinished(site) <= fates[1].keys() | fates[2].keys()


def unfinished(site: Site) -> set[SampleId]:
    """What an engine returned unasked at the very end."""
    return {sample for sample, data in site.store.samples.items() if data.finish_reason == "abort"}
