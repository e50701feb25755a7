"""What the GPU examples bring: data in the layout that their jobs read, pods that fit a node, and what the page says of them."""

import re
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest

from e2e.pages import blocks
from longboat_crds.base import Role
from longboat_crds.dataset import DatasetSpec
from longboat_crds.model import ModelSpec
from longboat_crds.objects import RLJob, RLRuntime
from longboat_crds.quantities import in_bytes, millicores
from longboat_crds.yaml_text import parse
from longboat_operator.pods.names import JobRef
from longboat_operator.pods.pod import build_pod
from longboat_operator.pods.roles import ROLES
from longboat_runtime.plan import documents
from tests.data.opening import open_evaluation, open_source, tokenizer_of
from tests.support.modules import module_at
from tests.support.paths import REPOSITORY
from tests.support.tiny_model import build_tiny_model

EXAMPLES = REPOSITORY / "examples/gpu"
JOBS = sorted(EXAMPLES.glob("*/rljob.yaml"))
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
# Rows as the files of the two datasets have them.
TRIANGLE = (
    r"In triangle $ABC$, $\sin \angle A = \frac{4}{5}$ and $\angle A < 90^\circ$. If $AB + AC$ can be expressed in the form "
    r"$\frac{a\sqrt{b}}{c}$ where $a, b, c$ are pairwise relatively prime integers, find $a + b + c$."
)
ORIGINAL = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer (without quotes) "
    f'where $Answer is the answer to the problem.\n\n{TRIANGLE}\n\nRemember to put your answer on its own line after "Answer:".'
)
POLAR = r"Convert the point $(0,3)$ in rectangular coordinates to polar coordinates.  Enter your answer in the form $(r,\theta).$"


