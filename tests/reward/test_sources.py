"""What a loaded reward is made of: found by graders, compared between pods and between starts of graders."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from longboat_crds.rewards import RewardSpec
from longboat_graders.messages import FunctionOutcome, OutcomeKind
from longboat_graders.process_tree import children
from longboat_graders.result import RewardSample
from longboat_graders.sources import imported_packages
from longboat_runtime.reward import pool as pools
from longboat_runtime.reward.client import GraderClient, disagreement
from tests.reward.conftest import LONG
from tests.reward.test_lost_graders import Actors
from tests.support.waiting import eventually_async

StartGraders = Callable[..., AbstractContextManager[Path]]
REWARD = "import helper\nimport numpy\ndef score(sample):\n    import xxhash\n    return helper.VALUE\n"
HELPER = "import json\nVALUE = {value}\n"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def config_map(directory: Path, name: str, value: float = 1.0, revision: str = "..1") -> None:
    """Files as a kubelet mounts them: each key leads through `..data` to those of a revision."""
    folder = directory / name / revision
    folder.mkdir(parents=True)
    (folder / "reward.py").write_text(REWARD)
    (folder / "helper.py").write_text(HELPER.format(value=value))
    data = directory / name / "..data"
    data.unlink(missing_ok=True)
    data.symlink_to(revision)
    for key in ("reward.py", "helper.py"):
        if not (directory / name / key).is_symlink():
            (directory / name / key).symlink_to(f"..data/{key}")


def in_config_map(name: str) -> RewardSpec:
    reference = {"name": name, "key": "reward.py", "function": "score"}
    return RewardSpec.model_validate({"name": "main", "configMap": reference, "timeoutSeconds": LONG})


@pytest_asyncio.fixture
async def client(graders: Path) -> AsyncIterator[GraderClient]:
    client = GraderClient(graders)
    yield client
    await client.close()


async def loaded(client: GraderClient, reward: RewardSpec) -> dict[str, str]:
    assert await client.load(reward, "spec.rewards[0]") is None
    return dict(client.sources[reward.name])


async def test_a_config_map_is_its_files_and_the_versions_of_what_they_import(
    client: GraderClient, graders_directory: Path
) -> None:
    config_map(graders_directory, "first")
    config_map(graders_directory, "second", revision="..2")
    found = await loaded(client, in_config_map("first"))
    versions = {f"version of {name}": version(name) for name in ("numpy", "xxhash")}
    assert found == {"reward.py": sha(REWARD), "helper": sha(HELPER.format(value=1.0)), **versions}
    assert await loaded(client, in_config_map("second")) == found, "wherever the files are"
    config_map(graders_directory, "third", value=2.0)
    assert {name for name, value in (await loaded(client, in_config_map("third"))).items() if value != found[name]} == {
        "helper"
    }


async def test_a_package_without_a_distribution_is_its_loaded_files(
    start_graders: StartGraders, graders_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout on PYTHONPATH, in two places: names of modules stand for the files."""
    found = []
    for place in ("here", "there"):
        package = graders_directory / place / "checkout"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "scores.py").write_text("from . import parts\ndef score(sample):\n    return parts.VALUE\n")
        (package / "parts.py").write_text("VALUE = 1.0\n")
        (package / "unused.py").write_text(place)
        monkeypatch.setenv("PYTHONPATH", f"{package.parent}:{os.environ.get('PYTHONPATH', '')}")
        directory = graders_directory / f"graders-{place}"
        directory.mkdir()
        with start_graders(directory) as socket:
            client = GraderClient(socket)
            found.append(await loaded(client, RewardSpec(name="main", function="checkout.scores:score")))
            await client.close()
    assert found[0] == found[1]
    assert found[0].keys() == {"checkout", "checkout.scores", "checkout.parts"}


async def test_an_installed_function_is_its_package_and_version_and_a_task_its_version(client: GraderClient) -> None:
    installed = await loaded(client, RewardSpec(name="verify", function="math_verify:verify", signature="TRL"))
    assert installed["version of math_verify"] == version("math-verify")
    assert installed.keys() >= {"math_verify", "math_verify.parser"}
    assert not [name for name in installed if name.startswith(("sympy", "longboat"))]
    gym = await loaded(client, RewardSpec.model_validate({"name": "gym", "kind": "ReasoningGym"}))
    assert gym == {"version of reasoning_gym": version("reasoning-gym")}


