"""DTensor: a tensor of which each rank of a device mesh holds a part on its device; torch's names, forward only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kernbench._dtypes import DType, float32
from kernbench.dtensor import _ops as ops
from kernbench.dtensor._device_mesh import DeviceMesh
from kernbench.dtensor._placements import Partial, Placement, Replicate, Shard, box, local_part, normalized
from kernbench.dtensor._redistribute import allocate as empty_part
from kernbench.dtensor._redistribute import on_device, padded_parts, redistribute, trimmed
from kernbench.errors import PlacementError
from kernbench.kernels.partition import chunk
from kernbench.ops.matmul import BY_ROWS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Size, Tensor

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


class DTensor:
    """A tensor distributed over the ranks of a mesh; see `from_local`, `distribute_tensor` and the creation functions.

    Attributes
    ----------
    device_mesh : DeviceMesh
    placements : tuple of Placement
        One for each axis of the mesh.
    shape : Size
        Shape of the whole tensor.
    dtype : DType

    Examples
    --------
    >>> import kernbench as kb
    >>> with kb.session("preset:small", data=True) as torch:
    ...     torch.distributed.init_process_group("ahbm", world_size=1)
    ...     mesh = DeviceMesh("ahbm", [0], torch=torch)
    ...     x, w = ones(2, 3, 4, device_mesh=mesh), ones(4, 5, device_mesh=mesh, placements=[Shard(1)])
    ...     y = x @ w
    ...     y.placements, tuple(y.shape), y.full_tensor().numpy().sum()
    ((Shard(dim=2),), (2, 3, 5), np.float32(120.0))
    """

    def __init__(self, local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> None:
        self._local, self.device_mesh = local, mesh
        self.shape, self.dtype = Size(shape), local.dtype
        self.placements = normalized(placements, mesh.ndim, len(self.shape))

    @classmethod
    def from_local(
        cls, local_tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement], *,
        shape: Sequence[int] | None = None,
    ) -> Self:  # fmt: skip
        """Return the DTensor whose part on this rank is `local_tensor`; without `shape`, parts must be equal.

        Parameters
        ----------
        local_tensor : Tensor
            On the rank's device; results of operations on the DTensor are placed by its policy, so that
            should be the same on every rank, whatever the sizes of their parts.
        device_mesh : DeviceMesh
        placements : sequence of Placement
        shape : sequence of int, optional
            Shape of the whole tensor.
        """
        on_device(local_tensor)
        found = normalized(placements, device_mesh.ndim, local_tensor.dim())
        whole = [*local_tensor.shape]
        for ranks, placement in zip(device_mesh.shape, found, strict=True):
            if isinstance(placement, Shard):
                whole[placement.dim] *= ranks
        if shape is not None:
            whole = [*shape]
            part, _ = local_part(whole, device_mesh.shape, device_mesh.coordinate(), found)
            if part != tuple(local_tensor.shape):
                raise PlacementError(
                    f"from_local: of shape {tuple(whole)} this rank holds {part}, but the tensor is "
                    f"{tuple(local_tensor.shape)}"
                )
        return cls(local_tensor, device_mesh, found, whole)

    def to_local(self) -> Tensor:
        return self._local

    def full_tensor(self) -> Tensor:
        """Gather the whole tensor on this rank's device; every rank of the mesh must call it."""
        return self.redistribute(placements=[Replicate()] * self.device_mesh.ndim).to_local()

    def redistribute(
        self, device_mesh: DeviceMesh | None = None, placements: Sequence[Placement] | None = None
    ) -> DTensor:
        """Return the tensor under other placements, by one collective for each axis that changes.

        Parameters
        ----------
        device_mesh : DeviceMesh, optional
            Must be the tensor's mesh.
        placements : sequence of Placement, optional
            By default the same.
        """
        if device_mesh is not None and device_mesh != self.device_mesh:
            raise PlacementError(
                f"redistribute: from {self.device_mesh} to {device_mesh}; the mesh has to stay the same"
            )
        target = self.placements if placements is None else normalized(placements, self.device_mesh.ndim, self.dim())
        local = redistribute(self._local, self.shape, self.device_mesh, self.placements, target)
        return DTensor(local, self.device_mesh, target, self.shape)

    def dim(self) -> int:
        return len(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Size | int:
        return self.shape if dim is None else self.shape[dim]

    def __matmul__(self, other: DTensor) -> DTensor:
        """Multiply (..., k) by a matrix (k, n); the result (..., n) is split by rows over the PEs of each rank.

        Operands are redistributed such that the fewest bytes move. Raises a PlacementError if the shapes do not match.
        """
        return ops.matmul(self, other)

    def __add__(self, other: DTensor | float) -> DTensor:
        """Add element by element; a `Partial` operand is reduced before a number is added."""
        return ops.add(self, other)

    __radd__ = __add__

    def __mul__(self, other: DTensor | float) -> DTensor:
        """Multiply element by element; a number leaves the placements unchanged."""
        return ops.mul(self, other)

    __rmul__ = __mul__

    def __iadd__(self, other: DTensor | float) -> Self:
        """Add in place; raise if that would change the placements."""
        return self._become(self + other)

    def __imul__(self, other: DTensor | float) -> Self:
        """Multiply in place; raise if that would change the placements."""
        return self._become(self * other)

    def _become(self, result: DTensor) -> Self:
        if result.placements != self.placements:
            raise PlacementError(
                f"an operator in place would change the placements from {self.placements} to {result.placements}; "
                "redistribute an operand, or bind the result to a name: x = x + y"
            )
        self._local.copy_(result.to_local())
        return self

    def __eq__(self, other: object) -> bool:
        # torch compares element by element; Python's default would compare the objects.
        if isinstance(other, (DTensor, Tensor, Real)):
            raise TypeError("tensors have no comparison here: compare their values, x.full_tensor().numpy() == ...")
        return NotImplemented

    __hash__ = object.__hash__

    def relu(self) -> DTensor:
        return ops.unary("relu", self)

    def silu(self) -> DTensor:
        return ops.unary("silu", self)

    def gelu(self) -> DTensor:
        """Return gelu(x) in its tanh form."""
        return ops.unary("gelu", self)

    def __repr__(self) -> str:
        return (
            f"DTensor(shape={tuple(self.shape)}, dtype={self.dtype}, device_mesh={self.device_mesh}, "
            f"placements={self.placements})"
        )


def distribute_tensor(
    tensor: Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None, *,
    src_data_rank: int | None = 0, dp: DPPolicy = BY_ROWS,
) -> DTensor:  # fmt: skip
    """Distribute a tensor, which must be identical on every rank, over a mesh.

    Parameters
    ----------
    tensor : Tensor
        The whole tensor, on the host or on the rank's device.
    device_mesh : DeviceMesh
    placements : sequence of Placement, optional
        By default replicated.
    src_data_rank : int or None
        0: the values are those of the first rank along each axis: a scatter for a Shard, a broadcast for a Replicate.
        None: each rank takes its part of its own tensor.
    dp : DPPolicy
        Placement of a tensor from the host.
    """
    found = normalized(placements or [Replicate()] * device_mesh.ndim, device_mesh.ndim, tensor.dim())
    if src_data_rank not in (0, None):
        raise PlacementError(f"distribute_tensor: src_data_rank = {src_data_rank}; expected 0 or None")
    local = tensor if isinstance(tensor, DeviceTensor) else tensor.to("ahbm", dp=dp)
    if any(isinstance(placement, Partial) for placement in found):
        raise PlacementError(f"distribute_tensor: {Partial()} is made by operations; expected Shard or Replicate")
    if src_data_rank is None or device_mesh.size() == 1:
        whole = DTensor(local, device_mesh, [Replicate()] * device_mesh.ndim, tensor.shape)
        local = whole.redistribute(placements=found).to_local()
        is_cut = any(isinstance(placement, Shard) for placement in found)
        return DTensor(local.clone() if is_cut and local is tensor else local, device_mesh, found, tensor.shape)
    for axis, placement in enumerate(found):
        group = device_mesh.get_group(axis)
        n, rank = group.size(), group.rank()
        if n == 1:
            continue
        if isinstance(placement, Shard):
            dim, size = placement.dim, chunk(local.shape[placement.dim], n, rank)[1]
            given = padded_parts(local, dim, n) if rank == 0 else None
            shape = [*local.shape]
            shape[dim] = chunk(shape[dim], n, 0)[1]
            out = empty_part(on_device(local), shape)
            device_mesh.torch.distributed.scatter(out, given, group=group, group_src=0)
            local = trimmed(out, dim, size)
        else:
            local = local.clone() if local is tensor else local
            device_mesh.torch.distributed.broadcast(local, group=group, group_src=0)
    return DTensor(local, device_mesh, found, tensor.shape)


def zeros(*size: Any, **options: Any) -> DTensor:
    """Return zeros; keywords `device_mesh`, `placements`, `dtype`, `dp`."""
    return created(size, np.zeros, **options)


def ones(*size: Any, **options: Any) -> DTensor:
    """Return ones; keywords `device_mesh`, `placements`, `dtype`, `dp`."""
    return created(size, np.ones, **options)


def full(size: Sequence[int], fill_value: float, **options: Any) -> DTensor:
    return created((size,), lambda shape: np.full(shape, fill_value), **options)


def empty(*size: Any, **options: Any) -> DTensor:
    """Return a tensor with undefined values; keywords as for `zeros`."""
    return created(size, None, **options)


def rand(*size: Any, **options: Any) -> DTensor:
    """Return uniform random numbers in [0, 1), independent of the placements; keywords as for `zeros`."""
    return _drawn(size, np.random.Generator.random, **options)


def randn(*size: Any, **options: Any) -> DTensor:
    """Return standard normal random numbers, independent of the placements; keywords as for `zeros`."""
    return _drawn(size, np.random.Generator.standard_normal, **options)


def _drawn(size: Sequence[Any], draw: Callable[..., Any], *, device_mesh: DeviceMesh, **options: Any) -> DTensor:
    device_mesh.draws += 1  # equal on all ranks: each draws the whole tensor
    rng = np.random.default_rng([device_mesh.draws, *device_mesh.shape])
    return created(size, lambda shape: draw(rng, shape), device_mesh=device_mesh, **options)


def created(
    size: Sequence[Any], values: Callable[[tuple[int, ...]], np.ndarray] | None, *, device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None, dtype: DType = float32, dp: DPPolicy = BY_ROWS,
) -> DTensor:  # fmt: skip
    """Create a tensor of which each rank places its part of `values`, in no simulated time."""
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    found = normalized(placements or [Replicate()] * device_mesh.ndim, device_mesh.ndim, len(shape))
    part = box(shape, device_mesh.shape, device_mesh.coordinate(), found)
    torch: RuntimeContext = device_mesh.torch
    if values is None or not torch.engine.data:
        local = torch.empty(*(x.stop - x.start for x in part), dtype=dtype, device="ahbm", dp=dp)
    else:
        local = torch.tensor(values(shape)[part], dtype=dtype, device="ahbm", dp=dp)
    return DTensor(local, device_mesh, found, shape)
