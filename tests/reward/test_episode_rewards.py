"""What rewards make of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_crds.job import RLJobSpec
from longboat_crds.reward_kinds import RewardKind, RewardSignature
from longboat_crds.rewards import RewardSpec
from longboat_graders.adapters import load_scorer
from longboat_graders.messages import FunctionOutcome, OutcomeKind, RewardFunction
from longboat_graders.result import RewardSample
from longboat_runtime.reward.combine import batch_rewards, combine
from longboat_runtime.reward.episodes import with_episode
from longboat_runtime.reward.scheduler import RayRewardScheduler
from longboat_runtime.reward.worker import turns_of
from longboat_runtime.samples import (
    Episode,
    EpisodeEnd,
    EpisodeOutcome,
    EpisodeTurn,
    FinishReason,
    Grade,
    GradeKind,
    PromptId,
    Row,
    SampleId,
)


def spec(name: str, **fields: Any) -> RewardSpec:
    return RewardSpec.model_validate({"name": name, **fields})


GAME = spec("game", kind="Episode")
CAPPED = spec("game", kind="Episode", timeoutScore=-2.0)
FORM = spec("form", function="longboat_graders.overlong:soft_overlong")
JUDGE = spec("judge", function="longboat_graders.overlong:soft_overlong")
REWARDS = {reward.name: reward for reward in (GAME, FORM, JUDGE)}


def ended(reward: float | None = None, end: EpisodeEnd = EpisodeEnd.FINISHED) -> EpisodeOutcome:
    return EpisodeOutcome("maze", end, reward, "" if end is EpisodeEnd.FINISHED else "more than its deadline")


def graded(rewards: list[RewardSpec], episode: EpisodeOutcome | None, score: float = 0.25) -> Grade:
    outcomes = {
        reward.name: FunctionOutcome(OutcomeKind.SCORED, score)
        for reward in rewards
        if reward.kind is not RewardKind.EPISODE
    }
    return combine(rewards, with_episode(rewards, outcomes, episode))


def test_the_reward_is_what_the_environment_returned() -> None:
    grade = graded([GAME], ended(0.75))
    assert (grade.kind, grade.score, grade.parts) == (GradeKind.SCORED, 0.75, {"game": 0.75})


def test_others_count_beside_it() -> None:
    grade = graded([GAME, FORM], ended(0.5))
    assert (grade.score, grade.parts) == (0.75, {"game": 0.5, "form": 0.25})


def test_others_grade_an_episode_without_a_reward() -> None:
    grade = graded([GAME, JUDGE], ended(None))
    assert (grade.kind, grade.parts) == (GradeKind.SCORED, {"judge": 0.25})


def test_an_episode_that_nothing_scores_is_an_error() -> None:
    grade = graded([GAME], ended(None))
    assert grade.kind is GradeKind.GRADER_ERROR
    assert "maze returned no reward" in grade.message


def test_the_deadline_is_a_timeout_with_its_own_score() -> None:
    grade = graded([CAPPED, FORM], ended(end=EpisodeEnd.TIMEOUT))
    assert (grade.kind, grade.score, grade.parts) == (GradeKind.TIMEOUT, -1.75, {"game": None, "form": 0.25})


def test_the_deadline_counts_the_least_of_the_batch_without_one() -> None:
    grades = [graded([GAME], ended(reward)) for reward in (-0.5, 1.0)] + [graded([GAME], ended(end=EpisodeEnd.TIMEOUT))]
    assert batch_rewards([GAME], grades) == [-0.5, 1.0, -0.5]


def test_the_deadline_is_a_timeout_of_all_rewards_if_the_environment_gives_none() -> None:
    grade = graded([JUDGE], ended(end=EpisodeEnd.TIMEOUT))
    assert (grade.kind, grade.parts) == (GradeKind.TIMEOUT, {"judge": None})


def test_a_sample_that_nothing_played_has_no_reward_of_an_environment() -> None:
    assert graded([GAME, JUDGE], None).parts == {"judge": 0.25}


@given(
    names=st.sets(st.sampled_from(sorted(REWARDS)), min_size=1),
    reward=st.none() | st.floats(-5, 5),
    end=st.sampled_from(EpisodeEnd),
    score=st.floats(-1, 1),
)
def test_timeouts_errors_and_scores_are_never_mixed_up(
    names: set[str], reward: float | None, end: EpisodeEnd, score: float
) -> None:
    """Each reward has an outcome; a deadline is always a timeout, and never scored; nothing else is a timeout."""
    rewards = [REWARDS[name] for name in sorted(names)]
    outcomes = {name: FunctionOutcome(OutcomeKind.SCORED, score) for name in names - {"game"}}
    all_outcomes = with_episode(rewards, outcomes, ended(None if end is EpisodeEnd.TIMEOUT else reward, end))
    assert all_outcomes.keys() == names
    grade = combine(rewards, all_outcomes)
    assert (grade.kind is GradeKind.TIMEOUT) == (end is EpisodeEnd.TIMEOUT)
    if end is EpisodeEnd.FINISHED:
        assert (grade.kind is GradeKind.GRADER_ERROR) == (reward is None and names == {"game"})
        assert "game" not in names or all_outcomes["game"].kind is not OutcomeKind.TIMEOUT
        if reward is not None and "game" in names:
            assert grade.parts["game"] == reward


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def turn(new: list[dict[str, Any]], text: str, continues: int | None) -> EpisodeTurn:
    return EpisodeTurn(new, reply(text), text, 3, FinishReason.STOP, 0.5, 0, continues)


SYSTEM, LEFT, WALL = (
    {"role": "system", "content": "Walk."},
    {"role": "user", "content": "left?"},
    {"role": "user", "content": "a wall"},
)
EPISODE = Episode(
    "maze",
    EpisodeEnd.FINISHED,
    None,
    1.5,
    turns=(
        turn([SYSTEM, LEFT], "yes", None),
        turn([LEFT], "a sub-agent", None),
        turn([WALL], "right", 0),
    ),
)


@pytest.fixture
def sample() -> RewardSample:
    return RewardSample("right", "Walk.", turns=turns_of(EPISODE))


def test_a_conversation_is_that_of_the_last_turn(sample: RewardSample) -> None:
    before, replies = sample.conversation
    assert before == [SYSTEM, LEFT]
    assert replies == [reply("yes"), WALL, reply("right")]
    assert [*before, *replies] == EPISODE.messages


def test_a_sample_without_turns_has_no_conversation() -> None:
    assert RewardSample("right", "Walk.").conversation == ([], [])


MODULE = """
def longboat(sample):
    return len(sample.turns) + sample.turns[1]["tokens"] / 10

