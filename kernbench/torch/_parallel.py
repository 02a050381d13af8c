"""Tensor parallelism: a model for each rank, with its parts of the weights; row-parallel results are summed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from kernbench._registry import hint
from kernbench.dtensor._placements import (
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    LinearStyle,
    Partial,
    Placement,
    Replicate,
    Shard,
    box,
)
from kernbench.errors import ArgumentError, StateError

# The names of this package, of DTensor and of transformers.
EXPERTS, EXPERT_PARTS = "experts", "moe_tp_experts"
STYLES: dict[str, LinearStyle | str] = {
    **dict.fromkeys(("columns", "colwise", "ColwiseParallel"), COLUMN_PARALLEL),
    **dict.fromkeys(("rows", "rowwise", "RowwiseParallel"), ROW_PARALLEL),
    **{name: name for name in (EXPERTS, EXPERT_PARTS)},
}


class _Packed(Shard):
    """The parts of each of two matrices, one after the other along `dim`: gate and up."""


_OF_EXPERTS: dict[str, dict[str, Shard]] = {
    EXPERTS: {"gate_up_proj": Shard(0), "down_proj": Shard(0)},
    EXPERT_PARTS: {"gate_up_proj": _Packed(1), "down_proj": Shard(2)},
}


@torch.library.custom_op("kernbench::experts", mutates_args=())
def _experts(
    x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, ranks: int
) -> torch.Tensor:
    """Sum the experts `index` of each token by weights; each of `ranks` has some of them."""
    raise StateError("experts of a plan run on a simulated machine only")


@_experts.register_fake
def _(x: Any, index: Any, weights: Any, gate_up: Any, down: Any, ranks: int) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("kernbench::all_reduce", mutates_args=())
def _all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Sum over the ranks; outside a machine there is one."""
    return x.clone()


@_all_reduce.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_all_reduce.register_autograd(lambda _, grad: grad)  # later layers are identical on all ranks


