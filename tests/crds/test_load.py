"""What a person writes becomes a job, or one line for each fault: field, what is wrong, cure."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.job import RLJobSpec
from longboat_crds.load import ApiError, load, load_job
from longboat_crds.yaml_text import dump, parse
from tests.crds.malformed_jobs import Malformed, malformed
from tests.crds.manifests import MINIMAL, changed

TASK = {"reasoningGym": {"task": "chain_sum"}}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("**/*.yaml"))


@pytest.mark.parametrize("case", malformed(), ids=lambda case: case.name)
def test_a_malformed_job_is_refused_at_its_field(case: Malformed) -> None:
    with pytest.raises(ApiError) as caught:
        load_job(case.text)
    assert [problem.partition(": ")[0] for problem in caught.value.problems] == [case.path]


def test_defaults_are_filled_in() -> None:
    job = load_job(dump(MINIMAL))
    assert job.metadata.name == "minimal"
    assert job.spec.algorithm.group_size == 8
    assert job.spec.checkpoint.volume.size == "10Gi"


def test_what_was_loaded_loads_again() -> None:
    job = load_job(dump(MINIMAL))
    assert load_job(dump(job.to_json())) == job
    assert load_job(json.dumps(job.to_json())) == job


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"spec.rolout": {}}, "spec.rolout: no such field; did you mean rollout?"),
        ({"spec.rewards.0.wieght": 2}, "spec.rewards[0].wieght: no such field; did you mean weight?"),
        (
            {"spec.ttl_seconds_after_finished": 60},
            "spec.ttl_seconds_after_finished: no such field; did you mean ttlSecondsAfterFinished?",
        ),
        (
            {"spec.rewards.0.colour": "TRL"},
            (
                "spec.rewards[0].colour: no such field; known fields are name, kind, signature, function, configMap, factory, sandbox, "
                "parameters, role, solvedAt, canary, batch, tokenIds, specialTokens, isolation, pool, weight, timeoutSeconds, learnedTimeout, timeoutScore, domains"
            ),
        ),
        (
            {"spec.model.zzz": 1},
            "spec.model.zzz: no such field; known fields are path, dtype, maxLength",
        ),
        ({"spec.model.path": None}, "spec.model.path: is required: give it"),
        ({"spec.model.path": 7}, "spec.model.path: must be a string; put it in quotes (it is 7)"),
        ({"spec.suspend": "no"}, "spec.suspend: must be true or false (it is 'no')"),
        ({"spec.rounds.steps": 0}, "spec.rounds.steps: must be greater than or equal to 1 (it is 0)"),
        (
            {"spec.model.dtype": "bf16"},
            "spec.model.dtype: must be 'Float32', 'BFloat16' or 'Float16', not 'bf16'",
        ),
        (
            {"apiVersion": "longboat.dev/v1"},
            "apiVersion: must be longboat.dev/v1alpha1, not longboat.dev/v1",
        ),
        ({"kind": "RlJob"}, "kind: must be one of RLJob, RLRuntime, ClusterRLRuntime, not RlJob"),
        (
            {"spec.rounds.promptOvercommitMode": "Auto"},
            (
                "spec.rounds.promptOvercommitMode: was removed: leave it out, and choose promptOvercommit with `longboat simulate` "
                "on a recorded job"
            ),
        ),
        (
            {"spec.rewards.0.function": None},
            "spec.rewards[0].function: give exactly one of function and configMap",
        ),
    ],
)
def test_a_problem_names_field_and_cure(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ApiError) as caught:
        load_job(dump(changed(changes)))
    assert caught.value.problems == [problem]


def test_a_job_that_is_stored_with_a_renamed_field_is_read_by_its_new_name() -> None:
    stored = changed({"spec.rollouts": {"everySteps": 5}})["spec"]
    renamed = changed({"spec.samples": {"everySteps": 5}})["spec"]
    assert RLJobSpec.model_validate(stored) == RLJobSpec.model_validate(renamed)
    assert RLJobSpec.model_validate(stored).to_json() == RLJobSpec.model_validate(renamed).to_json()


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (
            {"spec.rewardPool": {"replicas": 3, "gradersPerPod": 2}, "spec.rewardPools": [{"name": "default"}]},
            {"spec.rewardPools": [{"name": "default", "replicas": 3, "gradersPerPod": 2}]},
        ),
        (
            {"spec.rewards": [{"name": "a", "style": "ReasoningGym"}], "spec.dataset": TASK},
            {"spec.rewards": [{"name": "a", "kind": "ReasoningGym"}], "spec.dataset": TASK},
        ),
        (
            {"spec.rewardPool": {"replicas": 3}, "spec.rewardPools": [{"name": "a"}], "spec.rewards.0.pool": "a"},
            {"spec.rewardPools": [{"name": "a"}], "spec.rewards.0.pool": "a"},
        ),
        ({"spec.rewards.0.style": "Verl"}, {"spec.rewards.0.signature": "Verl"}),
        ({"spec.rewards.0.style": "Longboat"}, {}),
    ],
    ids=str,
)
def test_a_job_that_an_early_release_stored_keeps_its_meaning(before: dict[str, Any], now: dict[str, Any]) -> None:
    """The API server has filled in the defaults of fields that are new."""
    stored, renamed = changed(before)["spec"], changed(now)["spec"]
    assert RLJobSpec.model_validate(stored) == RLJobSpec.model_validate(renamed)


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ApiError) as caught:
        load_job(dump(changed({"spec.rounds.steps": 0, "spec.model.dtype": "bf16", "spec.rolout": {}})))
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one object"),
        ("- 1", "one object"),
        ("a: 1\n---\nb: 2", "one object"),
        ("a: [1", "not valid YAML"),
        ("a: 1\na: 2", "field a is given twice"),
        ("[a]: 1", "must be a string"),
        ("a: b\nc: !!int x", r"can't be read as int\n.*line 2"),
        ("a: !!bool x", "can't be read as bool"),
        ("a: !!map x", "expected a mapping node"),
        ("a: !!timestamp x", "timestamp"),
        ("a: !!binary /w==", "binary"),
    ],
)
def test_text_that_holds_no_object_is_refused(text: str, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        load_job(text)


def test_a_number_of_too_many_digits_is_refused() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(4300)  # Python's own; libraries such as sympy lift it
    try:
        with pytest.raises(ApiError, match="can't be read as int"):
            load("a: " + 5000 * "1")
    finally:
        sys.set_int_max_str_digits(limit)


def test_a_runtime_is_no_job() -> None:
    runtime = {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "ClusterRLRuntime",
        "metadata": {"name": "cpu"},
        "spec": {"image": "longboat-runtime:1"},
    }
    assert load(dump(runtime)).metadata.name == "cpu"
    with pytest.raises(ApiError, match="kind: is ClusterRLRuntime; an RLJob is needed"):
        load_job(dump(runtime))


def test_a_pod_template_has_its_containers_in_spec() -> None:
    runtime = {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "RLRuntime",
        "metadata": {"name": "cpu"},
        "spec": {"image": "longboat-runtime:1", "common": {"template": {"containers": []}}},
    }
    with pytest.raises(ApiError, match=r"spec\.common\.template\.containers: .*go in spec"):
        load(dump(runtime))


def test_null_is_a_field_not_given() -> None:
    text = dump(MINIMAL).replace("spec:", "spec:\n  trainer:\n  ttlSecondsAfterFinished: null", 1)
    assert load_job(text).spec == load_job(dump(MINIMAL)).spec


def test_scalars_are_read_as_kubernetes_reads_them() -> None:
    text = "{rate: 1e-6, half: .5, date: 2026-01-01, word: on, no: no, yes: true, count: -3, none: ~, octal: 0o7}"
    assert parse(text) == [
        {
            "rate": 1e-6,
            "half": 0.5,
            "date": "2026-01-01",
            "word": "on",
            "no": "no",
            "yes": True,
            "count": -3,
            "none": None,
            "octal": "0o7",
        }
    ]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_load(file: Path) -> None:
    for document in parse(file.read_text()):
        if document and str(document.get("apiVersion", "")).startswith("longboat.dev/"):
            load(dump(document))
