"""Tests what the API server accepts and refuses, and that the models agree."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import CommandError
from e2e.tests.api.objects import NAMESPACE, REPOSITORY, Jobs, Refused
from longboat_crds.algorithm import AdvantageBaseline, AdvantageScale, AlgorithmName
from longboat_crds.job import RLJobSpec
from longboat_crds.objects import RLJob
from longboat_crds.reward_kinds import RewardIsolation, RewardKind, RewardSignature
from tests.crds.malformed_jobs import Malformed, malformed
from tests.crds.manifests import MINIMAL, changed
from tests.crds.rule_cases import CASES
from tests.support.examples import examples

pytestmark = pytest.mark.cluster


def test_the_kinds_are_served_under_their_names(server: Cluster) -> None:
    rows = server.kubectl("api-resources", "--categories=ml", "--no-headers").splitlines()
    assert sorted(row.split()[:2] for row in rows) == [
        ["clusterrlruntimes", "crlrt"],
        ["rljobs", "rlj"],
        ["rlruntimes", "rlrt"],
    ]


def test_the_definitions_in_the_tree_are_accepted_and_those_of_the_chart(server: Cluster) -> None:
    """The chart's are installed already: the tree's change nothing in their spec."""
    for file in sorted((REPOSITORY / "crds").glob("*.yaml")):
        wanted = yaml.safe_load(file.read_text())
        installed = json.loads(server.kubectl("get", "crd", wanted["metadata"]["name"], "-o", "json"))
        dry = server.kubectl(
            "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", str(file), "-o", "json"
        )
        assert json.loads(dry)["spec"] == installed["spec"]


@pytest.mark.parametrize("case", malformed(), ids=lambda case: case.name)
def test_a_malformed_job_is_refused_with_its_field(jobs: Jobs, case: Malformed) -> None:
    with pytest.raises(Refused) as caught:
        jobs.create(yaml.safe_load(case.text), dry_run=True)
    assert caught.value.fields == [case.path] or f'unknown field "{case.path}"' in caught.value.message


def test_a_person_reads_the_same_from_kubectl(server: Cluster) -> None:
    file = REPOSITORY / "tests/crds/malformed/group-of-one.yaml"
    with pytest.raises(CommandError, match=r"spec\.algorithm\.groupSize: Invalid value: a group of one has no mean"):
        server.kubectl("-n", NAMESPACE, "apply", "-f", str(file))


def test_defaults_are_those_of_the_models(jobs: Jobs) -> None:
    stored = jobs.create(MINIMAL, dry_run=True)["spec"]
    assert RLJobSpec.model_validate(stored) == RLJob.model_validate(MINIMAL).spec
    assert stored["rollout"]["replicas"] == 1
    assert "stream" not in stored["trainer"], "drivers of the first release don't know it"


@pytest.mark.parametrize(("changes", "path"), CASES)
def test_rules_between_fields(jobs: Jobs, changes: dict[str, Any], path: str | None) -> None:
    if path is None:
        jobs.create(changed(changes), dry_run=True)
        return
    with pytest.raises(Refused) as caught:
        jobs.create(changed(changes), dry_run=True)
    assert caught.value.fields == [path]


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "spec.algorithm.name": st.sampled_from([str(name) for name in AlgorithmName]),
        "spec.algorithm.groupSize": st.integers(1, 3),
        "spec.algorithm.advantageBaseline": st.sampled_from([str(baseline) for baseline in AdvantageBaseline]),
        "spec.algorithm.advantageScale": st.sampled_from([str(scale) for scale in AdvantageScale]),
        "spec.algorithm.dropZeroVariance": st.booleans(),
        "spec.rounds.promptsPerRound": st.sampled_from([1, 8, 32_768, 65_536]),
        "spec.trainer.minibatches": st.sampled_from([1, 2, 4, 64]),
        "spec.model.maxLength": st.sampled_from([64, 65, 8192, 8193]),
        "spec.trainer.maxTokensPerBin": st.sampled_from([64, 65, 8193]),
        "spec.dataset": st.fixed_dictionaries(
            {},
            optional={
                "files": st.just({"paths": ["/t"]}),
                "reasoningGym": st.just({"task": "chain_sum"}),
                "columns": st.sampled_from([{}, {"domain": "topic"}]),
                "evaluation": st.sampled_from([{}, {"files": {"paths": ["/t"]}}, {"reasoningGym": {"task": "t"}}]),
            },
        ),
        "spec.rewards": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from(["a", "b"]), "kind": st.sampled_from([str(kind) for kind in RewardKind])},
                optional={
                    "signature": st.sampled_from([str(signature) for signature in RewardSignature]),
                    "isolation": st.sampled_from([str(isolation) for isolation in RewardIsolation]),
                    "function": st.just("m:f"),
                    "sandbox": st.sampled_from(
                        [{}, {"format": "Pytest"}, {"runCommand": ["a"]}, {"compileCommand": ["a"]}]
                    ),
                    "configMap": st.just({"name": "c", "key": "k.py", "function": "f"}),
                    "domains": st.sampled_from([[], ["x"], ["x", "x"]]),
                },
            ),
            max_size=2,
        ),
        "spec.rollout.enginesPerPod": st.sampled_from([1, 8, 64]),
        "spec.rollout.tensorParallel": st.sampled_from([1, 8, 9]),
        "spec.checkpoint": st.fixed_dictionaries(
            {},
            optional={
                "claimName": st.sampled_from(["a", "b"]),
                "reclaimPolicy": st.sampled_from(["Retain", "Delete"]),
                "resumeFrom": st.sampled_from([{"claimName": "a"}, {"claimName": "b.c", "step": None}]),
            },
        ),
        "spec.failurePolicy.maxBackoffSeconds": st.sampled_from([9, 10]),
    },
)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(changes=SECTIONS)
def test_server_and_models_refuse_the_same_jobs(jobs: Jobs, changes: dict[str, Any]) -> None:
    body = changed(changes)
    try:
        RLJob.model_validate(body)
    except ValidationError:
        with pytest.raises(Refused):
            jobs.create(body, dry_run=True)
    else:
        jobs.create(body, dry_run=True)


def test_a_template_with_containers_in_the_wrong_place_is_refused(server: Cluster) -> None:
    runtime = {
        "apiVersion": "longboat.dev/v1alpha1",
        "kind": "ClusterRLRuntime",
        "metadata": {"name": "wrong"},
        "spec": {"image": "longboat-runtime:1", "common": {"template": {"containers": []}}},
    }
    with pytest.raises(CommandError, match=r'unknown field "spec\.common\.template\.containers"'):
        server.kubectl("apply", "-f", "-", stdin=json.dumps(runtime))
