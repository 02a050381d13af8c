"""Linear layers whose weights are spread over the ranks of a tensor-parallel group, and over the PEs of each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._dtypes import DType, float16
from kernbench.dtensor._redistribute import COLUMNS, on_device, places_of, policy_of
from kernbench.errors import ArgumentError
from kernbench.kernels.gemm import linear
from kernbench.kernels.partition import At
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.tp import parallel_state
from kernbench.tp._mappings import Region

if TYPE_CHECKING:
    from kernbench.runtime_api._process_group import ProcessGroup
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.tensor import Tensor

Init = Callable[["Tensor"], object]
Output = tuple["Tensor", "Tensor | None"]


@dataclass(frozen=True, slots=True)
class ModelParallelConfig:
    """Settings that layers share.

    Attributes
    ----------
    params_dtype : DType
        Of weights and biases.
    sequence_parallel : bool
        Whether activations outside of the layers are cut along the sequence.
    """

    params_dtype: DType = float16
    sequence_parallel: bool = False


class _ParallelLinear:
    """A rank's part of a linear layer: its weight, transposed in memory (inputs, outputs) and cut by columns."""

    SPREAD: int  # which dim of the weight the ranks share: 0, the outputs, or 1, the inputs

    def __init__(
        self, sizes: tuple[int, int], config: ModelParallelConfig | None, init_method: Init | None, has_bias: bool,
        skip_bias_add: bool, group: ProcessGroup | None, torch: RuntimeContext | None, dp: DPPolicy,
    ) -> None:  # fmt: skip
        self.is_light = config is None
        self.config = config or ModelParallelConfig()
        self.skip_bias_add = skip_bias_add
        self.region = _region(torch, group)
        size = ("output_size", "input_size")[self.SPREAD]
        part = self.region.share(sizes[self.SPREAD], f"{type(self).__name__}: {size}")
        own = slice(self.region.rank * part, (self.region.rank + 1) * part)
        self._own = (own, slice(None)) if self.SPREAD == 0 else (slice(None), own)
        self._sizes, self._dp = sizes, dp
        self._stored: Tensor
        self.bias: Tensor | None = None
        self._fill(has_bias)
        if init_method is not None:
            init_method(self.weight)

    @property
    def weight(self) -> Tensor:
        """The rank's part of the weight, (outputs, inputs)."""
        return self._stored.t()

    def load(self, weight: np.ndarray, bias: np.ndarray | None = None) -> None:
        """Take this rank's part of the whole layer's weight (outputs, inputs) and bias, in no simulated time."""
        for name, values, shape in (("weight", weight, self._sizes), ("bias", bias, self._sizes[:1])):
            if values is not None and values.shape != shape:
                raise ArgumentError(f"{type(self).__name__}: {name} of shape {values.shape}; expected {shape}")
        own_bias = None if bias is None else bias[self._own[0]]
        self._set(np.ascontiguousarray(weight[self._own].T), own_bias, self.region.torch.tensor)

    def _fill(self, has_bias: bool) -> None:
        """Draw the whole weight and take the own part (without data: only its memory); the bias is zeros."""
        outputs, inputs = (len(range(n)[part]) for n, part in zip(self._sizes, self._own, strict=True))
        if not self.region.torch.engine.data:
            self._set((inputs, outputs), outputs if has_bias else None, self.region.torch.empty)
            return
        drawn = np.random.default_rng(self._sizes).standard_normal(self._sizes, np.float32) / np.sqrt(self._sizes[1])
        self.load(drawn, np.zeros(self._sizes[0], np.float32) if has_bias else None)

    def _set(self, weight: Any, bias: Any, make: Callable[..., Tensor]) -> None:
        options = {"dtype": self.config.params_dtype, "device": "ahbm", "dp": self._dp}
        self._stored = make(weight, **options)
        self.bias = None if bias is None else make(bias, **options)

    def _returned(self, out: Tensor) -> Tensor | Output:
        return out if self.is_light else (out, self.bias if self.skip_bias_add else None)


