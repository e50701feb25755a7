"""The actor of an environment pod, with a real recorder and real environments, and engines that draw by the seed of a turn."""

import resource
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_runtime.episodes import actor as actor_module
from longboat_runtime.episodes.play import EpisodeRequest, finished
from longboat_runtime.rollout.turn_router import TurnEngines
from longboat_runtime.samples import EpisodeEnd, FinishedSample, FinishReason, GeneratedSample, LossCause, LostSample
from tests.episodes.actors import Pod, StandIn, config_of, environment, write_game
from tests.episodes.clusters import sample_request
from tests.episodes.conftest import episode_directories, open_directory, start_environments_in
from tests.support.waiting import eventually_async


@pytest.fixture
def game(directory: Path) -> Path:
    return write_game(directory)


async def played(pod: Pod, number: int, environment: str, **task: object) -> GeneratedSample:
    """Plays a sample to its end."""
    request = sample_request(row=number)
    await pod.play(number, request, environment, **task)
    outcome = await pod.outcome(number)
    assert isinstance(outcome, FinishedSample), outcome
    sample = pod.store.samples[request.id]
    assert outcome == sample.summary
    return sample


async def test_an_episode_is_stored_before_it_is_reported(environments: Path, game: Path, directory: Path) -> None:
    async with Pod(config_of(environments, environment(game, "guess"))) as pod:
        sample = await played(pod, 1, "guess", turns=3)
    episode = sample.episode
    assert episode is not None
    assert (episode.end, episode.environment, episode.rewards) == (EpisodeEnd.FINISHED, "guess", (1.0, 0.5, 1 / 3))
    assert episode.reward == pytest.approx(11 / 6)
    assert episode.environment_seconds > 0
    summary = sample.summary
    assert (summary.turns, summary.segments != ()) == (3, True)
    drawn = [tokens for _, tokens in pod.engine.engine.drawn]
    assert summary.tokens == sum(map(len, drawn)) == sum(turn.tokens for turn in episode.turns)
    assert sample.token_ids.tolist() == drawn[-1]
    assert [message["role"] for message in episode.messages] == ["user", "assistant"] * 3
    assert sample.text == episode.messages[-1]["content"]
    [segment] = sample.segments
    assert segment.token_ids[segment.positions].tolist() == [token for tokens in drawn for token in tokens]
    assert not episode_directories(directory)


async def test_its_episodes_may_open_more_connections_than_a_container_begins_with(
    environments: Path, game: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        async with Pod(config_of(environments, environment(game, "guess"))):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(65_536, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_replay_draws_the_same_tokens(environments: Path, game: Path) -> None:
    config = config_of(environments, environment(game, "guess"))
    async with Pod(config) as first:
        once = await played(first, 1, "guess")
    async with Pod(config, StandIn(dies=2)) as second:
        again = await played(second, 1, "guess")
    assert [segment.token_ids.tolist() for segment in once.segments] == [
        segment.token_ids.tolist() for segment in again.segments
    ]


async def test_an_environment_that_returns_no_reward_leaves_it_to_rewards(environments: Path, game: Path) -> None:
    async with Pod(config_of(environments, environment(game, "ungraded"))) as pod:
        sample = await played(pod, 1, "ungraded")
    assert sample.episode is not None
    assert sample.episode.reward is None


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fail", "RuntimeError: the board is broken"),
        ("die", "ended by signal 9"),
        ("idle", "without a reply of the model"),
    ],
)
async def test_an_episode_that_fails_is_lost(environments: Path, game: Path, function: str, words: str) -> None:
    async with Pod(config_of(environments, environment(game, function))) as pod:
        await pod.play(1, sample_request(), function)
        lost = await pod.outcome(1)
        assert isinstance(lost, LostSample)
        assert (lost.cause, lost.held_up, lost.engine_died) == (LossCause.ENVIRONMENT, False, False)
        assert words in lost.reason
        assert function in lost.reason
        assert not pod.store.samples