class _Shared(torch.autograd.Function):
    """The input of a column-parallel layer: identical on every rank, so its gradient is summed over the ranks."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return _all_reduce(grad)


class _Part(torch.nn.Module):
    def __init__(self, layer: torch.nn.Linear, rank: int, tp: int, style: LinearStyle) -> None:
        super().__init__()
        self.is_summed = style.y == Partial()
        for name, placement in (("weight", style.w), ("bias", style.b)):
            x = getattr(layer, name)
            own = None if x is None else torch.nn.Parameter(_part(x, placement, rank, tp).clone(), x.requires_grad)
            self.register_parameter(name, own)
        self.out_features, self.in_features = self.weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of the output, or the sum of the ranks' products, plus the bias."""
        if not self.is_summed:
            return functional.linear(_Shared.apply(x), self.weight, self.bias)
        y: torch.Tensor = _all_reduce(functional.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class _Experts(torch.nn.Module):
    """A rank's experts, or its parts of all; the module of transformers that it replaces has the same arguments."""

    def __init__(self, layer: torch.nn.Module, rank: int, tp: int, style: str) -> None:
        super().__init__()
        self.ranks, self.is_summed = (tp, False) if style == EXPERTS else (1, tp > 1)
        for name, placement in _OF_EXPERTS[style].items():
            x = getattr(layer, name)
            self.register_parameter(name, torch.nn.Parameter(_part(x, placement, rank, tp).clone(), x.requires_grad))

    def forward(self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _experts(x, index, weights, self.gate_up_proj, self.down_proj, self.ranks)
        return _all_reduce(found) if self.is_summed else found


def _part(x: torch.Tensor, placement: Placement, rank: int, tp: int) -> torch.Tensor:
    if isinstance(placement, _Packed):
        dim = placement.dim
        return torch.cat([matrix.chunk(tp, dim)[rank] for matrix in x.detach().chunk(2, dim)], dim)
    return x.detach()[box(x.shape, (tp,), (rank,), [placement])]


class Ranks:
    """The model of each rank; parameters are copied from the whole model, and gradients are added to it.

    `plan` maps module paths, in which `*` matches any part, to "columns" or "rows" of a linear layer, or to a style of
    DTensor or transformers. Raises ArgumentError for unmatched paths, unknown styles, and sizes not divisible by `tp`.
    """

    def __init__(self, model: torch.nn.Module, tp: int, plan: Mapping[str, Any]) -> None:
        self.models = [copy.deepcopy(model) for _ in range(tp)]
        self._placements: dict[str, Placement] = {}
        for path, style in _styles(model, plan).items():
            layer = model.get_submodule(path)
            parent, _, name = path.rpartition(".")
            if isinstance(style, str):
                placements = _OF_EXPERTS[style]
                self._placements |= {f"{path}.{of}": placement for of, placement in placements.items()}
                count = layer.down_proj.shape[placements["down_proj"].dim]
                if count % tp:
                    what = "experts" if style == EXPERTS else "columns in each expert"
                    raise ArgumentError(f"plan: {path} has {count} {what}, which tp = {tp} does not divide")
                if type(layer.act_fn).__name__ not in ("SiLU", "SiLUActivation") or hasattr(layer, "gate_up_proj_bias"):
                    raise ArgumentError(f"plan: {path}: experts have SiLU and no bias here; leave the path out")
                for rank, local in enumerate(self.models):
                    setattr(local.get_submodule(parent), name, _Experts(layer, rank, tp, style))
                continue
            assert isinstance(layer, torch.nn.Linear)
            dim = style.w.dim
            if layer.weight.shape[dim] % tp:
                what = f"{path} has {layer.weight.shape[dim]} {('columns', 'rows')[dim]}"
                raise ArgumentError(f"plan: {what}, which tp = {tp} does not divide")
            self._placements |= {f"{path}.weight": style.w, f"{path}.bias": style.b}
            for rank, local in enumerate(self.models):
                setattr(local.get_submodule(parent), name, _Part(layer, rank, tp, style))
        self._whole = dict(model.named_parameters(remove_duplicate=False))
        self._parts = [dict(local.named_parameters(remove_duplicate=False)) for local in self.models]
        self._versions = {name: x._version for name, x in self._whole.items()}

    def follow(self) -> None:
        for name, x in self._whole.items():
            if x._version != self._versions[name]:
                self._versions[name] = x._version
                for rank, parts in enumerate(self._parts):
                    placement = self._placements.get(name, Replicate())
                    parts[name].data.copy_(_part(x, placement, rank, len(self._parts)))

    def collect(self, gradients: Callable[[torch.Tensor], Sequence[torch.Tensor]]) -> None:
        """Add the gradients of all ranks to the whole model when autograd has accumulated those of the first rank."""

        def hook(name: str, part: torch.nn.Parameter) -> None:
            whole, placement = self._whole[name], self._placements.get(name)
            own = gradients(part)
            assert part.grad is not None
            found = torch.cat(list(own), placement.dim) if isinstance(placement, Shard) else part.grad
            whole.grad = found if whole.grad is None else whole.grad + found
            part.grad = None

        for name, part in {id(part): (name, part) for name, part in self._parts[0].items()}.values():
            if part.requires_grad:
                part.register_post_accumulate_grad_hook(partial(hook, name))


def _styles(model: torch.nn.Module, plan: Mapping[str, Any]) -> dict[str, LinearStyle | str]:
    """Return the style of each layer of the plan; of experts, its name."""
    modules = dict(model.named_modules())
    linear = [name for name, module in modules.items() if isinstance(module, torch.nn.Linear)]
    experts = [name for name, module in modules.items() if all(hasattr(module, x) for x in _OF_EXPERTS[EXPERTS])]
    found: dict[str, LinearStyle | str] = {}
    for pattern, given in plan.items():
        style = given if isinstance(given, str) else type(given).__name__
        if style not in STYLES:
            raise ArgumentError(
                f"plan: {pattern}: {style!r} is unknown; {hint(style, ('columns', 'rows', *_OF_EXPERTS))}"
            )
        known, what = (experts, "layer of experts") if style in _OF_EXPERTS else (linear, "linear layer")
        paths = [name for name in known if fnmatchcase(f".{name}", pattern) or fnmatchcase(f".{name}", f"*.{pattern}")]
        if not paths:
            raise ArgumentError(f"plan: no {what} is {pattern!r}; {hint(pattern, known)}")
        found |= dict.fromkeys(paths, STYLES[style])
    return found
