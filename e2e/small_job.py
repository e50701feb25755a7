"""A job small enough for tests: a tiny random model, 64 short prompts, a reward that any answer can earn a part of."""

import json
from pathlib import Path
from typing import Any

from e2e.host_runtime import DATA

REWARD = '''"""Share of vowels among the letters of the answer."""

import os
import time


def reward(sample, hold=None):
    """Waits while the file `hold` exists, so that no round ends."""
    while hold and os.path.exists(hold):
        time.sleep(0.05)
    letters = [c for c in sample.text if c.isalpha()]
    return sum(c in "aeiou" for c in letters) / max(1, len(letters))
'''


# A tiny model's responses aren't programs. So the command that runs one prints whether its length is odd, and one of the cases passes.
# Another command only prints what it reads: both cases pass, and the times of correct programs are learned.
CASES = {"tests": {"inputs": ["0", "1"], "outputs": ["0", "1"]}}
ECHO = ["cat"]
PARITY = ["python3", "-c", "import sys; print(len(open(sys.argv[1]).read()) % 2)", "{file}"]


def write_data(folder: Path) -> None:
    """Writes a model, a mixture-of-experts model, datasets and a reward function, in files that every user may read."""
    from tests.support.tiny_model import build_tiny_experts, build_tiny_model

    build_tiny_model(folder / "model", max_length=64)
    build_tiny_experts(folder / "experts", max_length=64)
    rows = [{"prompt": f"say {number:02}", "answer": str(number)} for number in range(64)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    (folder / "code.jsonl").write_text("".join(json.dumps(row | CASES) + "\n" for row in rows))
    for name in ("train.jsonl", "code.jsonl", "reward.py"):
        (folder / name).chmod(0o644)


def spec(runtime: str = "host", **changes: Any) -> dict[str, Any]:
    """Makes an RLJob's spec; `changes` add or replace whole top-level fields."""
    return {
        "runtimeRef": {"name": runtime},
        "model": {"path": "/data/model", "dtype": "Float32"},
        "dataset": {"files": {"paths": ["/data/train.jsonl"]}},
        "algorithm": {"name": "GRPO", "groupSize": 2},
        "rounds": {"steps": 4, "promptsPerRound": 4},
        "rollout": {"sampling": {"maxTokens": 16}, "kvCache": "64Mi", "enforceEager": True},
        "rewards": [{"name": "vowels", "function": "/data/reward.py:reward", "timeoutSeconds": 600}],
        "trainer": {"optimizer": {"learningRate": 1e-4}, "maxTokensPerBin": 256},
        "checkpoint": {"everySteps": 2, "graceSeconds": 60},
        **changes,
    }


def hold_grades(reward: dict[str, Any], file: str) -> dict[str, Any]:
    """Makes the grades of a reward wait while `file` exists in the data folder, so that no round of its job ends."""
    return reward | {"parameters": {**reward.get("parameters", {}), "hold": f"{DATA}/{file}"}, "timeoutSeconds": 3600}


def code_spec(**sandbox: Any) -> dict[str, Any]:
    """Makes the spec of a job whose responses are programs.

    Each that isn't blank scores a half for reward `cases`, unless `sandbox` changes that, and one for `echo`, whose limits are learned.
    """
    return spec(
        dataset={"files": {"paths": ["/data/code.jsonl"]}, "columns": {"groundTruth": "tests"}},
        # All responses but blank ones get the same reward, and are trained nevertheless.
        # The first two responses to each prompt have the hard limit.
        algorithm={"name": "ReinforcePlusPlus", "groupSize": 4},
        rewards=[
            {
                "name": "cases",
                "kind": "Sandbox",
                "timeoutSeconds": 600,
                "sandbox": {"credit": "Fraction", "runCommand": PARITY, **sandbox},
            },
            {
                "name": "echo",
                "kind": "Sandbox",
                "timeoutSeconds": 600,
                "learnedTimeout": {"minSeconds": 5},
                "sandbox": {"runCommand": ECHO},
            },
        ],
    )
