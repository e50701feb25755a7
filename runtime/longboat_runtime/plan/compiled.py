"""Traces compiled layers: runs the graphs that torch would compile, operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from longboat_runtime.plan.ledger import Ledger

# Operators that Inductor computes in the kernel that reads their result, beside those that torch marks as pointwise.
_INLINE = ("convert_element_type", "_to_copy", "cat", "clone", "full", "iota", "where")
# Operators that read what is computed in their own kernel.
_REDUCTIONS = ("sum", "mean", "amax", "amin", "any", "var_mean", "prod")


class Interpreted:
    """A backend of torch's compiler that compiles nothing: its graphs run on the fake tensors that a `ledger` counts.

    They are partitioned into forward and backward and decomposed as for Inductor on GPUs, so they save the same tensors for backward.
    Results that only pointwise operators and reductions read take no memory: Inductor fuses those.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, graph: Any, inputs: Sequence[Tensor]) -> Any:
        """Prepares one of dynamo's graphs."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.partitioners import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table

        backend = aot_autograd(
            fw_compiler=self._runs,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )
        return backend(graph, inputs)

    def _runs(self, module: fx.GraphModule, _: Any) -> Any:
        interpreter = _Interpreter(module, self._ledger)

        def run(arguments: list[Any]) -> Any:
            # `boxed_run` empties the list, so that each argument is released after its last use, but keeps the results.
            try:
                return interpreter.boxed_run(arguments)
            finally:
                interpreter.env = {}

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


class _Interpreter(fx.Interpreter):
    """Runs a graph. Releases each value after its last use, and doesn't count fused ones."""

    def __init__(self, module: fx.GraphModule, ledger: Ledger) -> None:
        super().__init__(module)
        self._ledger = ledger
        self._fused = {node for node in module.graph.nodes if is_fused(node)}

    def run_node(self, node: fx.Node) -> Any:
        if node in self._fused:
            with self._ledger.uncounted():
                return super().run_node(node)
        return super().run_node(node)


def is_fused(node: fx.Node) -> bool:
    """Whether Inductor computes a result in each kernel that reads it, and so allocates no memory for it. Pure."""
    return _is_inline(node) and all(_is_inline(user) or _name(user) in _REDUCTIONS for user in _readers(node))


def _is_inline(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or _name(node) in _INLINE


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Yields what reads the result, also through views."""
    for user in node.users:
        if user.op == "call_function" and getattr(user.target, "is_view", False):
            yield from _readers(user)
        else:
            yield user


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))
