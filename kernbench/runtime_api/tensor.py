"""`torch.Tensor`: common to tensors on the host and on a device."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from kernbench._dtypes import DType, as_dtype, float16, float32
from kernbench.errors import quote
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._layout import TensorShard, row_major, strided
from kernbench.runtime_api._memory import TensorHandle
from kernbench.runtime_api.types import Device, DeviceLike

if TYPE_CHECKING:
    from kernbench.compat import DeployedTensor
    from kernbench.ops.matmul import Choice, PlacementLike
    from kernbench.runtime_api._devices import HostProgram

__all__ = ["Size", "Tensor", "TensorHandle", "TensorShard", "deploy_tensor"]


class Size(tuple[int, ...]):
    """A shape, printed as in torch."""

    __slots__ = ()

    def numel(self) -> int:
        return prod(self)

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"


def _operator(name: str, *, reflected: bool = False, in_place: bool = False) -> Callable[[Tensor, Any], Any]:
    def apply(self: Tensor, other: Any) -> Any:
        if not isinstance(other, (Tensor, Real, np.generic)):
            return NotImplemented
        from kernbench.runtime_api import _operators as operators  # it is built on this module

        other = other.item() if isinstance(other, np.generic) else other
        if in_place:
            return operators.in_place(name, self, other)
        return operators.binary(name, other, self) if reflected else operators.binary(name, self, other)

    return apply


class Tensor(ABC):
    """An array on the host ("cpu") or in the memory of a device ("ahbm").

    Names and meaning are torch's. Reading values of a device tensor (`numpy`, `item`, `tolist`, `cpu`) waits for
    what was queued before it and costs simulated time; torch requires `cpu()` first, here `numpy()` is enough.
    Operators work on device tensors: each is a launch of a shipped kernel, and costs simulated time.

    Attributes
    ----------
    shape : Size
        Elements along each dim.
    dtype : DType
        Type of the elements.
    device : Device
        Where it is; of a device tensor always with an index.
    choice : Choice or None
        Of the result of a matrix product: the placement that was used, and why.
    """

    choice: Choice | None = None

    __array_priority__ = 1000  # as in torch: numpy's numbers leave `number * tensor` to __rmul__

    shape: Size
    dtype: DType
    device: Device
    _stride: tuple[int, ...]
    _host: HostProgram

    # -- shape

    def size(self, dim: int | None = None) -> Size | int:
        """Return the shape, or the elements along `dim`."""
        return self.shape if dim is None else self.shape[self._dim(dim)]

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Return the elements from one index to the next, along each dim or along `dim`."""
        return self._stride if dim is None else self._stride[self._dim(dim)]

    def dim(self) -> int:
        return len(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, copies not counted."""
        return self.numel() * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Return whether the elements are consecutive in row-major order."""
        steps = zip(self.shape, self._stride, row_major(self.shape), strict=True)
        return not self.numel() or all(own == needed for size, own, needed in steps if size > 1)

    @property
    def data(self) -> Tensor:
        """The same elements as another tensor."""
        return self._restrided(self.shape, self._stride)

    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """Return a view with another shape; one size may be -1."""
        sizes = self._sizes(shape)
        if not self.is_contiguous():
            raise RuntimeError(
                f"view: shape {tuple(self.shape)} with stride {self._stride} cannot be seen as {quote(sizes)} without "
                "a copy; use .reshape(...) instead"
            )
        return self._restrided(sizes, row_major(sizes))

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the tensor with another shape, as a view where no copy is needed."""
        return self.contiguous().view(*shape)

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two dims exchanged."""
        order = list(range(self.dim()))
        a, b = self._dim(dim0), self._dim(dim1)
        order[a], order[b] = order[b], order[a]
        return self._permuted(order)

    def t(self) -> Tensor:
        """Return a view of a matrix with its dims exchanged; tensors with fewer dims are unchanged."""
        if self.dim() > 2:
            raise RuntimeError(f"t() expects a tensor with <= 2 dims, but self is {self.dim()}D; use transpose")
        return self._permuted(reversed(range(self.dim())))

    @property
    def T(self) -> Tensor:
        """A view with all dims in reverse order."""
        return self._permuted(reversed(range(self.dim())))

    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """Return a view with the dims in another order."""
        order = [self._dim(d) for d in as_shape(dims)]
        if sorted(order) != list(range(self.dim())):
            raise RuntimeError(f"permute: dims = {quote(dims)} is not an order of the {self.dim()} dims")
        return self._permuted(order)

    def unsqueeze(self, dim: int) -> Tensor:
        """Return a view with a dim of size 1 inserted at `dim`."""
        n = self.dim() + 1
        if not -n <= dim < n:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
        at = dim % n
        step = self.shape[at] * self._stride[at] if at < self.dim() else 1
        return self._restrided((*self.shape[:at], 1, *self.shape[at:]), (*self._stride[:at], step, *self._stride[at:]))

    # -- operators

    __add__, __radd__, __iadd__ = _operator("add"), _operator("add", reflected=True), _operator("add", in_place=True)
    __sub__, __rsub__, __isub__ = _operator("sub"), _operator("sub", reflected=True), _operator("sub", in_place=True)
    __mul__, __rmul__, __imul__ = _operator("mul"), _operator("mul", reflected=True), _operator("mul", in_place=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", reflected=True)
    __itruediv__ = _operator("div", in_place=True)

    def __eq__(self, other: object) -> bool:
        # torch compares element by element; Python's default would compare the objects.
        if isinstance(other, (Tensor, Real, np.ndarray)):
            raise TypeError("tensors have no comparison here: compare their values, x.numpy() == ...")
        return NotImplemented

    __hash__ = object.__hash__

    def __matmul__(self, other: Any) -> Any:
        return self.matmul(other) if isinstance(other, Tensor) else NotImplemented

    def matmul(self, other: Tensor, *, placement: PlacementLike | None = None) -> Tensor:
        """Return torch's matrix product: of vectors, matrices, or batches of matrices, which broadcast."""
        from kernbench.runtime_api._operators import matmul

        return matmul(self, other, placement=placement)

    def softmax(self, dim: int, dtype: DType | str | None = None) -> Tensor:
        """Return softmax along `dim`, computed in f32."""
        from kernbench.runtime_api._operators import softmax

        return softmax(self, dim, dtype)

    def sum(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Tensor:
        """Return the sum over some dims (all); of integers in int64."""
        from kernbench.runtime_api._operators import total

        return total(self, dim, keepdim, dtype)

    def mean(
        self, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: DType | str | None = None
    ) -> Tensor:
        """Return the mean over some dims (all), of floats."""
        from kernbench.runtime_api._operators import mean

        return mean(self, dim, keepdim, dtype)

    def max(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Return the largest value; along `dim`, `values` and the `indices` of the first ones."""
        from kernbench.runtime_api._operators import largest

        return largest(self, dim, keepdim)

    def float(self) -> Tensor:
        return self.to(float32)

    def half(self) -> Tensor:
        return self.to(float16)

    @abstractmethod
    def __getitem__(self, key: Any) -> Tensor: ...

    @abstractmethod
    def contiguous(self) -> Tensor:
        """Return the tensor, or a copy of it in row-major order."""

    @abstractmethod
    def _restrided(self, shape: Sequence[int], stride: Sequence[int]) -> Tensor: ...

    # -- values

    @abstractmethod
    def numpy(self) -> np.ndarray:
        """Return the values as an array: shared with a host tensor, read from a device tensor."""

    @abstractmethod
    def data_ptr(self) -> int:
        """Return the address of the first element: virtual on a device."""

    @abstractmethod
    def clone(self) -> Tensor:
        """Return a copy with the same layout on the same device."""

    @abstractmethod
    def copy_(self, src: Tensor) -> Tensor:
        """Copy the values of `src`, broadcast to this shape and rounded to this type."""

    @abstractmethod
    def fill_(self, value: builtins.float) -> Tensor:
        """Set every element."""

    def zero_(self) -> Tensor:
        return self.fill_(0)

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def to(
        self, *args: DeviceLike | DType | Tensor, device: DeviceLike | None = None, dtype: DType | str | None = None,
        dp: DPPolicy | None = None, name: str | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the tensor on another device or in another type; itself if nothing changes.

        Parameters
        ----------
        *args : device, dtype or Tensor
            As in torch: `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(other)`.
        device, dtype : optional
            The same by name.
        dp : DPPolicy, optional
            Placement of the parts; implies the current device if none is given. Default: PE 0 of cube 0, or for a
            device tensor its present PEs.
        name : str, optional
            Name of the new tensor.
        """
        for arg in args:
            if isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, DType):
                dtype = arg
            elif isinstance(arg, str) and arg.partition(":")[0] not in ("ahbm", "cpu"):
                dtype = as_dtype(arg)
            else:
                device = arg
        if device is None and dp is not None:
            device = "ahbm"
        target = self.device if device is None else self._host.place(device)
        return self._to(target, self.dtype if dtype is None else as_dtype(dtype), dp, name)

    @abstractmethod
    def _to(self, device: Device, dtype: DType, dp: DPPolicy | None, name: str | None) -> Tensor: ...

    def item(self) -> bool | int | builtins.float:
        """Return the only value as a Python number."""
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        return self.numpy().reshape(-1).astype(self.dtype.carrier)[0].item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return self.numpy().astype(self.dtype.carrier).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array.astype(dtype) if dtype is not None else array.copy() if copy else array

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> builtins.float:
        return builtins.float(self.item())

    def _dim(self, dim: int) -> int:
        n = max(self.dim(), 1)
        if not -n <= dim < n:
            raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
        return dim % n

    def _permuted(self, order: Iterator[int] | Sequence[int]) -> Tensor:
        dims = list(order)
        return self._restrided([self.shape[d] for d in dims], [self._stride[d] for d in dims])

    def _sizes(self, shape: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
        sizes = list(as_shape(shape))
        known = prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and known and self.numel() % known == 0:
            sizes[sizes.index(-1)] = self.numel() // known
        if prod(sizes) != self.numel() or min(sizes, default=0) < 0:
            raise RuntimeError(f"shape {quote(sizes)} is invalid for input of size {self.numel()}")
        return tuple(sizes)


class _Session(Protocol):
    @property
    def empty(self) -> Callable[..., Tensor]: ...


@overload
def deploy_tensor(
    context: _Session, shape: Sequence[int], dtype: DType | str, *, dp: DPPolicy, device: DeviceLike = "ahbm",
    name: str | None = None,
) -> Tensor: ...  # fmt: skip
@overload
def deploy_tensor(*, shape: Sequence[int], dtype: DType | str, **reference: Any) -> DeployedTensor: ...
def deploy_tensor(
    context: _Session | None = None, shape: Sequence[int] = (), dtype: DType | str = float16, *,
    dp: DPPolicy | None = None, device: DeviceLike = "ahbm", name: str | None = None, **reference: Any,
) -> Tensor | DeployedTensor:  # fmt: skip
    """Allocate and map a tensor on a device; its contents are undefined.

    `reference`: as in the reference design, instead of a session: `placement`, `allocators` and `mem_kind`.
    """
    if context is None or reference:
        from kernbench import compat

        return compat.deploy_tensor(shape=shape, dtype=dtype, name=name or "tensor", **reference)
    return context.empty(shape, dtype=dtype, device=device, dp=dp, name=name)


def check_broadcast(given: Sequence[int], shape: Sequence[int]) -> None:
    padded = (1,) * (len(shape) - len(given)) + tuple(given)
    if len(given) > len(shape) or any(n not in (1, size) for n, size in zip(padded, shape, strict=True)):
        raise RuntimeError(f"copy_: values of shape {tuple(given)} do not fit shape {tuple(shape)}")


def as_shape(size: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = size[0]
    try:
        return tuple(int(n.__index__()) for n in size)  # type: ignore[union-attr]
    except AttributeError:
        raise TypeError(f"shape = {quote(size)} must be integers, or one tuple of integers") from None


CPU = Device("cpu")


class HostTensor(Tensor):
    """A numpy array as a tensor, without a copy. Work on it takes no simulated time."""

    device = CPU

    def __init__(self, host: HostProgram, array: np.ndarray) -> None:
        self._host = host
        self._array = array
        self.dtype = as_dtype(array.dtype)
        self.shape = Size(array.shape)

    @property
    def _stride(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(step // self.dtype.itemsize for step in self._array.strides)

    def is_contiguous(self) -> bool:
        return bool(self._array.flags.c_contiguous)

    def numpy(self) -> np.ndarray:
        return self._array

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else HostTensor(self._host, np.ascontiguousarray(self._array))

    def clone(self) -> Tensor:
        return HostTensor(self._host, self._array.copy(order="K"))

    def copy_(self, src: Tensor) -> Tensor:
        check_broadcast(src.shape, self.shape)
        self._array[...] = src.numpy()
        return self

    def fill_(self, value: float) -> Tensor:
        self._array[...] = value
        return self

    def _to(self, device: Device, dtype: DType, dp: DPPolicy | None, name: str | None) -> Tensor:
        if device == CPU:
            if dp is not None:
                raise ValueError('dp places a tensor on a device; say .to("ahbm", dp=...)')
            return self if dtype is self.dtype else HostTensor(self._host, self._array.astype(dtype.numpy))
        from kernbench.runtime_api._device_tensor import deploy  # it is built on this module

        return deploy(self._host, self.shape, dtype, device, dp, name).copy_(self)

    def _restrided(self, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        return HostTensor(self._host, strided(self._array, shape, stride))

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, slice) and k.step is not None and k.step <= 0 for k in keys):
            raise ValueError("step must be greater than zero")
        keys = tuple(k.numpy() if isinstance(k, Tensor) else k for k in keys)
        if not any(k is Ellipsis for k in keys):
            keys = (*keys, Ellipsis)  # single elements are views, too
        return HostTensor(self._host, self._array[keys])

    def __repr__(self) -> str:
        values = np.array2string(self._array.astype(self.dtype.carrier), separator=", ", prefix="tensor(")
        return f"tensor({values}, dtype={self.dtype})"
