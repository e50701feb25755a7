"""Ranks traced on fake tensors."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat_crds.job import RLJobSpec
from longboat_runtime.plan.figures import Figures
from longboat_runtime.plan.ledger import automatic_collection_off
from longboat_runtime.plan.trace import Traces, trace, trace_rank
from longboat_runtime.trainer import attention
from tests.plan.planned import GIB, MIB, make_spec, write_config
from tests.support.paths import REPOSITORY


def recorded() -> list[tuple[str, int, int]]:
    """Lists model, tokens of a bin, and the peak of `accumulate` beyond what was held before: one rank on an H200."""
    settings, lines = {}, []
    for text in (REPOSITORY / "bench/results/memory.jsonl").read_text().splitlines():
        line = json.loads(text)
        settings = line.get("settings", settings)
        if "accumulate" in line and line["size"] != "tiny":
            lines.append((line["size"], settings["tokens"], line["accumulate"]["peak"]))
    return lines


RECORDED = recorded()
# Logits of the other bins exceed a GiB. The head of that time made all of them, so those models are traced whole, which takes longer.
SHORT = [line for line in RECORDED if line[1] == 1024]


def one_rank(size: str, tokens: int, folder: Path) -> RLJobSpec:
    return make_spec(
        write_config(folder, size),
        rollout={"sampling": {"maxTokens": tokens - 16}},
        trainer={"maxTokensPerBin": tokens},
    )


@pytest.mark.parametrize(("size", "tokens", "peak"), SHORT)
def test_the_peak_is_the_recorded_one_of_a_gpu(size: str, tokens: int, peak: int, tmp_path: Path) -> None:
    phase = trace(one_rank(size, tokens, tmp_path)).phases["accumulate"]
    assert phase.peak - phase.before == pytest.approx(peak, rel=0.1)


@pytest.mark.extended
@pytest.mark.parametrize(("size", "tokens", "peak"), [line for line in RECORDED if line not in SHORT])
def test_the_peak_of_the_earlier_head_is_the_recorded_one(size: str, tokens: int, peak: int, tmp_path: Path) -> None:
    assert len(RECORDED) == 5
    phase = trace_rank(one_rank(size, tokens, tmp_path), attention.NAME, fused=False).phases["accumulate"]
    assert phase.peak - phase.before == pytest.approx(peak, rel=0.1)


@pytest.fixture
def frequent_promotions() -> Iterator[None]:
    """Lets objects soon reach the oldest generation, which isn't collected: dynamo collects only younger ones once it has compiled."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50, 1, 1_000_000)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("compiled", [False, True])
