"""What is refused before anything of a job starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from longboat_crds.problems import SpecProblem
from longboat_crds.reasons import Reason
from longboat_runtime.driver import assembly
from longboat_runtime.driver.job import Job
from tests.driver.fakes import make_spec


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("adapter_config.json", {"base_model_name_or_path": "/models/base"}, "merge it into its base model /models/base"),
        ("config.json", {"architectures": ["Gemma3ForConditionalGeneration"]}, "vision-language"),
        ("config.json", {"architectures": ["Qwen3ForCausalML"]}, "vLLM doesn't have"),
    ],
    ids=["adapter", "vision", "architecture"],
)  # fmt: skip
async def test_a_model_that_cannot_be_trained(
    file: str, content: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "start_store", lambda: pytest.fail("components are started"))
    (tmp_path / file).write_text(json.dumps(content))
    spec = make_spec()
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"path": str(tmp_path)})})
    with pytest.raises(SpecProblem, match=words) as caught:
        async with assembly.open_components(Job("j", spec, tmp_path, 1)):
            pytest.fail("components are open")
    assert (caught.value.reason, caught.value.field) == (Reason.MODEL_INVALID, "spec.model.path")
