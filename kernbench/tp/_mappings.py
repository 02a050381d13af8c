"""Megatron-LM's mappings between regions of tensor parallelism, forward only: redistributions over one axis.

Tensors are [sequence, batch, hidden] on a device. With one rank each mapping returns its input.
"""

from __future__ import annotations

from kernbench.dtensor._device_mesh import DeviceMesh
from kernbench.dtensor._placements import Partial, Placement, Replicate, Shard, normalized
from kernbench.dtensor._redistribute import redistribute
from kernbench.errors import ArgumentError
from kernbench.runtime_api._process_group import ProcessGroup
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp import parallel_state


def rank_share(n: int, mesh: DeviceMesh, what: str) -> int:
    if n % mesh.size():
        raise ArgumentError(
            f"{what} = {n} is not divisible by the tensor model parallel size {mesh.size()}; pad it, or use another "
            "number of ranks"
        )
    return n // mesh.size()


def moved(x: Tensor, mesh: DeviceMesh, source: Placement, target: Placement) -> Tensor:
    """Redistribute a rank's part of a tensor; the sum of a `Partial` is left in `x`, too."""
    if mesh.size() == 1:
        return x
    now, then = (normalized([placement], 1, x.dim()) for placement in (source, target))
    shape = [*x.shape]
    for placement in now:
        if isinstance(placement, Shard):
            shape[placement.dim] *= mesh.size()
    for placement in then:
        if isinstance(placement, Shard):
            rank_share(shape[placement.dim], mesh, f"size of dim {placement.dim}")
    return redistribute(x, shape, mesh, now, then, in_place=True)


def _moved(x: Tensor, group: ProcessGroup | None, source: Placement, target: Placement) -> Tensor:
    state = parallel_state.state()
    return moved(x, DeviceMesh.of_group(group or state.group("tp"), state.torch), source, target)


def copy_to_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    return _moved(input_, group, Replicate(), Replicate())


def reduce_from_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the sum of all ranks' inputs: an all-reduce in place."""
    return _moved(input_, group, Partial(), Replicate())


def scatter_to_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the last dim."""
    return _moved(input_, group, Replicate(), Shard(-1))


def gather_from_tensor_model_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return the parts of all ranks, concatenated along the last dim."""
    return _moved(input_, group, Shard(-1), Replicate())


def scatter_to_sequence_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the sequence, dim 0."""
    return _moved(input_, group, Replicate(), Shard(0))


def gather_from_sequence_parallel_region(
    input_: Tensor, tensor_parallel_output_grad: bool = True, group: ProcessGroup | None = None
) -> Tensor:
    """Return all ranks' parts of the sequence, concatenated; the second argument is for Megatron's backward pass."""
    return _moved(input_, group, Shard(0), Replicate())


def reduce_scatter_to_sequence_parallel_region(input_: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """Return this rank's part of the sequence, summed over all ranks' inputs."""
    return _moved(input_, group, Partial(), Shard(0))
