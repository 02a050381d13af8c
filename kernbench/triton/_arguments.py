"""Arguments of a launch: tensors on the device or on the host, descriptors, numbers, and compile-time constants."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench._dtypes import DType, as_dtype
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._devices import HostProgram
from kernbench.triton._language import Language
from kernbench.triton._translate import Binder, maybe_dtype
from kernbench.triton_emu._blocks import tensor_descriptor
from kernbench.triton_emu._handles import Pointer

# Options of Triton's compiler, without effect here.
_OPTIONS = frozenset((
    "num_warps", "num_stages", "num_ctas", "maxnreg", "warmup", "grid", "stream", "device", "debug", "launch_pdl",
    "launch_cooperative_grid", "enable_fp_fusion", "allow_fp8e4nv", "waves_per_eu", "matrix_instr_nonkdim", "kpack",
    "minRegAutoWS", "maxRegAutoWS", "ir_override", "sanitize_overflow", "num_buffers_warp_spec",
    "num_consumer_groups", "reg_dec_producer", "reg_inc_consumer", "cluster_dims", "noinline", "do_not_specialize",
))  # fmt: skip


@dataclass(frozen=True)
class HostMemory:
    """Host memory of a tensor argument: its whole storage [bytes], and the tensor's offset in it."""

    address: int
    nbytes: int
    offset: int
    dtype: DType

    def bytes(self) -> np.ndarray:
        """Share the bytes with the tensor."""
        if not self.nbytes:
            return np.zeros(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_ubyte * self.nbytes).from_address(self.address))


def is_host(x: object) -> bool:
    return isinstance(x, np.ndarray) or (hasattr(x, "untyped_storage") and hasattr(x, "storage_offset"))


def host_memory(x: Any, where: str) -> HostMemory:
    try:
        if isinstance(x, np.ndarray):
            low, high = np.lib.array_utils.byte_bounds(_root(x))
            return HostMemory(low, high - low, x.ctypes.data - low, as_dtype(x.dtype))
        kind = as_dtype(x.dtype)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
    storage = x.untyped_storage()
    if storage.device.type != "cpu":
        raise TypeError(f"{where} is a tensor on {storage.device}; expected one on the CPU, or on a simulated device")
    return HostMemory(storage.data_ptr(), storage.nbytes(), x.storage_offset() * x.element_size(), kind)


class TypedPointer:
    """A typed address in a tensor: like any pointer argument, it has `data_ptr()` and `dtype`."""

    def __init__(self, tensor: Any, offset: int, dtype: Any) -> None:
        self._tensor, self._offset, self.dtype = tensor, offset, dtype

    def data_ptr(self) -> int:
        return int(self._tensor.data_ptr()) + self._offset


def is_pointer(x: object) -> bool:
    """Triton's own criterion."""
    return hasattr(x, "data_ptr") and hasattr(x, "dtype")


def _span(x: Any) -> range:
    """Addresses of a tensor's storage; empty if it has no memory."""
    if isinstance(x, DeviceTensor):
        return range(x._handle.va, x._handle.va + x._handle.nbytes)
    if isinstance(x, np.ndarray):
        return range(*np.lib.array_utils.byte_bounds(_root(x)))
    if str(x.layout) != "torch.strided" or (storage := x.untyped_storage()).device.type != "cpu":
        return range(0)  # sparse, or without values, as of torch.compile
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def first_address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def tensor_at(address: int, *sessions: HostProgram) -> Any:
    """Find a live tensor (of torch's CPU, or of `sessions`) whose memory contains an address; None if there is none."""
    kinds = (*([DeviceTensor] if sessions else []), *([sys.modules["torch"].Tensor] if "torch" in sys.modules else []))
    for x in gc.get_objects() if kinds else ():
        # isinstance() would read each object's __class__, for which a proxy may import a module or warn.
        if not issubclass(type(x), kinds) or address not in _span(x):
            continue
        # Addresses repeat among sessions, and are reused after a free.
        if not isinstance(x, DeviceTensor) or (x._host in sessions and x._handle.is_alive):
            return x
    return None


def tensor_of(x: Any, where: str, session: HostProgram) -> Any:
    """Find the tensor that a pointer argument points into: one that it holds, else any of the session or of the CPU."""
    try:
        as_dtype(x.dtype)
    except TypeError as error:
        raise TypeError(f"{where}: {error}") from None
    address = x.data_ptr()
    for held in getattr(x, "__dict__", {}).values():
        held = getattr(held, "_array", held)  # of a tensor of the session's host
        if (isinstance(held, DeviceTensor) or is_host(held)) and address in _span(held):
            return held
    found = tensor_at(address, session)
    if found is None:
        raise TypeError(f"{where} points to {address:#x}, which is in no tensor of the CPU or of a simulated device")
    return found


def _root(x: np.ndarray) -> np.ndarray:
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def is_descriptor(x: object) -> bool:
    return all(hasattr(x, name) for name in ("base", "block_shape", "strides")) and not isinstance(x, np.ndarray)


def bind(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the arguments of a kernel by name, and the names of its compile-time constants."""
    signature = inspect.signature(function)
    unknown = [k for k in kwargs if k not in signature.parameters and k not in _OPTIONS]
    if unknown:
        raise TypeError(f"launch of {name!r}: kernel {name}{signature} has no argument {unknown[0]!r}")
    try:
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in signature.parameters})
    except TypeError as error:
        raise TypeError(f"launch of {name!r}: {error}; the kernel is {name}{signature}") from None
    bound.apply_defaults()
    return {k: unwrapped(v) for k, v in bound.arguments.items()}, known_names(signature)


def known_names(signature: inspect.Signature) -> frozenset[str]:
    return frozenset(p.name for p in signature.parameters.values() if "constexpr" in str(p.annotation))


def unwrapped(x: Any) -> Any:
    return x.value if type(x).__name__ == "constexpr" and hasattr(x, "value") else x


def inside(x: Any, known: bool, lang: Language, binder: Binder) -> Any:
    x = unwrapped(x)
    if isinstance(x, Pointer):
        return Pointer(x.va, x.element_ty, lang._tl)
    if isinstance(x, tensor_descriptor):
        return x.of(lang._tl)
    if isinstance(x, (tuple, list)):
        return (
            type(x)(*map(_each(known, lang, binder), x))
            if hasattr(x, "_fields")
            else tuple(inside(item, known, lang, binder) for item in x)
        )
    if known:
        found = maybe_dtype(x) if not isinstance(x, str) else None
        return found if found is not None else binder.bind(x)
    return lang.to_tensor(x) if isinstance(x, (int, float, np.generic)) else binder.bind(x)


def _each(known: bool, lang: Language, binder: Binder) -> Callable[[Any], Any]:
    return lambda item: inside(item, known, lang, binder)
