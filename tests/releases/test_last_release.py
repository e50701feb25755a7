"""This version beside the last release: what that wrote is read, and each runs in the pods of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.releases.release import PACKAGES, ROOT, ask, last_release, losses

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

# Has the runtime's command line take commands, without carrying them out; prints its words of each that it refuses.
TAKE = """
import json, sys
import typer
from longboat_runtime.cli import app

def take(program, *arguments):
    command = typer.main.get_command(app)
    context = command.make_context(program, [*arguments])
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)

refused = {}
for name, command in json.load(sys.stdin).items():
    try:
        take(*command)
    except Exception as error:
        refused[name] = str(error)
json.dump(refused, sys.stdout)
"""


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return last_release().extract(tmp_path_factory.mktemp("release"), *PACKAGES, "tests", "e2e")


def spec_of(text: str) -> dict[str, Any]:
    schema: dict[str, Any] = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["rljobs", "rlruntimes", "clusterrlruntimes"])
def test_no_field_of_a_spec_is_pruned(kind: str) -> None:
    """One that was removed leaves a stub (`Removed`), which is refused with the cure."""
    path = f"crds/{kind}.yaml"
    old, new = spec_of(last_release().text(path)), spec_of((ROOT / path).read_text())
    assert [*losses(old, new, "spec")] == []
    assert [*losses(new, {}, "spec")], "it would be noticed"


def test_this_operator_writes_the_command_lines_of_the_last_release(released: Path) -> None:
    """They are frozen: an older agent knows no other option. What is new goes by environment variables."""
    assert ask(ROOT, COMMANDS) == ask(released, COMMANDS)


def test_the_agent_of_the_last_release_runs_in_the_pods_of_this_operator(released: Path) -> None:
    assert ask(released, TAKE, ask(ROOT, COMMANDS)) == {}


def test_this_agent_runs_in_the_pods_of_the_last_release(released: Path) -> None:
    commands = ask(released, COMMANDS)
    assert ask(ROOT, TAKE, commands) == {}
    wrong = {name: [*command, "--from-the-future", "1"] for name, command in commands.items()}
    refused = ask(ROOT, TAKE, wrong)
    assert refused.keys() == commands.keys(), "a command that isn't taken would be noticed"
    # The operator knows an image that is too old by these words.
    assert all("No such option" in words for words in refused.values())
