"""What other factors would have taken: on windows as the audit sees them, of distributions that are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from longboat_runtime.local.simulate import compare_factors
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.audit.lengths import PromptLengths
from longboat_runtime.rounds.events import DropReason
from longboat_runtime.rounds.measurements import RoundMeasured, RoundWork, StepTimes
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.rounds.tail_batching import TailBatching
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId
from longboat_runtime.simulate.curve import StepCurve
from longboat_runtime.simulate.lengths import TwoLevel
from longboat_runtime.simulate.overcommit import PERIODS, simulate_factors
from longboat_runtime.simulate.recording import Recording, fold
from longboat_runtime.simulate.simulation import simulate
from longboat_runtime.simulate.site import Site
from tests.rounds.audit.racing import LONGEST, MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, Racing, play
from tests.support.log import logged
from tests.timeline.history import write

PROMPTS, GROUP, ENGINES = 32, 8, 2
# As measured on engines of small models on CPUs.
STEPS = {1: StepTimes(1000, 6.0), 64: StepTimes(1000, 15.0)}
ALIKE = PromptLengths("math", (200,) * GROUP, (), (), (200,) * GROUP)
MEASURED = RoundMeasured(
    1, RoundKind.SHORT, 1, ENGINES, 0, 0, 100, 64, 0, 0.5, STEPS, RoundWork(2.5, 10.0, measurements.Responses())
)


def recording(prompts: list[PromptLengths], **more: object) -> Recording:
    made = Recording(prompts, {"": PROMPTS}, GROUP, LONGEST, 10, 0.0, [MEASURED], 0)
    return replace(made, **more)


@cache
def seconds(factor: float) -> float:
    """What a round with the factor takes under the distribution that the window is a sample of."""
    distribution = TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST)
    policy = TailBatching(PROMPTS, GROUP, factor, 1.0)
    site = Site(StepCurve.from_observed(STEPS), engines=ENGINES)
    return simulate(policy, GROUP, site, distribution, 400, most_steps=45).rollout_per_round


@pytest.mark.extended
def test_the_best_factor_is_nearly_the_best_in_truth() -> None:
    """By one window of eight periods."""
    runs = simulate_factors(recording(play(Racing(prompt_overcommit=1.25), 32, np.random.default_rng(1)).prompts()))
    predicted = {factor: fmean(run.rollout_per_round for run in of) for factor, of in runs.items()}
    truth = {factor: seconds(factor) for factor in PERIODS}
    best = min(predicted, key=lambda factor: predicted[factor])
    assert best > 1
    assert truth[best] <= min(truth.values()) / 0.97


def test_equal_responses_take_as_long_with_every_factor_that_launches_as_many() -> None:
    runs = simulate_factors(recording([ALIKE] * 60))
    each = 200 * StepCurve.from_observed(STEPS)(PROMPTS * GROUP // ENGINES)
    assert [run.rollout_per_round for run in runs[1.0]] == pytest.approx([each] * len(runs[1.0]), rel=1e-6)


def test_domains_with_quotas_have_lengths_of_their_own() -> None:
    """One domain's responses are short, the other's long: a round without a race takes as long as the long ones."""
    code = [PromptLengths("code", (10,) * GROUP, (), (), (10,) * GROUP) for _ in range(60)]
    math = [PromptLengths("math", (300,) * GROUP, (), (), (300,) * GROUP) for _ in range(60)]
    quotas = {"code": PROMPTS // 2, "math": PROMPTS // 2}
    flat = replace(MEASURED, step_times={1: StepTimes(100, 1.0)})
    runs = simulate_factors(recording([*code, *math], quotas=quotas, rounds=[flat]))
    assert fmean(run.rollout_per_round for run in runs[1.0]) == pytest.approx(300 * 0.01)


def log(domain: str = "") -> list[events.Body]:
    """A round of two groups of two, of which one is trained, and a third group that still runs."""
    trained, flat, running = (PromptId(0, row) for row in range(3))
    done: list[events.Body] = [
        events.Drawn(0, (trained, flat, running), domain),
        events.RoundOpened(1, RoundKind.SHORT, 0),
    ]
    done += [events.Launched(1, prompt, 0, 2) for prompt in (trained, flat)]
    for prompt in (trained, flat):
        for index in range(2):
            sample = SampleId(*prompt, 0, index)
            done.append(events.Generated(sample, 7, 20 + index, FinishReason.STOP, (), "engine-0"))
            done.append(events.Graded(sample, GradeKind.SCORED, 0.0, 0.1))
    done += [
        events.GroupDropped(flat, 0, DropReason.ZERO_VARIANCE),
        MEASURED,
        replace(MEASURED, round=2, tensor_parallel=2),
        replace(MEASURED, round=3, waiting=3, running=48),
        events.StepCommitted(1, 1, 1, (SampleId(*trained, 0, 0), SampleId(*trained, 0, 1))),
        events.Launched(2, running, 0, 2),
        events.Generated(SampleId(*running, 0, 0), 7, 5, FinishReason.STOP, (), "engine-0"),
    ]
    return done


@pytest.mark.parametrize("domain", ["", "math"])
def test_a_log_says_what_a_simulation_needs(domain: str) -> None:
    found = fold(map(logged, log(domain)))
    assert found.quotas == {domain: 1}
    assert (found.group_size, found.longest, found.prompt_tokens, found.flat) == (2, 21, 7, 0.5)
    assert [each.finished for each in found.prompts] == [(20, 21), (20, 21)], "a group that still runs looks too short"
    assert ([of.round for of in found.rounds], found.others) == ([1, 3], 1)
    assert found.step_times == {1: StepTimes(2000, 12.0), 64: StepTimes(2000, 30.0)}
    assert found.max_sequences == 64
    assert found.round_seconds == [2.5, 2.5]


def test_a_stopped_response_may_be_the_longest() -> None:
    stopped = events.Stopped(SampleId(0, 2, 0, 1), 900, "engine-0")
    assert fold(map(logged, [*log(), stopped])).longest == 900


async def test_the_command_prints_what_was_recorded_and_a_row_for_each_factor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await write(tmp_path, 1, [events.Event(seq, 1, float(seq), body) for seq, body in enumerate(log(), 1)])
    assert compare_factors(tmp_path) == 0
    recorded, simulated, _, head, *rows = capsys.readouterr().out.splitlines()
    assert recorded == (
        "recorded   2 rounds of 1 prompt x 2 responses, 2.5 s a round, on 2 engines of 1 device (left out: 1 round with engines of other "
        "sizes)"
    )
    assert "lengths of 2 prompts" in simulated
    assert head.split()[0] == "promptOvercommit"
    assert [row.split()[0] for row in rows] == ["1", "1.125", "1.25", "1.5"]


def test_a_job_that_cannot_be_simulated_is_told_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no step was trained yet"):
        fold(logged(body) for body in log() if not isinstance(body, events.StepCommitted))
    unmeasured = [replace(body, step_times={}) if isinstance(body, RoundMeasured) else body for body in log()]
    with pytest.raises(ValueError, match="run another job"):
        fold(map(logged, unmeasured))
    turns = [replace(body, turns=2) if isinstance(body, events.Generated) else body for body in log()]
    with pytest.raises(ValueError, match="episodes"):
        fold(map(logged, turns))
    assert compare_factors(tmp_path) == 1
    assert capsys.readouterr().err.startswith(f"OUTPUT {tmp_path}: no events in ")
