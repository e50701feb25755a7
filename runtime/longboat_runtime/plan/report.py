"""Formats a plan as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from longboat_crds.trainer import TrainerSpec
from longboat_runtime.plan import needs
from longboat_runtime.plan.fit import Case, Judgement
from longboat_runtime.plan.needs import GIB, MIB, Resource
from longboat_runtime.rollout.engine import TORCH_NAMES, kv_token_bytes

_PHASES = {
    "load": "loading",
    "accumulate": "bins, forward and backward",
    "update": "optimizer",
    "publish": "publication",
    "snapshot": "snapshot",
}


def lines(case: Case, judgement: Judgement) -> Iterator[str]:
    """Yields the lines of a plan: the trainer by phase, needs and limits, bytes by link, and what doesn't fit."""
    figures, trainer = judgement.figures, case.spec.trainer
    settings = [_ranks(trainer), f"bins of {trainer.max_tokens_per_bin} tokens"]
    settings += [
        "layers recomputed" if judgement.recomputed or trainer.gradient_checkpointing else "layers not recomputed"
    ]
    settings += ["activations offloaded"] if trainer.offload_activations else []
    yield f"{figures.parameters / 1e9:.2f} x 10^9 parameters, {', '.join(settings)}"
    yield ""
    yield "A trainer rank's device, by phase (GiB)      before    peak   after"
    for name, phase in figures.phases.items():
        yield f"  {_PHASES[name]:<38} {_gib(phase.before)} {_gib(phase.peak)} {_gib(phase.after)}"
    yield ""
    yield "Per pod                                      needed   given"
    for need in judgement.needs:
        mark = "" if need.fits else "   DOES NOT FIT" if need.exceeds else "   MAY NOT FIT"
        if need.resource is Resource.BIN:
            yield f"  {'bin, tokens (at least)':<40} {need.needed:>8} {need.available:>7}{mark}"
            continue
        available = "      -" if need.available is None else _gib(need.available)
        yield f"  {need.role + ': ' + need.resource + ', GiB':<40} {_gib(need.needed):>8} {available}{mark}"
        for part, size in need.parts.items():
            yield f"    {part:<36} {_size(size):>10}"
    yield ""
    yield from _engines(case, judgement)
    yield ""
    yield "Bytes by link (GB)"
    for link, size in needs.links(case.spec, figures).items():
        yield f"  {link:<56} {size / 1e9:>8.2f}"
    yield ""
    if not judgement.problems and not judgement.warnings:
        yield "Fits, as far as it is given." if any(need.available is None for need in judgement.needs) else "Fits."
    for label, problems in (("DoesNotFit", judgement.problems), ("May not fit", judgement.warnings)):
        for problem in problems:
            yield f"{label}: {problem.field}: {problem.message}"


def _ranks(trainer: TrainerSpec) -> str:
    """Says how many ranks there are, and where."""
    ranks = f"{trainer.ranks} rank{'s' if trainer.ranks > 1 else ''}"
    pods = f" in {trainer.replicas} pod{'s' if trainer.replicas > 1 else ''}"
    copies = f" with {trainer.replicate_degree} copies of the model" if trainer.replicate_degree > 1 else ""
    return ranks + pods + copies


def _engines(case: Case, judgement: Judgement) -> Iterator[str]:
    room = needs.kv_room(case.spec, case.model, judgement.figures, case.capacity)
    if room is None:
        yield "KV cache of an engine: unknown without --device, rollout.kvCache or rollout.deviceMemory"
        return
    token = kv_token_bytes(case.model, TORCH_NAMES[case.spec.model.dtype], case.spec.rollout.tensor_parallel)
    tokens = max(0, room // token)
    yield f"KV cache of an engine: {tokens} tokens, {tokens / case.longest:.1f} sequences of {case.longest}"


def _gib(value: int) -> str:
    return f"{value / GIB:7.2f}"


def _size(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / MIB:.2f} MiB" if value >= MIB else f"{value} B"
