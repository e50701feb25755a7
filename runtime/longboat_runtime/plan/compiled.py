"""Compiled layers in a trace: the graphs that torch would compile, run operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def interpreted(graph: Any, inputs: Sequence[Tensor]) -> Any:
    """Compiles nothing: a backend of torch's compiler whose graphs run on fake tensors.

    They are cut into forward and backward, and made of the same operators, as those that Inductor compiles for GPUs, so they save the same
    tensors in between. Inductor fuses operators that only read and write memory, whose results are counted here.
    """
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    def run(module: Any, _: Any) -> Any:
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=run, partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table()
    )
    return backend(graph, inputs)