def test_experts_have_equal_figures_in_float16_whenever_python_collects(
    compiled: bool, frequent_promotions: None, tmp_path: Path
) -> None:
    few = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
    few |= {"vocab_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    model = write_config(tmp_path, "Qwen3-30B-A3B", **few)
    trainer = {"replicas": 2, "compile": compiled}
    with automatic_collection_off():
        half = trace(make_spec(model, model={"dtype": "Float16"}, trainer=trainer))
    assert trace(make_spec(model, model={"dtype": "BFloat16"}, trainer=trainer)) == half


def long_bins(folder: Path, name: str, ranks: int, *, whole: bool = False, **trainer: object) -> Figures:
    """Bins of 34,816 tokens: responses of up to 32,768."""
    return trace(
        make_spec(
            write_config(folder, name),
            model={"maxLength": 34816},
            rollout={"sampling": {"maxTokens": 32768}},
            trainer={"replicas": ranks, "maxTokensPerBin": 34816, **trainer},
        ),
        whole=whole,
    )


# GiB of a rank at most.
@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "ranks", "trainer", "most"),
    [
        ("Qwen3-8B", 8, {}, 37.5),
        ("Qwen3-8B", 4, {}, 52.5),
        ("Qwen3-32B", 16, {"offloadActivations": True}, 52.0),
        ("Qwen3-30B-A3B", 16, {}, 50.0),
        ("Qwen3-8B", 8, {"compile": True}, 37.5),
    ],
)
def test_long_bins_fit(name: str, ranks: int, trainer: dict[str, object], most: float, tmp_path: Path) -> None:
    figures = long_bins(tmp_path, name, ranks, **trainer)
    assert figures.peak / GIB <= most
    assert figures.operators <= 60_000
    assert figures.real <= MIB


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "ranks", "trainer"),
    [
        ("Qwen3-8B", 8, {}),
        ("Qwen3-8B", 8, {"compile": True}),
        ("Qwen3-32B", 16, {"offloadActivations": True}),
        ("Qwen3-30B-A3B", 16, {}),
    ],
)
def test_two_short_models_say_what_the_whole_one_does(
    name: str, ranks: int, trainer: dict[str, object], tmp_path: Path
) -> None:
    extended, whole = (long_bins(tmp_path, name, ranks, whole=each, **trainer) for each in (False, True))
    for phase, figures in whole.phases.items():
        assert extended.phases[phase].peak == pytest.approx(figures.peak, rel=0.001), phase
    equal = ("parameters", "weights", "states", "snapshot", "pinned", "published", "vectors", "key_values", "largest")
    for figure in equal:
        assert getattr(extended, figure) == getattr(whole, figure), figure
    assert extended.gathered == pytest.approx(whole.gathered, rel=0.001)
    assert extended.scattered == pytest.approx(whole.scattered, rel=0.001)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"trainer": {"replicas": 4, "minibatches": 2, "gradientCheckpointing": False}},
        {"algorithm": {"klCoefficient": 0.01, "entropyCoefficient": 0.01}},
        {"algorithm": {"name": "GSPO"}, "trainer": {"minibatches": 2}},
        {"trainer": {"compile": True, "replicas": 2}},
        {"trainer": {"replicas": 2, "devicesPerPod": 2, "replicateDegree": 2}},
        {"model": {"dtype": "Float16"}},
        {"model": {"dtype": "Float32"}, "trainer": {"offloadActivations": True}},
    ],
)
def test_a_rank_is_traced_without_memory_for_values(sections: dict[str, dict[str, object]], tmp_path: Path) -> None:
    figures = trace(make_spec(write_config(tmp_path, "small"), **sections))
    trainer = sections.get("trainer", {})
    shards = trainer.get("replicas", 1) * trainer.get("devicesPerPod", 1) // trainer.get("replicateDegree", 1)
    assert figures.weights * shards == pytest.approx(4 * figures.parameters, rel=0.05)
    # The optimizer's count of steps takes a block for each weight.
    assert figures.states == pytest.approx(2 * figures.weights, rel=0.2)
    assert figures.snapshot == pytest.approx(3 * figures.weights, rel=0.1)
    assert figures.phases["accumulate"].peak > figures.phases["accumulate"].before + figures.weights
    assert figures.phases["update"].after == pytest.approx(figures.phases["update"].before, rel=0.05)
    assert figures.real <= MIB
    if sections.get("algorithm", {}).get("klCoefficient"):
        assert figures.reference
    assert bool(figures.pinned) is bool(sections.get("trainer", {}).get("offloadActivations"))


def test_figures_are_kept_for_later_processes(tmp_path: Path) -> None:
    spec = make_spec(write_config(tmp_path, "small"))
    figures = Traces(tmp_path / "kept")(spec)
    [kept] = (tmp_path / "kept").iterdir()
    assert Figures.from_json(kept.read_text()) == figures
    changed = kept.read_text().replace(f'"operators": {figures.operators}', '"operators": 1')
    kept.write_text(changed)
    assert Traces(tmp_path / "kept")(spec).operators == 1
    kept.write_text("not whole")
    assert Traces(tmp_path / "kept")(spec) == figures


# Ray and vLLM as good as not installed: importing either fails.
BLOCKED = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("ray", "vllm"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""
CORE = """
from pathlib import Path
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.rank import TrainerRank
from tests.support.tiny_model import build_tiny_model
from tests.trainer.trainer_world import fetch_from, make_request, make_samples, make_spec

model = build_tiny_model(Path(sys.argv[1]) / "model", hidden=32)
rank = TrainerRank(make_spec(model), 0, 1, process_group.serve("127.0.0.1"))
rank.load()
samples = make_samples(8)
assert rank.train(make_request(samples), fetch_from(samples)).metrics["actor/grad_norm"] > 0
assert dict(rank.weights())
process_group.leave()
"""
PLAN = """
from pathlib import Path
from longboat_runtime.plan.trace import trace
from tests.plan.planned import make_spec, write_config

assert trace(make_spec(write_config(Path(sys.argv[1]), "small"), trainer={"replicas": 8})).peak
"""


@pytest.mark.parametrize("program", [CORE, PLAN], ids=["core", "plan"])
def test_the_trainers_core_needs_neither_ray_nor_vllm(program: str, tmp_path: Path) -> None:
    code = BLOCKED + program + '\nassert not {"ray", "vllm"} & {name.split(".")[0] for name in sys.modules}\n'
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
