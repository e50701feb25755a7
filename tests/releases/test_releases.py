"""This version beside each release: what that wrote is read, and each runs in the pods of the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from longboat_crds.trainer import TrainerSpec
from longboat_operator.cli import _parser
from tests.charts.rendering import CHART, RELEASE, helm
from tests.operator_plan.simulated_cluster import SimulatedCluster
from tests.releases.release import RELEASES, ROOT, Release, breaking_changes, filled_in, run_script

# The commands of the containers of a small job's pods that start the runtime, by pod and container.
COMMANDS = """
import json, sys
from longboat_crds.base import Role
from tests.operator_plan.simulated_cluster import SimulatedCluster

cluster = SimulatedCluster()
cluster.settle()
made = {}
for name, pod in cluster.children["Pod"].items():
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        made[f"{name}/{container['name']}"] = [*container["command"], *container["args"]]
json.dump(made, sys.stdout)
"""

# Has the runtime's command line take commands, without carrying them out; prints the error of each that it refuses.
PARSE = """
import json, sys
import typer
from longboat_runtime.cli import app

def parse(program, *arguments):
    command = typer.main.get_command(app)
    context = command.make_context(program, [*arguments])
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)

refused = {}
for name, command in json.load(sys.stdin).items():
    try:
        parse(*command)
    except Exception as error:
        refused[name] = str(error)
json.dump(refused, sys.stdout)
"""


# Plans for a job whose snapshot a newer version has left, and has a driver read its job; prints what is done.
PLAN = """
import json, sys
from datetime import UTC, datetime
from longboat_operator.apply import target_of
from longboat_operator.model import JobKey, Observed
from longboat_operator.planner import plan
from longboat_runtime.driver.status import DriverStatus

job, children, now = json.load(sys.stdin)
key = JobKey(job["metadata"]["namespace"], job["metadata"]["name"])
made = plan(Observed(key, job, children), datetime.fromisoformat(now))
DriverStatus.from_json(job["status"])
json.dump([target_of(action) for action in made.actions], sys.stdout)
"""

# Saves a checkpoint of one tensor.
SAVE = """
import asyncio, json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from longboat_runtime.checkpoint import sharded
from longboat_runtime.checkpoint.store import CheckpointStore

async def write(directory):
    return sharded.write({"weight": torch.arange(10.0)}, directory)

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
asyncio.run(CheckpointStore(Path(json.load(sys.stdin)), 2, 1).save(10, {"ledger": {"step": 10}}, write))
json.dump(None, sys.stdout)
"""

# Resumes from it; prints the driver's state and the tensor.
RESUME = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
from longboat_runtime.checkpoint import sharded
from longboat_runtime.checkpoint.store import CheckpointStore

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
saved = CheckpointStore(Path(json.load(sys.stdin)), 2, 2).newest()
tensors = {"weight": torch.zeros(10)}
model = saved.model
if hasattr(saved, "model_files"):
    model = sharded.SavedTensors(model, saved.model_files, 0, 1)
sharded.read(tensors, model)
json.dump([saved.state, tensors["weight"].tolist()], sys.stdout)
"""


@pytest.fixture(scope="session", params=RELEASES, ids=[release.version for release in RELEASES])
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    release: Release = request.param
    return release.extract(tmp_path_factory.mktemp("release"))


def spec_of(tree: Path, kind: str) -> dict[str, Any]:
    definition = yaml.safe_load((tree / "crds" / f"{kind}.yaml").read_text())
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


@pytest.mark.parametrize("kind", ["rljobs", "rlruntimes", "clusterrlruntimes"])
def test_no_field_of_a_spec_is_pruned(released: Path, kind: str) -> None:
    """One that was removed leaves a stub (`Removed`), which is refused with the cure."""
    old, new = spec_of(released, kind), spec_of(ROOT, kind)
    assert [*breaking_changes(old, new, "spec")] == []
    assert [*breaking_changes(new, {}, "spec")], "it would be noticed"


@pytest.mark.parametrize("kind", ["rljobs", "rlruntimes", "clusterrlruntimes"])
def test_the_api_server_adds_no_field_to_stored_objects(released: Path, kind: str) -> None:
    """Drivers of that release go on after an upgrade, and refuse fields that they don't know: mark new ones with READER_DEFAULT."""
    old, new = spec_of(released, kind), spec_of(ROOT, kind)
    assert [*filled_in(old, new, "spec")] == []
    assert [*filled_in({**old, "properties": {"a": {}}}, {**new, "default": {"b": 1}}, "spec")], "it would be noticed"


