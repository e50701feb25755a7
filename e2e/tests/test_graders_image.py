"""Rewards and programs run in the graders' own small image; what it lacks is named at the start, with the cure."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e import host_runtime, small_job, volumes
from e2e.cluster.images import builder, catalogue
from e2e.jobs import Job
from e2e.site import Site
from e2e.tests.test_code import records_of

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

RUNTIME = "small-graders"
MOST_BYTES = 500_000_000
ONE_STEP = {"steps": 1, "promptsPerRound": 4}
GYM = {
    "reasoningGym": {"task": "chain_sum", "size": 64, "seed": 0},
    "columns": {"groundTruth": "answer", "domain": "domain"},
    "promptTemplate": "{{ answer }} =",
}
# Writes who grades where into the message of a grader error, if that isn't what the image promises.
CONFINED = """
import os

from math_verify import parse, verify

assert os.getuid() == 10002, os.getuid()
try:
    open("/opt/longboat/written", "w")
except OSError:
    pass
else:
    raise AssertionError("the root file system can be written")


def reward(sample):
    return float(verify(parse(sample.ground_truth), parse(sample.text)))
"""
CHAT = {"prompt": [{"role": "user", "content": "say 1"}]}
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
THINKS = {"name": "thinks", "function": "trl.rewards:think_format_reward", "signature": "TRL", "timeoutSeconds": 600}


@pytest.fixture(scope="module")
def runtime(site: Site) -> str:
    """Returns the name of a runtime template with the graders' image."""
    graders, host = catalogue.find("graders").build(), catalogue.find("runtime-host").build()
    site.cluster.load(graders.archive)
    volumes.apply(site.cluster, [host_runtime.template(host.ref, RUNTIME, graders.ref)])
    (site.data / "confined.py").write_text(CONFINED)
    (site.data / "chat.jsonl").write_text((json.dumps(CHAT) + "\n") * 8)
    return RUNTIME


def test_the_image_is_small_and_has_nothing_large() -> None:
    graders = catalogue.find("graders").build()
    builder.ensure(graders.ref, graders.archive)
    with builder.unpacked(graders.ref) as (root, variables):
        assert sum(file.lstat().st_size for file in root.rglob("*")) <= MOST_BYTES
        (packages,) = (root / variables["PATH"].split(":")[0][1:]).parent.glob("lib/python3.*/site-packages")
        assert {name for name in ("kubernetes", "ray", "torch", "vllm") if (packages / name).exists()} == set()
        assert {name for name in ("math_verify", "reasoning_gym") if (packages / name).exists()} == {
            "math_verify",
            "reasoning_gym",
        }


def test_functions_and_the_scorer_of_a_task_grade_there(new_job: Callable[[str], Job], runtime: str) -> None:
    job = new_job("small-functions")
    function = {"name": "verified", "function": "/data/confined.py:reward", "timeoutSeconds": 600}
    rewards = [{"name": "sum", "kind": "ReasoningGym", "timeoutSeconds": 600}, function]
    job.apply(small_job.spec(runtime, rounds=ONE_STEP, dataset=GYM, rewards=rewards))
    assert grades(job) == {"scored"}


def test_programs_run_there(new_job: Callable[[str], Job], runtime: str) -> None:
    job = new_job("small-programs")
    job.apply(small_job.code_spec() | {"runtimeRef": {"name": runtime}, "rounds": ONE_STEP})
    assert "scored" in grades(job) <= {"scored", "wrong_format"}


def test_a_module_that_is_missing_is_refused_at_the_start_and_works_from_an_image_that_has_it(
    new_job: Callable[[str], Job], runtime: str
) -> None:
    rows: dict[str, Any] = {"files": {"paths": ["/data/chat.jsonl"]}}
    chat: dict[str, Any] = {"rounds": ONE_STEP, "rewards": [THINKS]}
    refused, works = new_job("without-trl"), new_job("with-trl")
    refused.apply(small_job.spec(runtime, dataset=rows, **chat))
    refused.wait_for_failure()
    problem = refused.status()["problem"]
    assert (problem["reason"], problem["field"]) == ("RewardFunctionNotFound", "spec.rewards[0].function")
    assert "no module 'trl'" in problem["message"]
    assert "`gradersImage` of the runtime template" in problem["message"]
    # The only job of these tests with a chat template in a ConfigMap.
    template = {"name": "chat-template", "key": "chat.jinja"}
    metadata = {"name": template["name"], "namespace": works.namespace}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {template["key"]: TEMPLATE}}
    volumes.apply(works.cluster, [config_map])
    works.apply(small_job.spec(**chat, dataset={**rows, "chatTemplate": {"configMap": template}}))
    assert grades(works) == {"scored"}
    exported = volumes.folder(works.cluster, works.namespace, f"{works.name}-checkpoint") / "export"
    assert (exported / "chat_template.jinja").read_text() == TEMPLATE


def grades(job: Job) -> set[str]:
    """Waits for the end of a job of one step; returns the kinds of its grades."""
    job.wait_for("Succeeded")
    (metrics,) = records_of(job)
    return {name.rpartition("/")[2] for name, value in metrics.items() if name.startswith("reward/grades/") and value}
