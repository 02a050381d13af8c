"""Tensors on the host: numpy arrays under torch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.dtypes import DType, as_dtype
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.layout import strided
from kernbench.runtime_api.tensor import Size, Tensor, check_broadcast
from kernbench.runtime_api.types import Device

if TYPE_CHECKING:
    from kernbench.runtime_api.host import Host

CPU = Device("cpu")


class HostTensor(Tensor):
    """A numpy array as a tensor; both see the same memory. Work on it takes no simulated time."""

    device = CPU

    def __init__(self, host: Host, array: np.ndarray) -> None:
        self._host = host
        self._array = array
        self.dtype = as_dtype(array.dtype)
        self.shape = Size(array.shape)

    @property
    def _stride(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(step // self.dtype.itemsize for step in self._array.strides)

    def is_contiguous(self) -> bool:
        """Return whether the elements follow each other in row-major order."""
        return bool(self._array.flags.c_contiguous)

    def numpy(self) -> np.ndarray:
        """Return the array itself."""
        return self._array

    def data_ptr(self) -> int:
        """Return the address of the first element in the memory of this process."""
        return int(self._array.ctypes.data)

    def contiguous(self) -> Tensor:
        """Return the tensor, or a copy of it in row-major order."""
        return self if self.is_contiguous() else HostTensor(self._host, np.ascontiguousarray(self._array))

    def clone(self) -> Tensor:
        """Return a copy."""
        return HostTensor(self._host, self._array.copy(order="K"))

    def copy_(self, src: Tensor) -> Tensor:
        """Take over the values of `src`, broadcast to this shape and rounded to this type."""
        check_broadcast(src.shape, self.shape)
        self._array[...] = src.numpy()
        return self

    def fill_(self, value: float) -> Tensor:
        """Set every element."""
        self._array[...] = value
        return self

    def _to(self, device: Device, dtype: DType, dp: DPPolicy | None, name: str | None) -> Tensor:
        if device == CPU:
            if dp is not None:
                raise ValueError('dp places a tensor on a device; say .to("ahbm", dp=...)')
            return self if dtype is self.dtype else HostTensor(self._host, self._array.astype(dtype.numpy))
        return self._host.deploy(self.shape, dtype, device, dp, name).copy_(self)

    def _restrided(self, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        return HostTensor(self._host, strided(self._array, shape, stride))

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, slice) and k.step is not None and k.step <= 0 for k in keys):
            raise ValueError("step must be greater than zero")
        keys = tuple(k.numpy() if isinstance(k, Tensor) else k for k in keys)
        if not any(k is Ellipsis for k in keys):
            keys = (*keys, Ellipsis)  # so that single elements come as views, too
        return HostTensor(self._host, self._array[keys])

    def __repr__(self) -> str:
        values = np.array2string(self._array.astype(self.dtype.carrier), separator=", ", prefix="tensor(")
        return f"tensor({values}, dtype={self.dtype})"
