"""Creation functions, as torch has them; `dp` and `name` are this toolkit's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np

from kernbench.dtypes import DType, as_dtype, bool_, float32, int64
from kernbench.errors import quote
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.host_tensor import CPU, HostTensor
from kernbench.runtime_api.tensor import Tensor, as_shape
from kernbench.runtime_api.types import Device, DeviceLike

SizeLike = int | Sequence[int]
Values = Callable[[tuple[int, ...]], Any]


class Options(TypedDict, total=False):
    """Keywords that every creation function takes."""

    dtype: DType | str | None
    device: DeviceLike | None
    dp: DPPolicy | None
    name: str | None


class Creation:
    """The part of the namespace that makes tensors.

    Every function takes `dtype` (torch's objects; names such as "f16" will do), `device` (default "cpu", with `dp`
    the current device), `dp` (a DPPolicy: which PEs hold which part; default PE 0 of cube 0) and `name` (for
    messages). A new tensor on a device has its values at no cost in simulated time: how values get into a machine
    is modelled by `copy_` and `to`. Its memory is mapped by messages through the machine.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._random: dict[Device, np.random.Generator] = {}
        self._seed = 0

    def empty(self, *size: SizeLike, **options: Unpack[Options]) -> Tensor:
        """Return a tensor whose values are undefined."""
        return self._new(as_shape(size), float32, None, **options)

    def zeros(self, *size: SizeLike, **options: Unpack[Options]) -> Tensor:
        """Return a tensor of zeros."""
        return self._new(as_shape(size), float32, np.zeros, **options)

    def ones(self, *size: SizeLike, **options: Unpack[Options]) -> Tensor:
        """Return a tensor of ones."""
        return self._new(as_shape(size), float32, np.ones, **options)

    def full(self, size: SizeLike, fill_value: float, **options: Unpack[Options]) -> Tensor:
        """Return a tensor of which every element is `fill_value`; the type follows from the value."""
        default = _default(np.asarray(fill_value))
        return self._new(as_shape((size,)), default, lambda shape: np.full(shape, fill_value), **options)

    def arange(self, start: float, end: float | None = None, step: float = 1, **options: Unpack[Options]) -> Tensor:
        """Return start, start + step, ... below end; `arange(end)` begins at 0."""
        first, last = (0, start) if end is None else (start, end)
        if step == 0 or (last - first) / step < 0:
            raise RuntimeError(f"arange({first}, {last}, {step}): step must lead from the first to the last")
        values = np.arange(first, last, step)
        return self._new(values.shape, _default(values), lambda _: values, **options)

    def rand(self, *size: SizeLike, **options: Unpack[Options]) -> Tensor:
        """Return random numbers, uniform in [0, 1)."""
        return self._drawn(as_shape(size), np.random.Generator.random, **options)

    def randn(self, *size: SizeLike, **options: Unpack[Options]) -> Tensor:
        """Return random numbers of the standard normal distribution."""
        return self._drawn(as_shape(size), np.random.Generator.standard_normal, **options)

    def manual_seed(self, seed: int) -> None:
        """Start the random numbers of every device anew; a session begins with seed 0, unlike torch."""
        self._seed = seed
        self._random.clear()

    def tensor(self, data: Any, **options: Unpack[Options]) -> Tensor:
        """Return a tensor with a copy of `data`: numbers, nested sequences, or an array, which keeps its type."""
        values = np.asarray(data)
        default = as_dtype(values.dtype) if hasattr(data, "dtype") else _default(values)
        return self._new(values.shape, default, lambda _: values, **options)

    def from_numpy(self, array: np.ndarray) -> Tensor:
        """Return a tensor on the host that shares the memory of `array`."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
        return HostTensor(self._host, array)

    def zeros_like(self, input: Tensor, **options: Unpack[Options]) -> Tensor:
        """Return zeros in the shape and type of `input`, where `input` is and spread as it is."""
        return self._like(input, np.zeros, **options)

    def empty_like(self, input: Tensor, **options: Unpack[Options]) -> Tensor:
        """Return undefined values in the shape and type of `input`, where `input` is and spread as it is."""
        return self._like(input, None, **options)

    def _like(self, input: Tensor, values: Values | None, **options: Unpack[Options]) -> Tensor:
        dtype = options.get("dtype")
        kind = input.dtype if dtype is None else as_dtype(dtype)
        device = options.get("device")
        where = None if device is None else self._host.device(device)
        if isinstance(input, DeviceTensor) and where in (None, input.device) and options.get("dp") is None:
            return self._filled(input._like(kind, options.get("name")), values)
        placed: Options = {**options, "dtype": kind, "device": input.device if device is None else device}
        return self._new(tuple(input.shape), kind, values, **placed)

    def _drawn(self, shape: tuple[int, ...], draw: Callable[..., Any], **options: Unpack[Options]) -> Tensor:
        dtype = options.get("dtype")
        if dtype is not None and not as_dtype(dtype).is_floating_point:
            raise RuntimeError(f"random numbers have a floating point type, not {as_dtype(dtype)}")

        def values(shape: tuple[int, ...]) -> Any:
            return draw(self._generator(self._place(options.get("device"), options.get("dp"))), shape)

        return self._new(shape, float32, values, **options)

    def _generator(self, device: Device) -> np.random.Generator:
        if device not in self._random:
            self._random[device] = np.random.default_rng(self._seed)
        return self._random[device]

    def _new(
        self,
        shape: tuple[int, ...],
        default: DType,
        values: Values | None,
        *,
        dtype: DType | str | None = None,
        device: DeviceLike | None = None,
        dp: DPPolicy | None = None,
        name: str | None = None,
    ) -> Tensor:
        if min(shape, default=0) < 0:
            raise RuntimeError(f"shape {quote(shape)} has a negative size")
        kind = default if dtype is None else as_dtype(dtype)
        place = self._place(device, dp)
        if place == CPU:
            array = np.empty(shape, kind.numpy)
            if values is not None:
                array[...] = values(shape)
            return HostTensor(self._host, array)
        return self._filled(self._host.deploy(shape, kind, place, dp, name), values)

    def _filled(self, tensor: DeviceTensor, values: Values | None) -> Tensor:
        if values is not None and self._host.engine.data:
            tensor._poke(np.asarray(values(tuple(tensor.shape))))
        return tensor

    def _place(self, device: DeviceLike | None, dp: DPPolicy | None) -> Device:
        if device is None:
            return self._host.place("ahbm") if dp is not None else CPU
        place = self._host.place(device)
        if place == CPU and dp is not None:
            raise ValueError(f'dp = {dp} places a tensor on a device, but device = {device!r}; use device="ahbm"')
        return place


def _default(values: np.ndarray) -> DType:
    """Return the type that torch gives to Python numbers."""
    return bool_ if values.dtype == bool else int64 if values.dtype.kind in "iu" else float32
