"""Lengths drawn beforehand: the bench's own fleet gives each request its length as `maxTokens`, and engines stop it there.

The model never ends a response on its own, so a response has just the tokens that were drawn for its name. All else is production.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longboat_runtime.rollout.protocol import RolloutFleet
from longboat_runtime.samples import SampleRequest
from longboat_runtime.simulate.lengths import TwoLevel

# Log-normal, prompt effect x sample effect in the ratio 3 : 2 (research fits 0.9 and 0.6 for rounds of 1,024 responses). Wider here,
# so that a round of 12 x 2 has the same longest response over its median as those have: 25 to 32, by its median over rounds. One
# response in seventy reaches the limit, as there.
MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST = 16, 1.56, 1.04, 1024
PROMPT_TOKENS = 8
ROWS = 4096


def distribution(seed: int) -> TwoLevel:
    """Returns the distribution of lengths of one seed, the same for every arm."""
    return TwoLevel(MEDIAN, PROMPT_SIGMA, SAMPLE_SIGMA, LONGEST, seed)


class DrawnFleet:
    """A fleet whose responses have drawn lengths."""

    def __init__(self, fleet: RolloutFleet, seed: int) -> None:
        self._fleet, self._distribution = fleet, distribution(seed)

    async def submit(self, requests: Sequence[SampleRequest]) -> None:
        await self._fleet.submit(
            [
                replace(request, sampling=replace(request.sampling, max_tokens=self._distribution(request.id)))
                for request in requests
            ]
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)


def prepare(folder: Path, layers: int, hidden: int) -> None:
    """Writes the model of the tests, of this depth and width and without an end token, and prompts of random letters."""
    from tests.support.tiny_model import build_tiny_model

    without_end(build_tiny_model(folder / "model", layers=layers, hidden=hidden, max_length=2048))
    source = random.Random(0)
    rows = ({"prompt": "".join(source.choices(string.ascii_lowercase, k=PROMPT_TOKENS))} for _ in range(ROWS))
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def without_end(model: Path) -> Path:
    """Takes the end token out of a model's files: vLLM stops at those of its config, of its generation and of its tokenizer."""
    for name, keys in {
        "config.json": ("eos_token_id",),
        "generation_config.json": ("eos_token_id",),
        "tokenizer_config.json": ("eos_token",),
        "special_tokens_map.json": ("eos_token",),
    }.items():
        file = model / name
        if file.exists():
            content = json.loads(file.read_text())
            file.write_text(json.dumps({key: value for key, value in content.items() if key not in keys}))
    return model
