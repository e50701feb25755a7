"""Measures what an engine's steps take: the actor of `longboat profile`."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from longboat_runtime.rollout.engine import EngineConfig
from longboat_runtime.rollout.environment import NodeDevices

# A cell is the median of at most this many decode steps.
STEPS = 9
# Fewest tokens in context that are measured, unless an engine holds fewer.
LEAST_CONTEXT = 32


def grid(kv_tokens: int, max_sequences: int, max_length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Chooses numbers of sequences and tokens in context to measure: each four times the one before, then the largest (pure).

    The largest are as many sequences as fit with the fewest tokens and as many tokens as fit with one sequence, within the engine's limits.
    """
    longest = max(1, min(max_length, kv_tokens) - STEPS - 2)
    least = min(LEAST_CONTEXT, longest)
    most = max(1, min(max_sequences, kv_tokens // (least + STEPS + 2)))
    return _powers(1, most), _powers(least, longest)


def _powers(least: int, most: int) -> tuple[int, ...]:
    below = takewhile(lambda value: 2 * value <= most, (least * 4**power for power in range(32)))
    return (*below, most)


def filled(
    sequences: Sequence[int], contexts: Sequence[int], cells: dict[tuple[int, int], float]
) -> tuple[tuple[float, ...], ...]:
    """Returns the seconds of all cells, a row for each number of sequences (pure).

    Those that the KV cache can't hold follow the others by a fit, and are never below their neighbours with fewer sequences or tokens.
    A step takes as long as a constant, each sequence, and each token in context take (least squares of relative errors).
    """
    measured = list(cells)
    terms = np.array([(1.0, n, n * c) for n, c in measured])
    seconds = np.array([cells[cell] for cell in measured])
    fit, *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(measured)), rcond=None)
    rows: list[tuple[float, ...]] = []
    for i, n in enumerate(sequences):
        row: list[float] = []
        for j, c in enumerate(contexts):
            least = max([*row[-1:], *(rows[i - 1][j : j + 1] if i else ())], default=0.0)
            row.append(cells.get((n, c)) or max(float(fit @ (1.0, n, n * c)), least))
        rows.append(tuple(row))
    return tuple(rows)


class MeasuredEngine:
    """Steps a vLLM engine to measure it, as an actor; it serves nothing."""

    def __init__(self, config: EngineConfig, node: NodeDevices) -> None:
        self._config, self._node = config, node
        self._random = random.Random(0)
        self._requests = 0

    def start(self) -> tuple[int, int]:
        """Starts vLLM as for the job's engines. Returns the tokens of its KV cache and of the longest sequence."""
        from longboat_runtime.imports import uncollected
        from longboat_runtime.rollout.factory import set_up
        from longboat_runtime.weights.handover_files import sweep

        sweep()
        with uncollected():
            _, arguments = set_up(self._config, self._node)
            from vllm import EngineArgs, LLMEngine

            self._vllm: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._longest = int(arguments["max_model_len"])
        self._batched = int(arguments.get("max_num_batched_tokens") or 2048)
        self._vocabulary = self._vllm.model_config.get_vocab_size()
        cache = self._vllm.vllm_config.cache_config
        # The first requests set kernels up lazily, for seconds.
        self.cell(1, 4)
        return (cache.num_gpu_blocks or 0) * cache.block_size, self._longest

    def cell(self, sequences: int, context: int) -> tuple[float, float] | None:
        """Measures a decode step of so many sequences with about so many tokens in context, and the computation of a prompt's token.

        Returns the seconds of both; None if the sequences never run in one step: the KV cache can't hold them.
        """
        # While later prompts are computed, the first sequences may decode already.
        computing = min(-(-sequences * context // self._batched), max(0, self._longest - context - STEPS - 1))
        names = [self._begin(context, computing + STEPS + 1) for _ in range(sequences)]
        began = time.perf_counter()
        drawn: set[str] = set()
        while len(drawn) < sequences:
            drawn.update(output.request_id for output in self._vllm.step())
        prefill = (time.perf_counter() - began) / (sequences * context)
        seconds = []
        for _ in range(STEPS):
            began = time.perf_counter()
            outputs = self._vllm.step()
            if len(outputs) == sequences:
                seconds.append(time.perf_counter() - began)
        self._vllm.abort_request(names)
        while self._vllm.has_unfinished_requests():
            self._vllm.step()
        return (statistics.median(seconds), prefill) if seconds else None

    def shutdown(self) -> None:
        """Ends vLLM."""
        self._vllm.engine_core.shutdown()

    def _begin(self, context: int, tokens: int) -> str:
        """Begins a request with a random prompt of its own, so that no keys and values are shared; returns its name."""
        from vllm import SamplingParams

        self._requests += 1
        name = f"measured-{self._requests}"
        prompt = [self._random.randrange(self._vocabulary) for _ in range(context)]
        params = SamplingParams(
            max_tokens=tokens, temperature=1.0, seed=self._requests, ignore_eos=True, logprobs=0, detokenize=False
        )
        self._vllm.add_request(name, {"prompt_token_ids": prompt}, params)
        return name
