from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from longboat_crds.base import Role
from longboat_crds.environments import EnvironmentPoolSpec, EnvironmentSpec
from longboat_crds.load import load_job
from longboat_crds.rewards import RewardPoolSpec
from longboat_crds.status import Problem, ResumedStatus, TrackingStatus, Training, TrainingState
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.local.display import Display, heading, line
from longboat_runtime.local.picture import draw, points
from longboat_runtime.local.run import _resources, move_aside, on_one_node, on_this_machine, run_file
from longboat_runtime.metrics.record import JsonLines, Record
from longboat_runtime.ray_nodes import pool_resource
from longboat_runtime.reward.slots import resource
from longboat_runtime.trainer.placement import pod_nodes
from tests.driver.fakes import make_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
METRICS = {"critic/score/mean": 0.5, "response_length/mean": 12.0, "timing_s/step": 1.25, "sync/parity_max": 2e-6}


def test_one_machine_hosts_all_engines_and_graders() -> None:
    spec = make_spec()
    rollout = spec.rollout.model_copy(update={"replicas": 3, "engines_per_pod": 2})
    pools = [RewardPoolSpec(name="code", replicas=2, graders_per_pod=4), RewardPoolSpec(name="math", graders_per_pod=3)]
    trainer = spec.trainer.model_copy(update={"replicas": 2, "devices_per_pod": 4})
    local = on_one_node(spec.model_copy(update={"rollout": rollout, "reward_pools": pools, "trainer": trainer}))
    assert (local.rollout.replicas, local.rollout.engines_per_pod) == (1, 6)
    assert [(pool.name, pool.replicas, pool.graders_per_pod) for pool in local.reward_pools] == [
        ("code", 1, 8),
        ("math", 1, 3),
    ]
    assert (local.rounds, local.trainer) == (spec.rounds, trainer)
    offered = _resources(local)
    assert offered == {
        "longboat-store": 1,
        "longboat-rollout": 6,
        "longboat-trainer": 8,
        resource("code"): 8,
        resource("math"): 3,
    }
    assert pod_nodes([{"NodeID": "here", "Alive": True, "Resources": offered}], 2, 4)


def test_one_machine_plays_the_episodes_of_all_pods() -> None:
    pools = [EnvironmentPoolSpec(name="games", replicas=3, min_replicas=2, episodes_per_pod=4)]
    local = on_one_node(make_spec().model_copy(update={"environment_pools": pools}))
    assert local.environment_pools == [EnvironmentPoolSpec(name="games", episodes_per_pod=12)]
    assert _resources(local)[pool_resource(Role.ENVIRONMENT, "games")] == 12
    assert on_one_node(make_spec()).environment_pools is None


def test_an_environment_in_a_file_is_found_in_the_directory_of_its_volume() -> None:
    names = ("/data/games.py:play", "games:play")
    environments = [EnvironmentSpec(name=f"e{number}", function=name) for number, name in enumerate(names)]
    spec = make_spec().model_copy(update={"environments": environments})
    here = on_this_machine(spec, {"/data": Path("/home/me")})
    assert [each.function for each in here.environments or ()] == ["/home/me/games.py:play", "games:play"]


def test_paths_of_pods_are_found_in_the_directories_that_stand_for_their_volumes() -> None:
    spec = load_job((EXAMPLE / "rljob.yaml").read_text()).spec
    here = on_this_machine(spec, {"/data": Path("/home/me"), "/data/quickstart/model": Path("/models/tiny")})
    assert here.model.path == "/models/tiny"
    assert here.dataset.files is not None
    assert here.dataset.files.paths == ["/home/me/quickstart/train.jsonl"]
    assert here.dataset.evaluation is not None
    assert here.dataset.evaluation.files is not None
    assert here.dataset.evaluation.files.paths == ["/home/me/quickstart/heldout.jsonl"]
    assert here.rewards == spec.rewards
    assert here.rounds == spec.rounds


def test_a_reward_in_a_file_is_found_there_too_and_one_in_a_module_stays() -> None:
    spec = make_spec()
    first = spec.rewards[0]
    rewards = [first.model_copy(update={"function": name}) for name in ("/data/a.py:score", "data.a:score")]
    here = on_this_machine(spec.model_copy(update={"rewards": rewards}), {"/data": Path("/home/me")})
    assert [reward.function for reward in here.rewards] == ["/home/me/a.py:score", "data.a:score"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("volumes", "/dta=.", "--volume /dta: nothing of the job is taken from it: no path lies below /dta"),
        ("volumes", "/data", "--volume /data: write NAME=DIRECTORY"),
        ("volumes", "/data=", "--volume /data=: write NAME=DIRECTORY"),
        ("config_maps", "quickstart=/nowhere", "--config-map quickstart=/nowhere: write NAME=DIRECTORY"),
    ],
)
def test_a_wrong_directory_is_told_before_anything_starts(
    option: str, value: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, list[str]] = {"config_maps": [], "volumes": [], option: [value]}
    assert run_file(EXAMPLE / "rljob.yaml", tmp_path / "run", **options) == 1
    assert words in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "run").exists()


