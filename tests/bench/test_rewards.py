"""What is graded, how rounds and moves are timed, and what the summary says of them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.rewards import swaps
from bench.rewards.cpus import flaws, rounds_of
from bench.rewards.mix import HANGING, HARD_LIMIT, Contention, Fate, Mix
from bench.rewards.moves import Decision, PodSeen, Seen, pod_seen, timed
from bench.rewards.summary import page, seconds_of, within, write
from bench.rewards.timeouts import ARMS
from longboat_crds.job import RLJobSpec
from longboat_runtime.rounds import events, measurements
from longboat_runtime.rounds.round_kind import RoundKind
from longboat_runtime.samples import FinishReason, GradeKind, PromptId, SampleId

RUN = {
    "kind": "run",
    "machine": {"processor": "any", "cpus": 2, "kernel": "6"},
    "commit": "abc",
    "settings": {"problems": 3, "processes": 2, "scale": 6.0, "swap": 2},
}


def test_the_mix_is_the_same_for_the_same_seed_and_what_it_says() -> None:
    mix = Mix(3)
    rows = [row for row in range(500) for _ in range(40)]
    responses = mix.responses(rows, 1)
    assert responses == Mix(3).responses(rows, 1)
    assert responses != mix.responses(rows, 2)
    seconds = sorted(problem.seconds for problem in mix.problems)
    assert seconds[-1] == pytest.approx(100 * seconds[0], rel=0.5)
    fates = Counter(response.fate for response in responses)
    hanging = fates[Fate.ASLEEP] + fates[Fate.BUSY]
    assert hanging == pytest.approx(HANGING * len(rows), rel=0.15)
    assert fates[Fate.ASLEEP] == pytest.approx(hanging / 2, rel=0.15)
    ending = [of for of in responses if of.fate in (Fate.CORRECT, Fate.WRONG)]
    assert all(0 < of.cpu_seconds <= of.seconds < HARD_LIMIT for of in ending)


def test_contention_changes() -> None:
    contention = Contention(1, 3600.0)
    assert {contention.at(second) for second in range(3600)} == set(Contention.LEVELS)


def test_the_summary_says_how_much_less_learned_limits_take() -> None:
    fates = dict.fromkeys((fate.value for fate in Fate), 0)
    rounds = [
        {
            "kind": "round",
            "seed": seed,
            "arm": arm,
            "round": number,
            "contention": number,
            "grades": 8,
            "seconds": seconds,
            "cpu": 2 * seconds,
            "occupied": 3 * seconds,
            "killed": fates | {"busy": 2, "correct": 1},
            "by_limit": fates | ({"correct": 1} if arm == "learned" else {}),
            "correct": 4,
            "audits": 10,
            "wrong_audits": 0,
        }
        for seed, least in ((0, 3.0), (1, 1.0))
        for number in (1, 2)
        for arm, seconds in zip(ARMS, (9.0, least), strict=True)
    ]
    text = page([[RUN, *rounds]])
    assert "| hard | 72.0 | 108.0 | 36.0 | 12 | 0 | 0 | 0.00% |" in text
    assert "| learned | 16.0 | 24.0 | 8.0 | 8 | 4 | 4 | 25.00% |" in text
    assert "take 4.50 x less CPU seconds and 4.50 x less occupied seconds" in text
    assert "By set: CPU 3.00, 9.00 x less, occupied 3.00, 9.00 x" in text
    assert "By 20 audits" in text
    assert "In 2 rounds other processes wanted the CPUs too" in text


TRACE = swaps.Trace(seed=4, rounds=5, swap=2, work=32.0)


def test_the_load_of_the_trace_swaps_and_every_round_costs_the_same() -> None:
    assert [TRACE.heavy(number) for number in range(1, 6)] == ["code", "math", "math", "code", "code"]
    assert [swaps.Trace(5, 5, 2, 32.0).heavy(number) for number in range(1, 6)] == [
        "math",
        "code",
        "code",
        "math",
        "math",
    ]
    rows = TRACE.rows()
    assert rows == swaps.Trace(4, 5, 2, 32.0).rows()
    assert len({row["prompt"] for row in rows}) == len(rows)
    for number in range(1, 6):
        of = rows[(number - 1) * swaps.PROMPTS : number * swaps.PROMPTS]
        assert sum(row["domain"] == TRACE.heavy(number) for row in of) == swaps.HEAVY
        assert sum(swaps.GROUP * row["cpu_seconds"] for row in of) == pytest.approx(32.0, rel=1e-4)


@pytest.mark.parametrize("arm", swaps.ARMS)
def test_the_jobs_of_all_arms_are_valid_and_share_the_same_cpus(arm: str) -> None:
    spec = RLJobSpec.model_validate(swaps.job_spec(TRACE, swaps.ARMS[arm](1000), 1000))
    assert spec.reward_cpu is not None
    assert spec.reward_cpu.total == "1000m"
    least = sum(pool.cpu_bounds(1000)[0] for pool in spec.reward_pools)
    assert least == {"fixed": 1000, "moving": 200, "shared": 100}[arm]


def logged(*bodies: tuple[float, events.Body]) -> list[events.Event]:
    return [events.Event(seq, 1, at, body) for seq, (at, body) in enumerate(bodies, 1)]


def graded(row: int, index: int = 0, kind: GradeKind = GradeKind.SCORED) -> events.Graded:
    return events.Graded(SampleId(0, row, 0, index), kind, 1.0, 0.5, parts={"math" if row else "code": 1.0})


def generated(row: int, index: int = 0) -> events.Generated:
    return events.Generated(SampleId(0, row, 0, index), 3, 5, FinishReason.STOP, (), "engine")


def test_a_round_lasts_from_its_last_response_to_its_last_grade() -> None:
    log = logged(
        (10.0, events.RoundOpened(1, RoundKind.SHORT, 0)),
        (10.1, events.Launched(1, PromptId(0, 0), 0, 1)),
        (10.2, events.Launched(1, PromptId(0, 1), 0, 1)),
        (11.0, generated(0)),
        (11.5, graded(0)),
        (12.0, generated(1)),
        (14.0, measurements.CpusAsked({"code": 0.75, "math": 0.25}, "")),
        (15.0, measurements.CpusGranted({"code": 0.75, "math": 0.25})),
        (42.0, graded(1)),
        (43.0, measurements.RoundGraded(1, {"code": measurements.PoolGrading(2, 2, 7.5, 1, 3.0, ())})),
        (44.0, events.StepCommitted(1, 1, 1, ())),
        (50.0, events.RoundOpened(2, RoundKind.SHORT, 1)),
        (51.0, generated(2)),
    )
    first = rounds_of(log)[0]
    assert (first.seconds, first.generating, first.rows) == (30.0, 2.0, [0, 1])
    assert (first.grades, first.scored, first.cpu) == (2, 2, {"code": 7.5})
    assert first.ended == {"code": -0.5, "math": 30.0}
    assert first.asked == [(2.0, {"code": 0.75, "math": 0.25})]
    assert first.granted == [(3.0, {"code": 0.75, "math": 0.25})]


def test_a_block_is_void_if_it_is_not_the_trace() -> None:
    trace = swaps.Trace(0, 1, 1, 32.0)
    rows = range(swaps.PROMPTS)

    def block(of: Any, kind: GradeKind = GradeKind.SCORED) -> list[str]:
        bodies: list[tuple[float, events.Body]] = [(0.0, events.RoundOpened(1, RoundKind.SHORT, 0))]
        bodies += [(1.0, events.Launched(1, PromptId(0, row), 0, swaps.GROUP)) for row in of]
        bodies += [(2.0, graded(row, index, kind)) for row in of for index in range(swaps.GROUP)]
        return list(flaws(trace, rounds_of(logged(*bodies)), 1))

    assert block(rows) == []
    assert block(range(1, swaps.PROMPTS + 1)) == [f"round 1 has rows {[*range(1, swaps.PROMPTS + 1)]}"]
    assert block(rows, GradeKind.TIMEOUT) == [f"round 1 has 0 scores of {swaps.GRADES} grades"]


def seen(at: float, pod: str, cpu: int, settled: bool = True) -> PodSeen:
    return PodSeen(at, pod, pod.split("-", maxsplit=1)[0], cpu, cpu, settled)


def test_a_move_is_over_when_every_receiver_has_its_share_in_force() -> None:
    pods = [seen(0.0, f"{pool}-{index}", 300) for pool in swaps.DOMAINS for index in (0, 1)]
    pods += [
        seen(10.1, "math-0", 100),
        seen(10.2, "math-1", 100),
        seen(10.3, "code-0", 500),
        seen(10.4, "code-1", 500, settled=False),
        seen(10.5, "code-1", 500),
        seen(20.1, "code-0", 100),
        seen(20.2, "math-0", 500),
        seen(30.2, "math-1", 500),
    ]
    decisions = [
        Decision(10.0, "math", "code", 500),
        Decision(20.0, "code", "math", 500),
        Decision(30.0, "math", "code", 300),
    ]
    first, second, third = timed(reversed(decisions), pods)
    assert (first.seconds, first.receivers, first.donors) == (0.5, 2, 2)
    assert (first.lowered, first.freed, first.raised) == (0.2, 0.2, 0.4)
    assert (second.seconds, second.receivers, second.donors) == (None, 1, 1), "one got it after the next decision"
    assert third.seconds is None


def test_watches_tell_what_was_decided_and_what_is_in_force() -> None:
    pod = {
        "metadata": {"name": "job-reward-code-0", "labels": {"longboat.dev/reward-pool": "code"}, "generation": 3},
        "spec": {"containers": [{"name": "graders", "resources": {"limits": {"cpu": "750m"}}}]},
        "status": {
            "observedGeneration": 2,
            "containerStatuses": [
                {"name": "reward", "resources": {"limits": {"cpu": "2"}}},
                {"name": "graders", "resources": {"limits": {"cpu": "500m"}}},
            ],
        },
    }
    assert pod_seen(1.0, pod) == PodSeen(1.0, "job-reward-code-0", "code", 750, 500, settled=False)
    status: Any = pod["status"]
    status["observedGeneration"] = 3
    assert pod_seen(1.0, pod).settled
    status["conditions"] = [{"type": "PodResizeInProgress", "status": "True"}]
    assert not pod_seen(1.0, pod).settled
    move = {
        "source": "math",
        "target": "code",
        "cpu": "400m",
        "outcome": "UnderWay",
        "time": "2026-01-01T00:00:00.250Z",
    }
    job = {
        "spec": {"rewardPools": [{"name": "code", "replicas": 2}, {"name": "math", "replicas": 2}]},
        "status": {
            "rewardCpu": {"pools": [{"name": "code", "cpu": "1"}, {"name": "math", "cpu": "200m"}], "moves": [move]}
        },
    }
    told = Seen()
    told.job({"type": "MODIFIED", "object": job})
    move["outcome"] = "Done"
    told.job({"type": "MODIFIED", "object": job})
    (decision,) = told.decisions.values()
    assert (decision.source, decision.target, decision.share) == ("math", "code", 500)
    assert decision.decided % 1 == pytest.approx(0.25)
    assert [*told.outcomes.values()] == ["Done"]


def block(arm: str, seed: int, *seconds: float, void: tuple[str, ...] = ()) -> dict[str, Any]:
    rounds = [{"round": number, "seconds": value, "cpu": {"code": value}} for number, value in enumerate(seconds, 1)]
    return {
        "kind": "block",
        "arm": arm,
        "seed": seed,
        "total": 1000,
        "work": 32.0,
        "rounds": rounds,
        "void": list(void),
    }


BLOCKS = [
    block("fixed", 0, 99.0, 60.0, 60.0),
    block("moving", 0, 99.0, 42.0, 38.0),
    block("shared", 0, 99.0, 40.0, 40.0),
    block("fixed", 1, 99.0, 60.0, 60.0),
    block("moving", 1, 99.0, 80.0, 80.0, void=("1 restarts",)),
    block("shared", 1, 99.0, 40.0, 40.0),
]


def test_arms_are_compared_on_the_rounds_that_all_of_them_graded() -> None:
    assert {arm: [*of] for arm, of in seconds_of(BLOCKS).items()} == {arm: [(0, 2), (0, 3)] for arm in swaps.ARMS}
    text = page([[RUN, *BLOCKS]])
    assert "| moving | 2 | 40.0 | 42.0 | 38.0 | 38.0 | 42.0 | 1.00 |" in text
    assert "1.50 x as fast as with fixed halves (at least 1.3 x; by block 1.50), and 1.00 x as fast as in one" in text
    assert "Void: moving 1 (1 restarts)" in text


def test_moves_that_were_not_seen_to_be_over_count_as_endless(tmp_path: Path) -> None:
    assert [within(share, range(1, 101)) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]
    move = {"target": "code", "receivers": 2, "donors": 2, "outcome": "Done"}
    move |= {"lowered": 0.1, "freed": 0.2, "raised": 0.3}
    moves = [move | {"seconds": seconds} for seconds in (0.5, 0.6, None)]
    line = {
        "kind": "moves",
        "seed": 1,
        "pods": 4,
        "total": 1200,
        "work": 4.0,
        "wall": 30.0,
        "steps": 9,
        "moves": moves,
        "most": {"counted": 1200, "quotas": 1150},
        "looks": {"counted": 70, "quotas": 300},
        "container_restarts": 0,
        "void": [],
    }
    recorded: list[list[dict[str, Any]]] = [[RUN, line], [RUN, *BLOCKS]]
    assert "| 3 | 4 and 4 | 0.60 (≤ 1) | inf | inf (≤ 3) | inf |" in page(recorded)
    assert (
        "asked for less after 0.10 s, had less after 0.20 s, receivers asked for more after 0.30 s, had it after 0.55 s"
        in page(recorded)
    )
    assert "together was 1.2 CPUs by the API" in page(recorded)
    raw = tmp_path / "rewards.jsonl"
    raw.write_text("".join(json.dumps(line) + "\n" for run in recorded for line in run))
    write(raw)
    assert raw.with_suffix(".svg").read_text().startswith("<?xml")
    text = raw.with_suffix(".md").read_text()
    assert "How long a move takes" in text
    assert "fixed, moving and shared" in text, "of each part the newest run that measured it"
