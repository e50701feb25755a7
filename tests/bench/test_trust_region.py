"""When a training has collapsed, what the benchmark concludes, and that its sampler gives what an engine would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from bench.record import Recorder
from bench.trust_region.measure import Measurement, known_lines
from bench.trust_region.protocol import (
    ARMS,
    BEFORE,
    CONFIRMATION_SEEDS,
    DEFAULT,
    SEARCH_SEEDS,
    STEPS,
    SYNCHRONOUS,
    USUAL,
    Setting,
    Training,
    best,
    collapsed,
    search_ended,
)
from bench.trust_region.sampler import Sampler
from bench.trust_region.summary import chosen, differences_of, write

END = 1


def test_a_training_has_collapsed_once_five_steps_are_worse_than_the_untrained_model() -> None:
    learned = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert not collapsed(learned, untrained=0.5)
    assert not collapsed([*learned, 0.7, 0.6, 0.5, 0.45, 0.45], untrained=0.5), (
        "it lost what it had learned, and no more"
    )
    assert not collapsed([0.0, 0.0, 0.0, 0.0], untrained=0.5), "too few steps to say"
    assert collapsed([*learned, 0.4, 0.4, 0.4, 0.4, 0.39, 0.9], untrained=0.5)


def test_the_search_leaves_a_setting_when_its_answer_is_certain() -> None:
    assert search_ended([True] * 5) is None
    assert search_ended([False, *[True] * 6]) is True
    assert search_ended([False] * 6) is None
    assert search_ended([False] * 7) is False
    assert search_ended([*[False] * 6, *[True] * 5]) is None


def test_seeds_of_the_confirmation_are_fresh() -> None:
    assert len(SEARCH_SEEDS) == len(CONFIRMATION_SEEDS) == 12
    assert not set(SEARCH_SEEDS) & set(CONFIRMATION_SEEDS)


def test_the_fewest_collapses_are_best_then_the_most_right_answers() -> None:
    assert best({"a": 1, "b": 0, "c": 0}, {"a": 0.9, "b": 0.5, "c": 0.6}) == "c"


def line(arm: str, seed: int, held_out: list[float], phase: str = "compare") -> dict[str, Any]:
    return {
        "phase": phase,
        "arm": arm,
        "setting": list(Setting(1e-3, 1)),
        "seed": seed,
        "held_out": held_out,
        "collapsed": not held_out,
    }


def test_a_collapsed_training_counts_as_without_right_answers() -> None:
    lines = [
        line(SYNCHRONOUS, 1, [0.5, 1.0]),
        line(DEFAULT, 1, [0.5, 0.5]),
        line(SYNCHRONOUS, 2, [0.75]),
        line(DEFAULT, 2, []),
    ]
    assert differences_of([*lines, line(DEFAULT, 3, [1.0])]) == {1: -0.25, 2: -0.75}
    candidates = [arm for arm in ARMS if arm not in (BEFORE, DEFAULT, SYNCHRONOUS)][:2]
    held = [line(arm, seed, [0.5 + 0.1 * place], "select") for place, arm in enumerate(candidates) for seed in (0, 1)]
    assert chosen(held) == candidates[1]
    assert (
        chosen([*held, line(candidates[1], 2, [], "select"), line(candidates[0], 2, [0.1], "select")]) == candidates[0]
    )


class NotFinite:
    """Trainings whose first gradient isn't finite."""

    def spec(self, seed: int, setting: Setting, sections: dict[str, Any]) -> None:
        return None

    def train(self, *arguments: object) -> dict[str, Any]:
        return {"reward": [], "clipped": [], "masked": [], "collapsed": True, "held_out": []}


def test_a_training_may_collapse_in_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tmp_path / "trust_region.jsonl"
    recorder = Recorder(raw)
    recorder.write("untrained", reward=0.5, held_out=[0.5])
    measurement = Measurement(NotFinite(), recorder, known_lines(raw))
    assert measurement.collapses(Training("confirm", DEFAULT, USUAL, CONFIRMATION_SEEDS[0]))
    assert "collapsed after 0 steps, last reward nan" in capsys.readouterr().out
    held = {"reward": [0.6] * STEPS, "clipped": [0.0], "masked": [0.0]}
    recorder.write("training", **line(DEFAULT, CONFIRMATION_SEEDS[1], [0.6], "confirm"), **held)
    recorder.close()
    write(raw)
    assert f"| {DEFAULT} | 1 | 2 | 60 |" in raw.with_suffix(".md").read_text()


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=11,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=40,
            tie_word_embeddings=True,
            eos_token_id=END,
        )
    ).eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.3)
    return made


def test_the_sampler_returns_the_models_log_probs_of_what_it_drew(model: Qwen3ForCausalLM) -> None:
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    prompts = [[2, 3, row % 9 + 2] for row in range(24)]
    drawn = Sampler(model.config, weights, 30).draw(prompts, torch.Generator().manual_seed(1))
    lengths = {len(tokens) for tokens, _ in drawn}
    assert len(lengths) > 3, "responses that end leave the others as they are"
    for prompt, (tokens, logprobs) in zip(prompts, drawn, strict=True):
        assert END not in tokens[:-1]
        assert tokens[-1] == END or len(tokens) == 30
        ids = torch.tensor([*prompt, *tokens.tolist()])
        laws = model(ids[None]).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        np.testing.assert_allclose(
            logprobs, laws.gather(-1, ids[len(prompt) :, None])[:, 0].detach().numpy(), atol=1e-5
        )


def test_the_sampler_draws_by_the_models_probabilities(model: Qwen3ForCausalLM) -> None:
    weights = {name: value.detach() for name, value in model.state_dict().items()}
    drawn = Sampler(model.config, weights, 1).draw([[2, 3]] * 20_000, torch.Generator().manual_seed(1))
    shares = np.bincount([tokens[0] for tokens, _ in drawn], minlength=11) / len(drawn)
    expected = model(torch.tensor([[2, 3]])).logits[0, -1].softmax(-1).detach().numpy()
    np.testing.assert_allclose(shares, expected, atol=0.015)
