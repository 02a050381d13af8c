"""Tensor parallelism: a model for each rank, with its parts of the weights, and a sum where their results meet."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.nn import functional

from kernbench._registry import hint
from kernbench.errors import ArgumentError

# As DTensor, transformers and this package name them.
COLUMNS = frozenset(("columns", "colwise", "ColwiseParallel"))
ROWS = frozenset(("rows", "rowwise", "RowwiseParallel"))


@torch.library.custom_op("kernbench::all_reduce", mutates_args=())
def all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks; outside of a machine there is one."""
    return x.clone()


@all_reduce.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


all_reduce.register_autograd(lambda _, grad: grad)  # what follows is the same on every rank


class RowParallel(torch.nn.Module):
    """A linear layer whose input columns are spread over the ranks."""

    def __init__(self, weight: torch.Tensor, bias: torch.nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(weight, requires_grad=weight.requires_grad), bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' products, and the bias."""
        y: torch.Tensor = all_reduce(functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


def parallelized(model: torch.nn.Module, tp: int, plan: Mapping[str, Any]) -> list[torch.nn.Module]:
    """Return the model of each rank.

    Parameters
    ----------
    model : torch.nn.Module
        The whole model.
    tp : int
        How many ranks.
    plan : mapping
        By module path, in which `*` matches any part: "columns" or "rows" of a linear layer, or as DTensor's and
        transformers' plans have it.

    Raises
    ------
    ArgumentError
        If a path matches no linear layer, a style is unknown, or a size does not divide.
    """
    styles = _styles(model, plan)
    ranks = []
    for rank in range(tp):
        local = copy.deepcopy(model)
        for path, style in styles.items():
            layer = local.get_submodule(path)
            assert isinstance(layer, torch.nn.Linear)
            dim = 0 if style in COLUMNS else 1
            size = layer.weight.shape[dim]
            if size % tp:
                raise ArgumentError(
                    f"plan: {path} has {size} {('columns', 'rows')[dim]}, which tp = {tp} does not divide"
                )
            weight = layer.weight.detach().chunk(tp, dim)[rank].clone()
            weight.requires_grad_(layer.weight.requires_grad)
            if dim == 0:
                layer.weight = torch.nn.Parameter(weight, requires_grad=weight.requires_grad)
                layer.out_features = size // tp
                if layer.bias is not None:
                    layer.bias = torch.nn.Parameter(layer.bias.detach().chunk(tp)[rank].clone())
            else:
                parent, _, name = path.rpartition(".")
                setattr(local.get_submodule(parent), name, RowParallel(weight, layer.bias))
        ranks.append(local)
    return ranks


def _styles(model: torch.nn.Module, plan: Mapping[str, Any]) -> dict[str, str]:
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    found: dict[str, str] = {}
    for pattern, given in plan.items():
        style = given if isinstance(given, str) else type(given).__name__
        if style not in COLUMNS | ROWS:
            raise ArgumentError(f"plan: {pattern}: {style!r} is unknown; {hint(style, ('columns', 'rows'))}")
        paths = [name for name in linear if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")]
        if not paths:
            raise ArgumentError(f"plan: no linear layer is {pattern!r}; {hint(pattern, linear)}")
        found |= dict.fromkeys(paths, style)
    return found