# Prints whether a trainer's section, as JSON, has layers recomputed.
READ = """
import json, sys
from longboat_crds.trainer import TrainerSpec

print(json.dumps(TrainerSpec.model_validate(json.load(sys.stdin)).gradient_checkpointing))
"""


def test_gradient_checkpointing_that_was_not_set_stays_off_in_jobs_of_a_release_and_in_its_drivers(
    released: Path,
) -> None:
    """The API server of a release wrote its default into jobs; now it leaves the field out, which means that the plan decides."""
    field = {
        tree: spec_of(tree, "rljobs")["properties"]["trainer"]["properties"]["gradientCheckpointing"]
        for tree in (released, ROOT)
    }
    assert "default" not in field[ROOT]
    stored = {name: field[released][name] for name in ("default",) if name in field[released]}
    if stored:
        assert not TrainerSpec.model_validate({"gradientCheckpointing": stored["default"]}).recomputes(fits=False)
        assert run_script(released, READ, {}) is False
    assert TrainerSpec().recomputes(fits=False)


@pytest.mark.helm
def test_the_chart_bears_the_values_of_a_release(released: Path, tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` gives the chart these alone."""
    chart = Path(shutil.copytree(CHART, tmp_path / "longboat"))
    shutil.copy(released / "charts" / "longboat" / "values.yaml", chart)
    done = helm("template", RELEASE, str(chart))
    assert done.returncode == 0, done.stderr
    [deployment] = [body for body in yaml.safe_load_all(done.stdout) if body and body["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert _parser().parse_args(container["args"])


def test_the_agent_of_a_release_runs_in_the_pods_of_this_operator(released: Path) -> None:
    """An older agent knows no newer options: new settings go by environment variables."""
    assert run_script(released, PARSE, run_script(ROOT, COMMANDS)) == {}


def test_this_agent_runs_in_the_pods_of_a_release(released: Path) -> None:
    commands = run_script(released, COMMANDS)
    assert run_script(ROOT, PARSE, commands) == {}
    wrong = {name: [*command, "--from-the-future", "1"] for name, command in commands.items()}
    refused = run_script(ROOT, PARSE, wrong)
    assert refused.keys() == commands.keys(), "a command that isn't taken would be noticed"
    # The operator knows an image that is too old by these words.
    assert all("No such option" in words for words in refused.values())


@pytest.mark.parametrize("release", [r for r in RELEASES if r.rollback], ids=lambda release: release.version)
def test_a_release_goes_on_with_a_job_whose_node_is_being_drained(release: Release, tmp_path: Path) -> None:
    """It knows of no budget, and leaves it to the garbage collector: a budget is owned by its job."""
    cluster = SimulatedCluster(cordoned=set())
    cluster.up()
    cluster.train(3)
    cluster.cordoned = {"node0"}
    cluster.settle()
    assert cluster.status.drain
    [budget] = cluster.children["PodDisruptionBudget"].values()
    assert cluster.job
    assert [owner["uid"] for owner in budget["metadata"]["ownerReferences"]] == [cluster.job["metadata"]["uid"]]
    observed = cluster.observed()
    snapshot = [observed.job, observed.children, cluster.now.isoformat()]
    targets = run_script(release.extract(tmp_path), PLAN, snapshot)
    assert [kind for kind, _ in targets if kind in ("Pod", "PodDisruptionBudget")] == []


def test_a_job_of_a_release_is_resumed(released: Path, tmp_path: Path) -> None:
    run_script(released, SAVE, str(tmp_path))
    assert run_script(ROOT, RESUME, str(tmp_path)) == [{"ledger": {"step": 10}}, [*range(10)]]


@pytest.mark.parametrize("release", [r for r in RELEASES if r.rollback], ids=lambda release: release.version)
def test_a_release_resumes_a_job_of_this_version(release: Release, tmp_path: Path) -> None:
    run_script(ROOT, SAVE, str(tmp_path / "claim"))
    old = release.extract(tmp_path / "release")
    assert run_script(old, RESUME, str(tmp_path / "claim")) == [{"ledger": {"step": 10}}, [*range(10)]]
