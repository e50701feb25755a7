"""A job that plays: a class of gymnasium's, a game of textarena's, and a function with three tools, each with rows of its own.

Its model is that of the benchmark of learning, which calls the tools. Letters and digits are its words: whatever else a game says, it doesn't see.
"""

import json
import random
import shutil
from pathlib import Path
from typing import Any

from bench.episodes_learning import environment
from bench.episodes_learning.base import build, rows
from e2e import small_job

GAMES = '''"""Two games, by the conventions of their libraries."""

import random
import time

import gymnasium
import textarena


class Guess(gymnasium.Env):
    """Guess a digit, in three turns. Each guess of a digit that is wrong is worth something. The game thinks about it for a while."""

    observation_space = gymnasium.spaces.Text(20)
    action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.turns = int(self.np_random.integers(0, 10)), 0
        return options["prompt"], {}

    def step(self, action):
        time.sleep(random.random() / 10)
        self.turns += 1
        right = action.strip() == str(self.number)
        reward = 1.0 if right else 0.2 if action.strip().isdigit() else 0.0
        return "high" if action > str(self.number) else "low", reward, right, self.turns == 3, {}


def arena():
    """Guess a number from 1 to 20."""
    return textarena.make("GuessTheNumber-v0")
'''
DOMAINS = ("gymnasium", "textarena", "tools")
ROWS = 48
"""Of each domain."""
LENGTH = 1024
# The model need not play well.
STEPS = 200


def write_data(folder: Path) -> None:
    """Writes model, rows and environments below `folder`/episodes, in files that every user may read. Takes a quarter of a minute of one CPU."""
    folder = folder / "episodes"
    folder.mkdir()
    build(folder, STEPS)
    shutil.copy(environment.__file__, folder / "roads.py")
    (folder / "games.py").write_text(GAMES)
    games = [row | {"domain": "tools"} for row in rows(1, ROWS)]
    for domain in DOMAINS[:2]:
        games += [{"prompt": f"game {number}", "domain": domain} for number in range(ROWS)]
    random.Random(0).shuffle(games)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in games))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def all_are_played(samples: list[dict[str, Any]]) -> None:
    """Asserts on samples, as `longboat samples --json` shows them: each environment's are trained, in several turns, and each tool is called."""
    trained = {domain: [s for s in samples if s["domain"] == domain and s["fate"] == "kept"] for domain in DOMAINS}
    for domain, own in trained.items():
        assert any(turn["trained"] for sample in own for turn in sample["turns"]), domain
        assert any(sum(turn["role"] == "assistant" for turn in sample["turns"]) > 1 for sample in own), domain
    calls = [
        json.loads(turn["tool_calls"]) for sample in trained["tools"] for turn in sample["turns"] if turn["tool_calls"]
    ]
    assert {call["function"]["name"] for made in calls for call in made} == {*environment.WAYS.values()}


def spec(runtime: str = "host", data: str = "/data", **changes: Any) -> dict[str, Any]:
    """Makes an RLJob's spec whose files lie below `data`; `changes` add or replace whole top-level fields."""
    data = f"{data}/episodes"
    functions = {"gymnasium": "games.py:Guess", "textarena": "games.py:arena", "tools": "roads.py:episode"}
    limits = {"maxTurns": 8, "deadlineSeconds": 60}
    made = small_job.spec(
        runtime,
        model={"path": f"{data}/model", "dtype": "Float32", "maxLength": LENGTH},
        dataset={"files": {"paths": [f"{data}/train.jsonl"]}, "columns": {"domain": "domain"}},
        algorithm={"name": "GRPO", "groupSize": 8},
        rollout={"toolParser": "hermes", "sampling": {"maxTokens": 48}, "kvCache": "64Mi", "enforceEager": True},
        environments=[
            {"name": name, "domains": [name], "function": f"{data}/{function}", "limits": limits}
            for name, function in functions.items()
        ],
        environmentPools=[{"name": "games", "replicas": 2, "episodesPerPod": 4}],
        rewards=[{"name": "episode", "kind": "Episode"}],
        samples={"everySteps": 1},
    )
    made["environments"][-1]["columns"] = ["prompt", "roads", "answer"]
    made["trainer"]["maxTokensPerBin"] = LENGTH
    return {**made, **changes}
