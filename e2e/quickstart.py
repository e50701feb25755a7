"""Shortens the quickstart of `examples/`: a shorter warm-up of the model, and five steps of few prompts by TailBatching."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.cluster import Cluster
from e2e.host_runtime import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "quickstart"
RUNTIME = "quickstart"
STEPS = 5
WARM_UP_STEPS = 16


def write_data(folder: Path) -> None:
    """Makes the base model and its prompts in `folder`/quickstart, with the example's own script."""
    script = [sys.executable, str(EXAMPLE / "base" / "build_base.py"), str(folder / "quickstart")]
    subprocess.run([*script, "--steps", str(WARM_UP_STEPS)], check=True, capture_output=True, text=True)


def apply_rewards(cluster: Cluster, namespace: str) -> None:
    """Creates the ConfigMap that holds the example's reward function."""
    cluster.kubectl("-n", namespace, "apply", "--server-side", "-k", str(EXAMPLE / "base"))


def spec() -> dict[str, Any]:
    """Makes a shortened spec of the example's RLJob."""
    spec: dict[str, Any] = yaml.safe_load((EXAMPLE / "rljob.yaml").read_text())["spec"]
    # Two short rounds defer as many prompts as a long round trains.
    spec["rounds"] = {"policy": "TailBatching", "steps": STEPS, "promptsPerRound": 8, "promptOvercommit": 1.5}
    spec["algorithm"]["groupSize"] = 4
    spec["dataset"]["evaluation"]["maxPrompts"] = 16
    return spec