def test_a_missing_library_is_told_with_the_package_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("longboat_runtime.local.run.ctypes.CDLL", missing)
    assert run_file(EXAMPLE / "rljob.yaml", tmp_path / "run", [], []) == 1
    assert "apt-get install libnuma1" in " ".join(capsys.readouterr().out.split())


def test_lines_stand_under_their_titles() -> None:
    titles, shown = heading(), line(Record(7, 0.0, METRICS))
    for title, value in (("reward", "0.500"), ("length", "12"), ("parity", "2e-06"), ("step s", "1.2")):
        end = titles.index(f" {title}") + len(title) + 1
        assert shown[:end].endswith(value)


def test_a_problem_stands_beside_the_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200))
    training = Training(incarnation=1, state=TrainingState.RUNNING, step=2, steps=5, stage="train")
    display.show(DriverStatus(training, problem=Problem(reason="StageStuck", message="no progress")))
    assert display.now == "step 2 of 5: train  [yellow]StageStuck: no progress[/yellow]"
    display.write(Record(1, 0.0, METRICS))
    display.summarise()
    assert "reward" in capsys.readouterr().out


def test_a_problem_is_printed_once_for_its_reason_and_as_it_was_at_the_end(tmp_path: Path) -> None:
    printed = io.StringIO()
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200, file=printed))
    training = Training(incarnation=1, state=TrainingState.RUNNING, step=2, steps=5)
    for seen in ("[a] 1 step", "[a] 2 steps"):
        problem = Problem(reason="NoLearningSignal", field="spec.rewards[0]", message=seen)
        display.show(DriverStatus(training, problem=problem))
    display.summarise()
    first, later, *_, reason, at_the_end = printed.getvalue().splitlines()
    assert (first, later) == ("NoLearningSignal spec.rewards[0]", "[a] 1 step")
    assert (reason, at_the_end) == (first, "[a] 2 steps")
    printed.truncate(0)
    display.show(DriverStatus(training))
    display.summarise()
    assert "NoLearningSignal" not in printed.getvalue(), "the job is well"


def test_why_a_job_failed_is_left_to_the_run(tmp_path: Path) -> None:
    printed = io.StringIO()
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200, file=printed))
    failed = Training(incarnation=1, state=TrainingState.FAILED, step=2, steps=5)
    display.show(DriverStatus(failed, problem=Problem(reason="ModelInvalid", message="no weights")))
    assert not printed.getvalue()


def test_skipped_prompts_and_padded_samples_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200))
    for skipped in (0, 3, 4):
        training = Training(
            incarnation=1, state=TrainingState.RUNNING, skipped_prompts=skipped, attention="padded (eager): a cap"
        )
        display.show(DriverStatus(training))
    said = capsys.readouterr().out
    assert said.count("samples are padded (eager): a cap") == 1
    assert said.count("3 prompts are too long and are skipped") == 1
    assert "4 prompts" not in said


def test_what_was_accepted_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200))
    resumed = ResumedStatus(accepted=["Data: row 3 has changed", "Model: config.json has changed"])
    training = Training(incarnation=2, state=TrainingState.RUNNING, resumed=resumed)
    for _ in range(2):
        display.show(DriverStatus(training))
    assert capsys.readouterr().out.splitlines() == [
        "resumed all the same: Data: row 3 has changed",
        "resumed all the same: Model: config.json has changed",
    ]


def test_an_earlier_run_is_moved_aside_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert move_aside(root) is None
    root.mkdir()
    assert move_aside(root) is None, "nothing has run there"
    for number in (1, 2):
        (root / "incarnations" / str(number)).mkdir(parents=True)
        assert move_aside(root) == tmp_path / f"run.{number}"
        assert not root.exists()
    assert [path.name for path in sorted(tmp_path.glob("run.*/incarnations/*"))] == ["1", "2"]


def test_one_can_not_start_over_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_file(EXAMPLE / "rljob.yaml", tmp_path / "run", [], [], fresh=True, resume=True) == 1
    assert "--fresh starts over and --resume does not" in " ".join(capsys.readouterr().out.split())


def test_where_the_job_is_tracked_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(Job("small", make_spec(), tmp_path, 1), Console(width=200))
    tracking = TrackingStatus(mlflow="https://mlflow.example.com/#/experiments/1/runs/2")
    for step in range(2):
        display.show(DriverStatus(Training(incarnation=1, state=TrainingState.RUNNING, step=step, tracking=tracking)))
    assert capsys.readouterr().out.count("tracked in https://mlflow.example.com/#/experiments/1/runs/2") == 1


def test_the_picture_shows_what_was_recorded(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "incarnations" / "1" / "metrics.jsonl")
    records = [Record(step, 0.0, METRICS if step else {"val/score/mean": 0.1}) for step in range(3)]
    for record in records:
        sink.write(record)
    sink.close()
    assert points(records, "critic/score/mean") == ([1, 2], [0.5, 0.5])
    assert draw(tmp_path).read_bytes().startswith(b"\x89PNG")