class ColumnParallelLinear(_ParallelLinear):
    """y = x w^T (+ b) with the outputs, rows of w, spread over the ranks.

    Parameters
    ----------
    input_size, output_size : int
        Of the whole layer.
    config : ModelParallelConfig, optional
        Without it the layer is light: `forward` returns the tensor alone.
    init_method : callable, optional
        Gets this rank's part of the weight; by default random numbers that do not depend on the number of ranks.
    bias : bool
        Whether there is a bias; zeros at first.
    gather_output : bool
        Whether every rank gets the outputs of all.
    skip_bias_add : bool
        Whether the bias is returned instead of added.
    tp_group : ProcessGroup, optional
        The ranks; by default the tensor group of `parallel_state`, else the world, else this rank alone.
    torch : RuntimeContext, optional
        The machine; by default that of `parallel_state`.
    dp : DPPolicy
        Placement of the weight (inputs x outputs in memory): column_wise over all PEs, or on one PE.

    Attributes
    ----------
    weight : Tensor
        This rank's part, (outputs / ranks, inputs).
    bias : Tensor or None
        This rank's part.

    Raises
    ------
    ArgumentError
        If the ranks do not divide `output_size`.
    """

    SPREAD = 0

    def __init__(
        self, input_size: int, output_size: int, *, config: ModelParallelConfig | None = None,
        init_method: Init | None = None, bias: bool = True, gather_output: bool = False, skip_bias_add: bool = False,
        tp_group: ProcessGroup | None = None, torch: RuntimeContext | None = None, dp: DPPolicy = COLUMNS,
    ) -> None:  # fmt: skip
        self.gather_output = gather_output
        sizes = output_size, input_size
        super().__init__(sizes, config, init_method, bias, skip_bias_add, tp_group, torch, dp)

    def forward(self, input_: Tensor) -> Tensor | Output:
        """Return the output, and the bias if that is skipped (None else); of a light layer the output alone."""
        if self.config.sequence_parallel:
            input_ = self.region.gather(input_, 0)
        out: Tensor = product(input_, self._stored, None if self.skip_bias_add else self.bias)
        return self._returned(self.region.gather(out, out.dim() - 1) if self.gather_output else out)

    __call__ = forward


class RowParallelLinear(_ParallelLinear):
    """y = x w^T (+ b) with the inputs, columns of w, spread over the ranks, whose results are summed.

    Parameters are those of `ColumnParallelLinear`, but for one.

    Parameters
    ----------
    input_size, output_size : int
        Of the whole layer.
    config : ModelParallelConfig, optional
        Without it the layer is light: `forward` returns the tensor alone.
    init_method : callable, optional
        Gets this rank's part of the weight.
    bias : bool
        Whether there is a bias; the first rank adds it before the sum.
    input_is_parallel : bool
        Whether the input is this rank's part already; else it is cut out of the whole.
    skip_bias_add : bool
        Whether the bias is returned instead of added.
    tp_group : ProcessGroup, optional
        The ranks.
    torch : RuntimeContext, optional
        The machine.
    dp : DPPolicy
        Placement of the weight.

    Attributes
    ----------
    weight : Tensor
        This rank's part, (outputs, inputs / ranks).
    bias : Tensor or None
        The whole, on every rank.

    Raises
    ------
    ArgumentError
        If the ranks do not divide `input_size`.
    """

    SPREAD = 1

    def __init__(
        self, input_size: int, output_size: int, *, config: ModelParallelConfig | None = None,
        init_method: Init | None = None, bias: bool = True, input_is_parallel: bool = True, skip_bias_add: bool = False,
        tp_group: ProcessGroup | None = None, torch: RuntimeContext | None = None, dp: DPPolicy = COLUMNS,
    ) -> None:  # fmt: skip
        self.input_is_parallel = input_is_parallel
        sizes = output_size, input_size
        super().__init__(sizes, config, init_method, bias, skip_bias_add, tp_group, torch, dp)

    def forward(self, input_: Tensor) -> Tensor | Output:
        """Return the output, and the bias if that is skipped (None else); of a light layer the output alone."""
        if not self.input_is_parallel:
            input_ = self.region.scatter(input_, input_.dim() - 1)
        adds = self.region.rank == 0 and not self.skip_bias_add
        out: Tensor = product(input_, self._stored, self.bias if adds else None)
        return self._returned(
            self.region.reduce_scatter(out) if self.config.sequence_parallel else self.region.reduce(out)
        )

    __call__ = forward


def product(x: Tensor, w: Tensor, bias: Tensor | None, at: At | None = None, lead: Sequence[int] = ()) -> DeviceTensor:
    """Return x @ w (+ bias), its columns where those of `w` are."""
    given, weight = (on_device(x) if at is None else x), on_device(w)
    assert isinstance(given, DeviceTensor), "a layout of a tensor's elements goes with a device tensor"
    inner, n = weight.shape
    if at is None and given.shape[-1] != inner:
        raise ArgumentError(f"x has {given.shape[-1]} columns, the weight takes {inner}")
    rows = given.numel() // inner
    lead = given.shape[:-1] if at is None else lead
    out = weight._host.deploy((*lead, n), weight.dtype, weight.device, policy_of(weight), None)
    places, added = places_of(given) if at is None else at, None if bias is None else on_device(bias)
    weight._run(f"linear {rows}x{inner}x{n}", linear, given, weight, added, out, rows, inner, n, places)
    return out


def _region(torch: RuntimeContext | None, group: ProcessGroup | None) -> Region:
    """Return who shares a layer: `group`, the tensor group, the world, or one rank."""
    if parallel_state.model_parallel_is_initialized():
        return Region(torch or parallel_state.state().torch, group or parallel_state.get_tensor_model_parallel_group())
    if torch is None:
        return Region.current()  # which says what is missing
    if group is None and torch.distributed.is_initialized():
        group = torch.distributed.group.WORLD
    return Region(torch, group)
