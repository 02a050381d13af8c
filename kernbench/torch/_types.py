"""Types that the machine lacks, refused before a graph is compiled."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernbench._dtypes import as_dtype
from kernbench.errors import ArgumentError


def check_types(gm: torch.fx.GraphModule, modules: Mapping[str, str]) -> None:
    """Raise ArgumentError, with module and operator, for tensors of types that the machine lacks."""
    for node in gm.graph.nodes:
        for x in torch.utils._pytree.tree_leaves(node.meta.get("example_value")):
            try:
                as_dtype(str(x.dtype).removeprefix("torch.") if isinstance(x, torch.Tensor) else "float32")
            except TypeError:
                operator = "input" if node.op == "placeholder" else getattr(node.target, "__name__", node.target)
                remedy = (
                    "compute with its real and imaginary parts"
                    if x.is_complex()
                    else "convert it, for example to torch.int8 or torch.float16"
                )
                raise ArgumentError(
                    f"{modules.get(node.name) or 'the model'}: {operator} is of {x.dtype}, which the machine does not "
                    f"have; {remedy}"
                ) from None
