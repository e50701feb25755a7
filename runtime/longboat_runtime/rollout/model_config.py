"""config.json of the model that an engine is to serve."""

from __future__ import annotations

import json
from pathlib import Path

from longboat_crds.reasons import Reason
from longboat_runtime.problems import SpecProblem
from longboat_runtime.rollout.engine import EngineConfig


def read_model_config(config: EngineConfig) -> dict:
    """The text model's part of config.json. Raises SpecProblem if it isn't there or isn't JSON."""
    path = Path(config.model) / "config.json"
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise SpecProblem(
            Reason.MODEL_NOT_FOUND,
            "model.path",
            f"{path} can't be read in the rollout pod ({error.strerror}); check the path, and that the runtime template mounts it",
        ) from error
    except ValueError as error:
        raise SpecProblem(Reason.MODEL_INVALID, "model.path", f"{path} is not JSON: {error}") from error
    return content.get("text_config", content)
