"""Linear layers whose weights are distributed over the ranks of a tensor-parallel group and the PEs of each device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench._dtypes import DType, float16
from kernbench.dtensor._api import DTensor, created
from kernbench.dtensor._device_mesh import DeviceMesh
from kernbench.dtensor._ops import matmul
from kernbench.dtensor._placements import (
    COLUMN_PARALLEL,
    ROW_PARALLEL,
    LinearStyle,
    Partial,
    Placement,
    Replicate,
    Shard,
)
from kernbench.errors import ArgumentError
from kernbench.ops.matmul import BY_COLUMNS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._process_group import ProcessGroup
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import parallel_state
from kernbench.tp._mappings import moved, rank_share

Init = Callable[["Tensor"], object]
Output = tuple["Tensor", "Tensor | None"]


@dataclass(frozen=True, slots=True)
class ModelParallelConfig:
    """Settings shared by layers.

    Attributes
    ----------
    params_dtype : DType
        Type of weights and biases.
    sequence_parallel : bool
        Whether activations outside of the layers are split along the sequence.
    """

    params_dtype: DType = float16
    sequence_parallel: bool = False


class _ParallelLinear:
    """A linear layer with a `style` of distribution, and the placements of `forward`'s input and output."""

    def __init__(
        self, style: LinearStyle, given: Placement, returned: Placement, sizes: tuple[int, int],
        config: ModelParallelConfig | None, init_method: Init | None, has_bias: bool, skip_bias_add: bool,
        group: ProcessGroup | None, torch: RuntimeContext | None, dp: DPPolicy,
    ) -> None:  # fmt: skip
        self.is_light = config is None
        self.config = config or ModelParallelConfig()
        self.skip_bias_add = skip_bias_add
        self.mesh = _mesh(torch, group)
        self._style, self._given, self._returned, self._sizes, self._dp = style, given, returned, sizes, dp
        size, dim = ("output_size", "input_size")[style.w.dim], style.w.dim
        rank_share(sizes[dim], self.mesh, f"{type(self).__name__}: {size}")
        self._place(  # the whole weight is drawn, so that it does not depend on the number of ranks
            lambda: np.random.default_rng(sizes).standard_normal(sizes, np.float32) / np.sqrt(sizes[1]),
            np.zeros(sizes[0], np.float32) if has_bias else None,
        )
        if init_method is not None:
            init_method(self.weight)

    @property
    def weight(self) -> Tensor:
        """The rank's part, (outputs, inputs)."""
        return self._stored.to_local().t()

    def load(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        """Set the rank's part of weight and bias from those of the whole layer, in no simulated time."""
        for name, values, shape in (("weight", weight, self._sizes), ("bias", bias, self._sizes[:1])):
            if values is not None and values.shape != shape:
                raise ArgumentError(f"{type(self).__name__}: {name} of shape {values.shape}; expected {shape}")
        self._place(lambda: weight, bias)

    def _place(self, weight: Callable[[], np.ndarray], bias: np.ndarray | None) -> None:
        made: dict[str, Any] = {"device_mesh": self.mesh, "dtype": self.config.params_dtype}
        sizes, style = self._sizes, self._style
        # Stored transposed, so that PEs stream their outputs.
        turned = [Shard(1 - style.w.dim)]
        self._stored = created(sizes[::-1], lambda _: weight().T, placements=turned, dp=self._dp, **made)
        self.bias: Tensor | None = None
        if bias is not None:  # a copy on each PE
            self.bias = created(sizes[:1], lambda _: bias, placements=[style.b], dp=DPPolicy(), **made).to_local()

    def forward(self, input_: Tensor) -> Tensor | Output:
        """Return the output, and the bias if it is not added (else None); a light layer returns the output alone."""
        style, mesh = self._style, self.mesh
        x = DTensor.from_local(moved(input_, mesh, self._given, style.x), mesh, [style.x])
        adds = not self.skip_bias_add and (style.y != Partial() or mesh.get_local_rank() == 0)
        if x.shape[-1] != self._sizes[1]:
            raise ArgumentError(f"x has {x.shape[-1]} columns, the weight takes {self._sizes[1]}")
        y = matmul(x, self._stored, self.bias if adds else None)
        out = moved(y.to_local(), mesh, style.y, self._returned)
        return out if self.is_light else (out, self.bias if self.skip_bias_add else None)

    __call__ = forward


class ColumnParallelLinear(_ParallelLinear):
    """y = x w^T (+ b) with the outputs, rows of w, distributed over the ranks: a DTensor w with `Shard(0)`.

    Parameters
    ----------
    input_size, output_size : int
        Sizes of the whole layer.
    config : ModelParallelConfig, optional
        Without it the layer is light: `forward` returns the tensor alone.
    init_method : callable, optional
        Called with this rank's part of the weight; by default random numbers, independent of the number of ranks.
    bias : bool
        Whether there is a bias, initially zero.
    gather_output : bool
        Whether the outputs of all ranks are gathered on each.
    skip_bias_add : bool
        Whether the bias is returned instead of added.
    tp_group : ProcessGroup, optional
        The ranks; by default the tensor group of `parallel_state`, else the world, else this rank alone.
    torch : RuntimeContext, optional
        The machine; by default that of `parallel_state`.
    dp : DPPolicy
        Placement of this rank's part of the weight (inputs x outputs in memory): by columns over all PEs, it is read
        in place; from other placements the first product may move it.

    Attributes
    ----------
    weight : Tensor
        This rank's part, (outputs / ranks, inputs).
    bias : Tensor or None
        This rank's part, (outputs / ranks,); each PE has a copy.

    Raises
    ------
    ArgumentError
        If the ranks do not divide `output_size`.

    Examples
    --------
    >>> import kernbench as kb
    >>> with kb.session("preset:small") as torch:
    ...     layer = kb.tp.ColumnParallelLinear(16, 64, torch=torch)
    ...     y = layer(torch.empty(8, 1, 16, dtype=torch.float16, device="ahbm"))
    >>> tuple(layer.weight.shape), tuple(y.shape)
    ((64, 16), (8, 1, 64))
    """

    def __init__(
        self, input_size: int, output_size: int, *, config: ModelParallelConfig | None = None,
        init_method: Init | None = None, bias: bool = True, gather_output: bool = False, skip_bias_add: bool = False,
        tp_group: ProcessGroup | None = None, torch: RuntimeContext | None = None, dp: DPPolicy = BY_COLUMNS,
    ) -> None:  # fmt: skip
        self.gather_output = gather_output
        given = Shard(0) if config is not None and config.sequence_parallel else Replicate()
        returned = Replicate() if gather_output else Shard(-1)
        super().__init__(
            COLUMN_PARALLEL, given, returned, (output_size, input_size), config, init_method, bias, skip_bias_add,
            tp_group, torch, dp,
        )  # fmt: skip


class RowParallelLinear(_ParallelLinear):
    """y = x w^T (+ b) with the inputs, columns of w, distributed over the ranks, whose results are summed.

    A DTensor w with `Shard(1)`. Parameters are those of `ColumnParallelLinear`, except `input_is_parallel`:
    whether the input is this rank's part already; else the part is taken. The first rank adds the bias, before
    the sum.

    Attributes
    ----------
    weight : Tensor
        This rank's part, (outputs, inputs / ranks).
    bias : Tensor or None
        The whole bias, (outputs,), on every rank.

    Raises
    ------
    ArgumentError
        If the ranks do not divide `input_size`.

    Examples
    --------
    >>> import kernbench as kb
    >>> with kb.session("preset:small") as torch:
    ...     layer = kb.tp.RowParallelLinear(64, 16, torch=torch)
    ...     y = layer(torch.empty(8, 1, 64, dtype=torch.float16, device="ahbm"))
    >>> tuple(layer.weight.shape), tuple(y.shape)
    ((16, 64), (8, 1, 16))
    """

    def __init__(
        self, input_size: int, output_size: int, *, config: ModelParallelConfig | None = None,
        init_method: Init | None = None, bias: bool = True, input_is_parallel: bool = True, skip_bias_add: bool = False,
        tp_group: ProcessGroup | None = None, torch: RuntimeContext | None = None, dp: DPPolicy = BY_COLUMNS,
    ) -> None:  # fmt: skip
        self.input_is_parallel = input_is_parallel
        given = Shard(-1) if input_is_parallel else Replicate()
        returned = Shard(0) if config is not None and config.sequence_parallel else Replicate()
        super().__init__(
            ROW_PARALLEL, given, returned, (output_size, input_size), config, init_method, bias, skip_bias_add,
            tp_group, torch, dp,
        )  # fmt: skip


def _mesh(torch: RuntimeContext | None, group: ProcessGroup | None) -> DeviceMesh:
    """Return the ranks of a layer: `group`, the tensor group, the world, or this rank alone."""
    if torch is None or parallel_state.model_parallel_is_initialized():
        state = parallel_state.state()  # raises with a remedy
        torch, group = torch or state.torch, group or state.group("tp")
    elif group is None and torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
    return DeviceMesh.of_group(group, torch)
