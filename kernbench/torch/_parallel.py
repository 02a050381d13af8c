"""Tensor parallelism: a model for each rank, with its parts of the weights, and a sum where their results meet."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
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


class _Shared(torch.autograd.Function):
    """The input of a column-parallel layer: the same on every rank, so its gradient is summed over the ranks."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' gradients."""
        found: torch.Tensor = all_reduce(grad)
        return found


class _Part(torch.nn.Module):
    """A linear layer on one rank, with its part of the weights."""

    def __init__(self, layer: torch.nn.Linear, rank: int, tp: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.weight = _cut(layer.weight, rank, tp, dim)
        self.bias = layer.bias if layer.bias is None or dim else _cut(layer.bias, rank, tp, 0)
        self.out_features, self.in_features = self.weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of the output, or the sum of the ranks' products and the bias."""
        if self.dim == 0:
            return functional.linear(_Shared.apply(x), self.weight, self.bias)
        y: torch.Tensor = all_reduce(functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


def _cut(x: torch.nn.Parameter, rank: int, tp: int, dim: int) -> torch.nn.Parameter:
    part = x.detach().chunk(tp, dim)[rank].clone()
    return torch.nn.Parameter(part, requires_grad=x.requires_grad)


class Ranks:
    """The model of each rank, whose parameters follow those of the whole model, and give it their gradients.

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

    def __init__(self, model: torch.nn.Module, tp: int, plan: Mapping[str, Any]) -> None:
        self.models: list[torch.nn.Module] = []
        dims: dict[str, int] = {}
        for path, style in _styles(model, plan).items():
            dim, layer = int(style in ROWS), model.get_submodule(path)
            assert isinstance(layer, torch.nn.Linear)
            if layer.weight.shape[dim] % tp:
                what = f"{path} has {layer.weight.shape[dim]} {('columns', 'rows')[dim]}"
                raise ArgumentError(f"plan: {what}, which tp = {tp} does not divide")
            dims[path] = dim
        for rank in range(tp):
            local = copy.deepcopy(model)
            for path, dim in dims.items():
                parent, _, name = path.rpartition(".")
                layer = local.get_submodule(path)
                assert isinstance(layer, torch.nn.Linear)
                setattr(local.get_submodule(parent), name, _Part(layer, rank, tp, dim))
            self.models.append(local)
        self._whole = dict(model.named_parameters(remove_duplicate=False))
        self._parts = [dict(local.named_parameters(remove_duplicate=False)) for local in self.models]
        self._dims = {f"{path}.{name}": dim for path, dim in dims.items() for name in (("weight", "bias")[: 2 - dim])}
        self._versions = {name: x._version for name, x in self._whole.items()}

    def follow(self) -> None:
        """Bring the parameters of the whole model that have changed to the ranks."""
        for name, x in self._whole.items():
            if x._version != self._versions[name]:
                self._versions[name] = x._version
                for rank, parts in enumerate(self._parts):
                    dim = self._dims.get(name)
                    own = x.detach() if dim is None else x.detach().chunk(len(self._parts), dim)[rank]
                    parts[name].data.copy_(own)

    def collect(self, gradients: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        """Let the gradients of all ranks go to the whole model, when autograd has one for the first rank."""

        def hook(name: str, part: torch.nn.Parameter) -> None:
            whole, dim = self._whole[name], self._dims.get(name)
            own = gradients(part)
            assert part.grad is not None
            found = part.grad if dim is None else torch.cat(list(own), dim)
            whole.grad = found if whole.grad is None else whole.grad + found
            part.grad = None

        for name, part in {id(part): (name, part) for name, part in self._parts[0].items()}.values():
            if part.requires_grad:
                part.register_post_accumulate_grad_hook(partial(hook, name))


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
