"""Which environment plays a row of a job, and what it gets of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.environments import EnvironmentPoolSpec, EnvironmentSpec
from longboat_crds.job import RLJobSpec
from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver.episodes import SampleTasks
from longboat_runtime.episodes.play import EpisodeConfig, EpisodeRequest, recorder_launch
from longboat_runtime.episodes.tasks import Task, Tasks
from longboat_runtime.samples import PromptId, Row, SampleId, SampleRequest, Sampling
from tests.driver.fakes import FakeSource, make_spec


def job(*environments: dict[str, Any], pools: tuple[str, ...] = ("games",)) -> RLJobSpec:
    spec = make_spec()
    columns = spec.dataset.columns.model_copy(update={"ground_truth": "answer"})
    return spec.model_copy(
        update={
            "dataset": spec.dataset.model_copy(update={"columns": columns}),
            "environments": [EnvironmentSpec.model_validate({"function": "m:f", **each}) for each in environments],
            "environment_pools": [EnvironmentPoolSpec(name=pool) for pool in pools],
        }
    )


def row(domain: str = "", **columns: Any) -> Row:
    return Row(PromptId(0, 3), "text", (1,), domain, columns=columns)


def test_an_environment_gets_the_row_without_its_answer_and_plays_in_the_only_pool() -> None:
    tasks = Tasks(job({"name": "sums"}))
    assert tasks.task(row(question="2+2", answer="4")) == Task("games", "sums", {"question": "2+2"})


def test_rows_are_played_by_the_environment_of_their_domain_in_its_pool() -> None:
    chess = {"name": "chess", "domains": ["chess"], "pool": "games"}
    code = {"name": "code", "domains": ["code"], "pool": "tools", "columns": ["answer"]}
    tasks = Tasks(job(chess, code, pools=("games", "tools")))
    assert tasks.task(row("code", question="?", answer="4")) == Task("tools", "code", {"answer": "4"})
    assert tasks.task(row("chess")).pool == "games"
    with pytest.raises(
        SpecProblem, match=r"No environment plays row 3, whose domain is 'go'; they play chess, code"
    ) as e:
        tasks.task(row("go"))
    assert (e.value.reason, e.value.field) == (Reason.DOMAINS_MISMATCH, "spec.environments")
    with pytest.raises(SpecProblem, match="have no column 'answer'"):
        tasks.check({"question": "?"}, "code", None, "line 7")


def test_requests_of_a_row_have_its_template_arguments() -> None:
    [spec] = job({"name": "sums"}).environments or ()
    task = Tasks(job({"name": "sums"})).task(replace(row(question="?"), template_arguments={"enable_thinking": False}))
    request = SampleRequest(SampleId(0, 3, 0, 0), (1,), 7, Sampling(4))
    played = EpisodeRequest(1, request, task.environment, task.columns, task.arguments)
    launch = recorder_launch(EpisodeConfig({0: spec}, "policy", 4000, Path("socket")), spec, played)
    assert launch.arguments == {"enable_thinking": False}


def test_held_out_samples_are_played_with_held_out_rows() -> None:
    held_out = row(question="held out")
    tasks = SampleTasks(Tasks(job({"name": "sums"})), FakeSource(), [held_out])
    request = SampleRequest(SampleId(-3, 3, 0, 0), (1,), 7, Sampling(4), evaluation=True)
    assert tasks.task_of(request).columns == {"question": "held out"}
    assert tasks.task_of(SampleRequest(SampleId(0, 3, 0, 0), (1,), 7, Sampling(4))).columns == {}