def dapo(prompt: str, solution: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "solution": solution,
        "data_source": "math_dapo",
        "source_prompt": [{"content": ORIGINAL, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": solution, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    }


MATH = {
    "problem": POLAR,
    "solution": r"We have that $r = \sqrt{0^2 + 3^2} = 3,$ so it is $\boxed{\left( 3, \frac{\pi}{2} \right)}.$",
    "answer": r"\left( 3, \frac{\pi}{2} \right)",
    "subject": "Precalculus",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}


@pytest.fixture(scope="module")
def download() -> ModuleType:
    return module_at(EXAMPLES / "math/download.py")


def test_rows_ask_for_a_box_and_have_the_answer(download: ModuleType) -> None:
    expected = {
        "messages": [{"role": "user", "content": f"{TRIANGLE}\n\n{download.INSTRUCTION}"}],
        "answer": "34",
    }
    assert download.training_rows([dapo(TRIANGLE, "34")], []) == [expected]
    assert download.training_rows([dapo(ORIGINAL, " 34\n")], []) == [expected], "DAPO's own instruction is dropped"
    [row] = download.test_rows([MATH])
    assert row["messages"][0]["content"] == f"{POLAR}\n\n{download.INSTRUCTION}"
    assert row["answer"] == MATH["answer"]


def test_no_problem_is_trained_twice_or_is_one_of_the_test(download: ModuleType) -> None:
    test = download.test_rows([MATH])
    rows = [
        dapo(TRIANGLE, "34"),
        dapo(ORIGINAL, "34"),
        dapo(POLAR.replace("  ", " "), "3"),
        dapo("What is $1+1$?", "2"),
    ]
    assert [row["answer"] for row in download.training_rows(rows, test)] == ["34", "2"]


def test_jobs_read_what_the_script_writes(download: ModuleType, tmp_path: Path) -> None:
    test = download.test_rows([MATH])
    download.write(test, tmp_path / "data/math/test.parquet")
    download.write(download.training_rows([dapo(TRIANGLE, "34")], test), tmp_path / "data/math/train.parquet")
    assert sorted(path.name for path in (tmp_path / "data/math").iterdir()) == ["test.parquet", "train.parquet"]
    assert pq.read_table(tmp_path / "data/math/test.parquet").column_names == ["messages", "answer"]
    model = build_tiny_model(tmp_path / "model", max_length=2048)
    tokenizer_of(TEMPLATE).save_pretrained(model)
    for path in JOBS:
        spec = documents.read(path, None)[0].spec.dataset
        text = spec.model_dump_json(by_alias=True, exclude_unset=True).replace("/data/math/", f"{tmp_path}/data/math/")
        dataset = DatasetSpec.model_validate_json(text)
        source = open_source(dataset, ModelSpec(path=str(model)), 512)
        [row] = [source.row(prompt) for prompt in source.draw(1)]
        assert (row.ground_truth, row.columns["answer"]) == ("34", "34")
        assert row.messages == [{"role": "user", "content": f"{TRIANGLE}\n\n{download.INSTRUCTION}"}]
        assert row.text.endswith("within \\boxed{}.<|im_end|>\n<|im_start|>assistant")
        [held_out] = open_evaluation(dataset, ModelSpec(path=str(model)), 512)
        assert held_out.columns["answer"] == MATH["answer"]


def pods(job: RLJob, runtime: RLRuntime) -> list[dict[str, Any]]:
    """Returns all pods of a job, with the resources that the scheduler adds up."""
    ref = JobRef("team", job.metadata.name, "00000000-0000-0000-0000-000000000000")
    return [
        build_pod(ref, job.spec, runtime.spec, "revision", role, place, 0, token="token", one_node=True)
        for role in Role
        for place in ROLES[role].places(job.spec)
    ]


def total(pods: list[dict[str, Any]], what: str) -> Counter[str]:
    """Adds up the requests or limits of containers and of those that start before and stay."""
    sums: Counter[str] = Counter()
    for pod in pods:
        initial = pod["spec"].get("initContainers", ())
        assert all(container.get("restartPolicy") == "Always" for container in initial)
        for container in (*initial, *pod["spec"]["containers"]):
            resources = container["resources"]
            sums["GiB"] += in_bytes(resources[what]["memory"]) // 2**30
            sums["millicores"] += millicores(resources[what].get("cpu", "0"))
            sums["GPUs"] += int(resources["limits"].get("nvidia.com/gpu", 0))
    return sums


def the_job() -> tuple[RLJob, RLRuntime]:
    job, runtime = documents.read(EXAMPLES / "qwen3-8b/rljob.yaml", None)
    assert isinstance(runtime, RLRuntime)
    return job, runtime


def test_the_8b_fits_a_node_of_96_cpus_as_its_page_says() -> None:
    made = pods(*the_job())
    parts = {"**together**": made}
    for role in Role:
        of_role = [pod for pod in made if pod["metadata"]["labels"]["longboat.dev/role"] == role]
        parts[f"{len(of_role)} {role}"] = of_role
    expected = set()
    for name, part in parts.items():
        requests, limits = total(part, "requests"), total(part, "limits")
        expected.add(
            f"| {name} | {requests['GPUs']} | {requests['millicores'] // 1000} | {requests['GiB']} GiB | {limits['GiB']} GiB |"
        )
    assert expected <= {*(REPOSITORY / "docs/gpus.md").read_text().splitlines()}
    assert total(made, "requests")["millicores"] <= 80_000
    assert total(made, "limits")["GiB"] <= 640


def test_all_pods_of_the_8b_that_mount_claims_share_a_node() -> None:
    job, runtime = the_job()
    for pod in pods(job, runtime):
        labels, spec = pod["metadata"]["labels"], pod["spec"]
        mounted = any(
            "persistentVolumeClaim" in volume
            for container in spec["containers"]
            for mount in container["volumeMounts"]
            for volume in spec["volumes"]
            if volume["name"] == mount["name"]
        )
        terms = (
            spec.get("affinity", {}).get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        )
        assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname"] * mounted, labels


def test_what_the_page_edits_is_in_the_files() -> None:
    assignments = "".join(
        block.commands for block in blocks((REPOSITORY / "docs/gpus.md").read_text()) if "edit()" in block.commands
    ).replace("REGISTRY=registry.example/team", "REGISTRY=another.example:5000/mine")
    for path in (*JOBS, EXAMPLES / "math/download.yaml"):
        script = f"{assignments}\nedit {path}"
        text = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True).stdout
        images = re.findall(r"(?m)^ *(?:- )?(?:image|gradersImage): (.*)$", text)
        assert images
        assert all(image.startswith("another.example:5000/mine/longboat-") for image in images)
        [runtime] = [item for item in parse(text) if item["kind"] in ("RLRuntime", "Job")]
        templates = (
            [runtime["spec"]["template"]]
            if runtime["kind"] == "Job"
            else [runtime["spec"]["roles"][role]["template"] for role in ("rollout", "trainer")]
        )
        assert [template["spec"]["runtimeClassName"] for template in templates] == ["nvidia"] * len(templates)