def verl(data_source, solution_str, ground_truth, extra_info):
    return float(solution_str == "right") + extra_info["num_turns"]

def trl(prompts, completions, **columns):
    return [len(prompt) * 10 + len(completion) for prompt, completion in zip(prompts, completions)]
"""


@pytest.mark.parametrize(
    ("signature", "score"),
    [(RewardSignature.LONGBOAT, 3.3), (RewardSignature.VERL, 6.0), (RewardSignature.TRL, 23.0)],
)
def test_each_signature_gets_what_it_knows_of_an_episode(
    signature: RewardSignature, score: float, sample: RewardSample, tmp_path: Any
) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(MODULE)
    fields = {"batch": "Sample"} if signature is RewardSignature.TRL else {}
    reward = spec("own", function=f"{path}:{signature.value.lower()}", signature=signature.value, **fields)
    scorer: Any = load_scorer(RewardFunction.from_spec(reward), "spec.rewards[0]")
    assert scorer(sample).score == pytest.approx(score)


class Outcomes:
    """A store of the outcomes of episodes."""

    def __init__(self, **outcomes: EpisodeOutcome) -> None:
        self.held = {SampleId(0, 0, 0, index): outcome for index, outcome in enumerate(outcomes.values())}

    async def outcomes(self, ids: Sequence[SampleId]) -> dict[SampleId, EpisodeOutcome]:
        return {sample: self.held[sample] for sample in ids if sample in self.held}


def job(*rewards: dict[str, Any]) -> RLJobSpec:
    return RLJobSpec.model_validate(
        {
            "runtimeRef": {"name": "local"},
            "model": {"path": "/models/tiny", "maxLength": 512},
            "dataset": {"files": {"paths": ["/data/train.jsonl"]}},
            "algorithm": {"groupSize": 2},
            "rounds": {"steps": 5, "promptsPerRound": 2},
            "rollout": {"sampling": {"maxTokens": 8}},
            "rewards": list(rewards),
            "environments": [{"name": "maze", "function": "games:play"}],
            "environmentPools": [{"name": "games"}],
        }
    )


async def test_the_scheduler_takes_rewards_of_episodes_from_the_store() -> None:
    store: Any = Outcomes(first=ended(0.5), second=ended(end=EpisodeEnd.TIMEOUT))
    scheduler = RayRewardScheduler(job({"name": "game", "kind": "Episode", "weight": 2.0}), store)
    row = Row(PromptId(0, 0), "Walk.", (1, 2))
    first, second = store.held
    grade = await scheduler.grade(first, row)
    assert (grade.kind, grade.score, grade.parts) == (GradeKind.SCORED, 1.0, {"game": 0.5})
    assert (await scheduler.grade(second, row)).kind is GradeKind.TIMEOUT
    with pytest.raises(KeyError) as missing:
        await scheduler.grade(SampleId(0, 0, 0, 7), row)
    assert missing.value.args == (SampleId(0, 0, 0, 7),)
