"""The wheel holds the licence and its types, which those who import the API check their code against."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).parents[2]
CONSUMER = """
from longboat_crds.load import load_job
from longboat_crds.model import ModelSpec

ModelSpec(path="/data/model")
job = load_job("")
steps: int = job.spec.rounds.steps
name: int = job.metadata.name
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_the_licence_and_marks_of_types(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    for package in ("longboat_crds", "longboat_graders", "longboat_operator", "longboat_runtime"):
        assert f"{package}/py.typed" in names


@pytest.mark.extended
def test_mypy_reads_the_types_of_the_installed_api(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # of the wheel: those of this environment
    (tmp_path / "consumer.py").write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(tmp_path / "venv/bin/python")]
    done = subprocess.run([*command, "consumer.py"], cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    first, *rest = done.stdout.splitlines()
    assert first.startswith("consumer.py:8: error: Incompatible types in assignment"), done.stdout + done.stderr
    assert rest == ["Found 1 error in 1 file (checked 1 source file)"]