async def test_an_error_of_our_own_costs_one_episode(
    environments: Path, game: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: EpisodeRequest, *rest: Any) -> GeneratedSample | LostSample:
        if request.number == 1:
            raise LookupError("no such token")
        return finished(request, *rest)

    monkeypatch.setattr(actor_module, "finished", failing)
    async with Pod(config_of(environments, environment(game, "guess"))) as pod:
        await pod.play(1, sample_request(), "guess")
        lost = await pod.outcome(1)
        assert isinstance(lost, LostSample)
        assert (lost.cause, lost.held_up) == (LossCause.ENVIRONMENT, False)
        assert "no such token" in lost.reason
        await played(pod, 2, "guess")


async def test_seconds_in_the_environment_are_limited_and_time_of_the_model_is_not(
    environments: Path, game: Path
) -> None:
    engine = StandIn()
    async with Pod(config_of(environments, environment(game, "hang", deadlineSeconds=10)), engine) as pod:
        engine.may_draw.clear()
        await pod.play(1, sample_request(), "hang")
        await eventually_async(lambda: engine.waiting)
        playing = pod.actor._playing[1]
        begun = pod.actor._recorder.environment_seconds(playing.endpoint)
        assert (await pod.actor._client.state())["playing"] == 1
        assert pod.actor._recorder.environment_seconds(playing.endpoint) == begun
        engine.may_draw.set()
        summary = await pod.outcome(1)
        assert isinstance(summary, FinishedSample)
        sample = pod.store.samples[summary.id]
    assert sample.episode is not None
    assert (sample.episode.end, sample.episode.reward, len(sample.episode.turns)) == (EpisodeEnd.TIMEOUT, None, 2)
    assert sample.episode.environment_seconds >= 10


async def test_an_episode_that_is_stopped_ends_at_once_and_leaves_nothing(
    environments: Path, game: Path, directory: Path
) -> None:
    async with Pod(config_of(environments, environment(game, "hang"))) as pod:
        await pod.play(1, sample_request(), "hang")
        await eventually_async(lambda: len(pod.engine.engine.drawn) == 2)
        await pod.actor.stop([1, 7])
        summary = await pod.outcome(1)
        assert isinstance(summary, FinishedSample)
        assert summary.finish_reason is FinishReason.ABORT
        assert not pod.store.samples
        assert not pod.actor._playing
        assert not episode_directories(directory)
        assert (await pod.actor._client.state())["playing"] == 0


async def test_a_sample_with_which_engines_die_is_the_engines_loss(environments: Path, game: Path) -> None:
    async with Pod(config_of(environments, environment(game, "guess")), StandIn(dies=9)) as pod:
        await pod.actor.update(TurnEngines(2, dict.fromkeys("abc", pod.engine)))
        await pod.play(1, sample_request(), "guess")
        lost = await pod.outcome(1)
    assert isinstance(lost, LostSample)
    assert (lost.cause, lost.engine_died) == (LossCause.ENGINE, True)


async def test_what_plays_when_its_server_ends_is_held_up(game: Path) -> None:
    with open_directory() as folder:
        server = start_environments_in(folder)
        async with Pod(config_of(folder / "environments.sock", environment(game, "hang"))) as pod:
            await pod.play(1, sample_request(), "hang")
            await eventually_async(lambda: len(pod.engine.engine.drawn) == 2)
            server.kill()
            server.wait()
            lost = await pod.outcome(1)
    assert isinstance(lost, LostSample)
    assert (lost.cause, lost.held_up) == (LossCause.ENVIRONMENT, True)


async def test_episodes_end_with_their_driver(environments: Path, game: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(actor_module, "DRIVER_SECONDS", 0.0)
    async with Pod(config_of(environments, environment(game, "hang"))) as pod:
        await pod.play(1, sample_request(), "hang")
        await eventually_async(lambda: not pod.actor._playing)
        assert not pod.actor._recorder._launches
        assert not pod.store.samples


async def test_an_environment_that_cannot_be_loaded_is_a_problem_of_the_spec(environments: Path, game: Path) -> None:
    pod = Pod(config_of(environments, environment(game, "guess"), environment(game, "missing")))
    problem = await pod.actor.start()
    assert isinstance(problem, SpecProblem)
    assert str(problem.field).startswith("spec.environments[1]")
    await pod.actor.close()
