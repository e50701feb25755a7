"""What torch compiles computes the same, once for all bins."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from longboat_crds.problems import SpecProblem
from longboat_runtime.trainer import logprobs, sharding
from longboat_runtime.trainer.forward import check_compiler, compiles
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, full, make_request, make_samples, make_spec, only_rank

STEPS = [make_samples(9, seed=seed) for seed in range(2)]


# The last case has more layers than torch compiles versions of a function before it gives up, which is an error here.
CASES = [(False, True, 3), (True, True, 3), (False, False, 10)]


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes torch run its graphs as they are (`eager`), or after minutes of compiling C++ (`inductor`)."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=request.param))
    logprobs._compiled.cache_clear()


@pytest.mark.parametrize(
    ("backend", "checkpointing", "fsdp", "layers"),
    [("eager", *CASES[-1]), pytest.param("eager", *CASES[1], marks=pytest.mark.extended)]
    + [pytest.param("inductor", *case, marks=pytest.mark.extended) for case in CASES],
    indirect=["backend"],
)
@pytest.mark.usefixtures("backend")
@torch._dynamo.config.patch(fail_on_recompile_limit_hit=True)
def test_compiled_layers_train_as_others_and_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, checkpointing: bool, fsdp: bool, layers: int
) -> None:
    monkeypatch.setattr(sharding, "needs_fsdp", lambda *_: fsdp)
    model = build_tiny_model(tmp_path / "model", hidden=64, layers=layers)
    norms: dict[bool, list[float]] = {}
    weights = {}
    for compiled in (False, True):
        torch._dynamo.reset()
        counters.clear()
        trainer = {"compile": compiled, "gradientCheckpointing": checkpointing}
        graphs = []
        with only_rank(make_spec(model, trainer=trainer, algorithm={"klCoefficient": 0.1})) as rank:
            norms[compiled] = []
            for number, samples in enumerate(STEPS, start=1):
                report = rank.train(make_request(samples, step=number), fetch_from(samples))
                norms[compiled].append(report.metrics["actor/grad_norm"])
                graphs.append(counters["stats"]["unique_graphs"])
            weights[compiled] = torch.cat([full(weight).flatten() for weight in rank.updates.parameters.values()])
        assert (graphs[0] > 0) is compiled
        assert graphs[1] == graphs[0], "other numbers of tokens, and other samples, need no other graphs"
    assert norms[True] == pytest.approx(norms[False], rel=1e-4)
    # Adam's first updates have the size of the learning rate whatever the gradient's; where that is nearly 0 rounding decides.
    assert ((weights[True] - weights[False]).abs() < 1e-5).float().mean() > 0.99


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [(None, "cpu", False), (None, "cuda", True), (False, "cuda", False), (True, "cpu", True)],
)
def test_models_on_gpus_are_compiled_unless_the_job_says_otherwise(
    *, wanted: bool | None, device: str, expected: bool
) -> None:
    assert compiles(wanted, device) is expected


@pytest.mark.parametrize(
    ("device", "variable", "lacks"), [("cpu", "CXX", "C++ compiler (g++)"), ("cuda", "CC", "C compiler (gcc)")]
)
def test_without_a_compiler_the_field_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, variable: str, lacks: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SpecProblem, match=re.escape(f"there is no {lacks}")) as caught:
        check_compiler(device)
    assert caught.value.field == "spec.trainer.compile"
    (own := tmp_path / "own-compiler").write_text("")
    own.chmod(0o755)
    monkeypatch.setenv(variable, f"{own} -O2")
    check_compiler(device)
