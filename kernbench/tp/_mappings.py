"""Between the regions of tensor parallelism, forward only, in Megatron-LM's words.

Tensors are [sequence, batch, hidden] on a device. With one rank each mapping returns its input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.dtensor._redistribute import cut, empty, gathered, on_device
from kernbench.errors import ArgumentError
from kernbench.tp import parallel_state

if TYPE_CHECKING:
    from kernbench.runtime_api._process_group import ProcessGroup
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.runtime_api.tensor import Tensor


class Region:
    """The ranks of a tensor-parallel group, as the calling one sees them."""

    def __init__(self, torch: RuntimeContext, group: ProcessGroup | None) -> None:
        self.torch, self.group = torch, group
        self.size = 1 if group is None else group.size()
        self.rank = 0 if group is None else group.rank()

    @classmethod
    def current(cls, group: ProcessGroup | None = None) -> Region:
        """Return the region of `group`, or of the calling rank's tensor group."""
        state = parallel_state.state()
        return cls(state.torch, group or state.group("tp"))

    def share(self, n: int, what: str) -> int:
        """Return an even share of `n`; refuse what does not divide."""
        if n % self.size:
            raise ArgumentError(f"{what} = {n} is not divisible by the tensor model parallel size {self.size}")
        return n // self.size

    def reduce(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, in place."""
        if self.size > 1:
            self.torch.distributed.all_reduce(x, group=self.group)
        return x

    def scatter(self, x: Tensor, dim: int) -> Tensor:
        """Return this rank's part along `dim`."""
        if self.size == 1:
            return x
        part = self.share(x.shape[dim], f"size of dim {dim}")
        return cut(x, dim, self.rank * part, part)

    def gather(self, x: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks, one after the other along `dim`."""
        if self.size == 1:
            return x
        own = on_device(x)
        if dim == 0:
            out = empty(own, (own.shape[0] * self.size, *own.shape[1:]))
            self.torch.distributed.all_gather_into_tensor(out, own, group=self.group)
            return out
        assert self.group is not None, "several ranks are a group"
        return gathered(own, dim, [own.shape[dim]] * self.size, self.torch.distributed, self.group)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Return this rank's part along dim 0 of the sum over the ranks."""
        if self.size == 1:
            return x
        own = on_device(x)
        out = empty(own, (self.share(own.shape[0], "sequence length"), *own.shape[1:]))
        self.torch.distributed.reduce_scatter_tensor(out, own, group=self.group)
        return out


def copy_to_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the input: going forward there is nothing to do."""
    Region.current(group)
    return input_


def reduce_from_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the sum of all ranks' inputs: an all-reduce in place."""
    return Region.current(group).reduce(input_)


def scatter_to_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the last dim."""
    return Region.current(group).scatter(input_, input_.dim() - 1)


def gather_from_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the parts of all ranks, joined in the last dim."""
    return Region.current(group).gather(input_, input_.dim() - 1)


def scatter_to_sequence_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the sequence, dim 0."""
    return Region.current(group).scatter(input_, 0)


def gather_from_sequence_parallel_region(
    input_: Tensor, tensor_parallel_output_grad: bool = True, group: ProcessGroup | None = None
) -> Tensor:
    """Return the parts of the sequence of all ranks, joined; the second argument is of Megatron's backward pass."""
    return Region.current(group).gather(input_, 0)


def reduce_scatter_to_sequence_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the sequence of the sum of all ranks' inputs."""
    return Region.current(group).reduce_scatter(input_)