async def graded(client: GraderClient) -> FunctionOutcome:
    """The outcome once the client has noticed that its graders have restarted."""
    return await eventually_async(
        lambda: client.grade("main", RewardSample("", ""), LONG, 0),
        right=lambda outcome: outcome.kind is not OutcomeKind.LOST or bool(client.changed),
    )


async def test_graders_that_restart_with_other_files_grade_nothing(
    start_graders: StartGraders, graders_directory: Path
) -> None:
    directory = graders_directory / "again"
    directory.mkdir()
    config_map(directory, "files")
    client = GraderClient(directory / "graders.sock")
    with start_graders(directory):
        await loaded(client, in_config_map("files"))
        assert (await graded(client)).score == 1.0
    with start_graders(directory):
        assert (await graded(client)).score == 1.0, "they are the same"
    config_map(directory, "files", value=2.0, revision="..2")
    with start_graders(directory):
        for _ in range(2):
            assert (await graded(client)).kind is OutcomeKind.LOST
            assert client.changed == "another helper of reward main"
    await client.close()


async def test_a_function_that_has_to_be_imported_again_and_has_changed_grades_nothing(
    start_graders: StartGraders, graders_directory: Path
) -> None:
    """Its process died, and the file is another by then."""
    directory = graders_directory / "imported"
    directory.mkdir()
    config_map(directory, "files")
    client = GraderClient(directory / "graders.sock")
    servers: list[int] = []
    with start_graders(directory, started=servers.append):
        await loaded(client, in_config_map("files"))
        assert (await graded(client)).score == 1.0
        config_map(directory, "files", value=2.0, revision="..2")
        for zygote in children(servers[0]):
            os.kill(zygote, signal.SIGKILL)
        await eventually_async(
            lambda: client.grade("main", RewardSample("", ""), LONG, 0), right=lambda _: bool(client.changed)
        )
        assert (await graded(client)).kind is OutcomeKind.LOST
    await client.close()


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Actors:
    actors = Actors()
    monkeypatch.setattr(pools, "ray", actors)
    monkeypatch.setattr(pools, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
    return actors


class Store:
    async def responses(self, ids: Any, *, token_ids: bool = False) -> dict:
        return {}


async def test_a_pod_whose_files_differ_from_the_first_one_does_not_grade(
    start_graders: StartGraders, graders_directory: Path, actors: Actors
) -> None:
    directory = graders_directory / "pool"
    directory.mkdir()
    config_map(directory, "files")
    pool = pools.RewardPool("code", {0: in_config_map("files")}, Store(), directory / "graders.sock", {})  # type: ignore[arg-type]
    with start_graders(directory):
        pool.follow({"first": 1})
        await pool.ready()
        first = dict(pool.sources["main"])
    config_map(directory, "files", value=2.0, revision="..2")
    with start_graders(directory):
        pool.follow({"first": 1, "second": 1})
        await eventually_async(lambda: pool.disagreeing)
        assert pool.disagreeing == "1 of pool code (another helper of reward main)"
        assert set(pool._workers) == {"first"}
        assert pool.sources["main"] == first
        await pool.close()


def test_disagreement_names_reward_and_file() -> None:
    first = {"a": {"x.py": "1", "y.py": "2"}, "b": {"z.py": "3"}}
    assert disagreement(first, first) is None
    assert disagreement(first, {"c": {"x.py": "4"}}) is None
    assert disagreement({}, first) is None
    assert (
        disagreement(first, {"a": {"x.py": "1"}, "b": {"z.py": "4"}})
        == "another y.py of reward a; another z.py of reward b"
    )


def test_packages_that_a_file_imports_are_found_wherever_it_imports_them() -> None:
    content = b"import os, numpy.linalg\nfrom sympy.core import x\nfrom . import y\ndef f():\n    import pandas as pd\n"
    assert imported_packages(content) == {"numpy", "sympy", "pandas"}
    assert imported_packages(b"\x00\xff") == set()
