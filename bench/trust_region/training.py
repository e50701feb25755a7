"""One training of the quickstart's model by the production trainer, on responses whose weights are some steps old."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from bench.rounds.tasks import COUNTDOWN, QUICKSTART
from bench.trust_region.protocol import Setting
from bench.trust_region.sampler import Sampler
from longboat_crds.job import RLJobSpec
from longboat_graders.result import RewardSample
from longboat_runtime.checkpoint import sharded
from longboat_runtime.reward.tasks import FULL_SCORE
from longboat_runtime.samples import FinishReason, GeneratedSample, SampleId, Segment, VersionSpan
from longboat_runtime.trainer import process_group
from longboat_runtime.trainer.advantages import advantages
from longboat_runtime.trainer.protocol import TrainReport, TrainRequest, TrainSample
from longboat_runtime.trainer.rank import TrainerRank
from longboat_runtime.trainer.updates import Updates
from tests.support.modules import module_at

# What is recorded of the trainer's report of a step.
RECORDED = {
    "entropy": "actor/entropy",
    "norm": "actor/grad_norm",
    "clipped": "actor/pg_clipfrac",
    "masked": "rollout_corr/rollout_rs_masked_fraction",
    "mismatch": "mismatch_kl/k3",
    "weight": "rollout_corr/rollout_is_mean",
}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with its correct answer."""

    ids: tuple[int, ...]
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A response to question `row`, and its score."""

    row: int
    sample: GeneratedSample
    score: float


@dataclass(frozen=True, slots=True)
class Examination:
    """Answers to the held-out prompts: their mean score, and for each prompt the share of correct ones."""

    reward: float
    right: list[float]


class Bench:
    """Model, data and rewards of the quickstart in `folder`, and one trainer rank, which every training uses again."""

    def __init__(self, folder: Path, spec: RLJobSpec, rank: TrainerRank) -> None:
        self._spec, self._rank = spec, rank
        rank.load()
        self._beginning = folder / "beginning"
        self._files = sharded.write(rank.snapshot(), self._beginning)
        self._tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        self.training, self.held_out = (self._questions(folder / f"{name}.jsonl") for name in ("train", "heldout"))
        self._reward = module_at(QUICKSTART / "reward.py").reward

    def spec(self, seed: int, setting: Setting, sections: Mapping[str, Mapping[str, Any]]) -> RLJobSpec:
        """Makes the spec with this seed and the rate of `setting`; keys of `sections` replace those of its sections."""
        values = self._spec.to_json()
        for name, section in sections.items():
            values[name] |= section
        values["rounds"]["seed"] = seed
        values["trainer"]["optimizer"]["learningRate"] = setting.rate
        return RLJobSpec.model_validate(values)

    def train(
        self, spec: RLJobSpec, staleness: int, each: int, collapsed: Callable[[Sequence[float]], bool]
    ) -> dict[str, Any]:
        """Runs the steps of `spec` from the beginning, until it has collapsed; raw values.

        The round of step s is drawn by version max(0, s - 1 - `staleness`). `each` answers to every held-out prompt at
        the end, unless it has collapsed.
        """
        rank, prompts = self._rank, spec.rounds.prompts_per_round
        rank.spec, rank.updates = spec, Updates(spec, rank.model, None)
        rank.restore(self._beginning, self._files)
        chosen = random.Random(spec.rounds.seed).sample(range(len(self.training)), prompts * spec.rounds.steps)
        versions = deque([self._weights()], maxlen=staleness + 1)
        steps: dict[str, list[float]] = {name: [] for name in ("reward", "right", "tokens", *RECORDED)}
        for step in range(1, spec.rounds.steps + 1):
            rows = sorted(chosen[(step - 1) * prompts : step * prompts])
            answers = self._answers(
                versions[0], self.training, rows, spec.algorithm.group_size, (spec.rounds.seed, step)
            )
            report = self._step(spec, step, answers)
            if report.skipped:
                return {**steps, "collapsed": True, "failed": "a gradient is not finite", "held_out": []}
            versions.append(self._weights())
            steps["reward"].append(_mean([answer.score for answer in answers]))
            steps["right"].append(_mean([answer.score >= FULL_SCORE for answer in answers]))
            steps["tokens"].append(_mean([len(answer.sample.token_ids) for answer in answers]))
            for name, metric in RECORDED.items():
                steps[name].append(report.metrics[metric])
            if collapsed(steps["reward"]):
                return {**steps, "collapsed": True, "failed": "", "held_out": []}
        return {**steps, "collapsed": False, "failed": "", "held_out": self.examine(versions[-1], each).right}

    def examine(self, weights: Mapping[str, Tensor] | None, each: int) -> Examination:
        """Draws and grades `each` answers to every held-out prompt by `weights` (None: those of the beginning, which are restored).

        The random numbers are always the same.
        """
        if weights is None:
            self._rank.restore(self._beginning, self._files)
            weights = self._weights()
        answers = self._answers(weights, self.held_out, range(len(self.held_out)), each, (0, 0))
        right = [answer.score >= FULL_SCORE for answer in answers]
        shares = [_mean(right[first : first + each]) for first in range(0, len(right), each)]
        return Examination(_mean([answer.score for answer in answers]), shares)

    def _step(self, spec: RLJobSpec, step: int, answers: Sequence[Answer]) -> TrainReport:
        values = advantages(
            [answer.score for answer in answers],
            [answer.sample.id.prompt for answer in answers],
            self._rank.updates.algorithm,
        )
        samples = {answer.sample.id: answer.sample for answer in answers}
        entries = tuple(
            TrainSample(sample.id, value, sample.size) for sample, value in zip(samples.values(), values, strict=True)
        )
        request = TrainRequest(step, spec.rounds.steps, entries, len(entries))
        return self._rank.train(request, lambda ids: [samples[id_] for id_ in ids])

    def _answers(
        self,
        weights: Mapping[str, Tensor],
        questions: Sequence[Question],
        rows: Sequence[int],
        each: int,
        seed: tuple[int, int],
    ) -> list[Answer]:
        """Draws and grades `each` answers to every row, in order."""
        longest = self._spec.rollout.sampling.max_tokens
        generator = torch.Generator().manual_seed(seed[0] << 32 | seed[1])
        places = [(row, index) for row in rows for index in range(each)]
        drawn = Sampler(self._rank.model.config, weights, longest).draw(
            [questions[row].ids for row, _ in places], generator
        )
        answers = []
        for (row, index), (tokens, logprobs) in zip(places, drawn, strict=True):
            question = questions[row]
            text = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=True)
            ended = int(tokens[-1]) == self._tokenizer.eos_token_id
            segment = Segment.single_turn(
                torch.tensor(question.ids, dtype=torch.int32).numpy(),
                tokens,
                logprobs,
                (VersionSpan(0, 0, len(tokens)),),
            )
            sample = GeneratedSample(
                id=SampleId(0, row, 0, index),
                segments=(segment,),
                finish_reason=FinishReason.STOP if ended else FinishReason.LENGTH,
                text=text,
                engine="",
            )
            answers.append(Answer(row, sample, self._reward(RewardSample(text, question.text, question.answer))))
        return answers

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._rank.weights()}

    def _questions(self, path: Path) -> list[Question]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [Question(tuple(self._tokenizer.encode(row["prompt"])), row["prompt"], row["answer"]) for row in rows]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@contextmanager
def open_bench(folder: Path, steps: int, prompts: int) -> Iterator[Bench]:
    """Builds the quickstart's model and data into `folder`, and joins a trainer group of one rank in this process."""
    torch.set_num_threads(1)
    COUNTDOWN.prepare(folder)
    spec = COUNTDOWN.spec("Synchronous", folder, steps=steps, prompts=prompts, seed=0)
    try:
        yield Bench(folder, spec, TrainerRank(spec, 0, 1, process_group.serve("127.0.0.1")))
    finally:
        process_group.leave()
