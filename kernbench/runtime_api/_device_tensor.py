"""Tensors in the memory of a device: shards on PEs behind one range of virtual memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._dtypes import DType
from kernbench.errors import quote
from kernbench.ops.copy import Strided, copy, fill
from kernbench.ops.matmul import ONE_PE
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.runtime_api._layout import Layout, TensorShard, everything, row_major, strided
from kernbench.runtime_api._memory import TensorHandle
from kernbench.runtime_api._parts import assign
from kernbench.runtime_api.tensor import HostTensor, Size, Tensor, check_broadcast
from kernbench.runtime_api.types import Device, DeviceLike
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu._runner import check_plain

if TYPE_CHECKING:
    from kernbench.runtime_api._devices import HostProgram


def _parse(key: Any, shape: Sequence[int]) -> tuple[tuple[slice, ...], list[int], set[int]]:
    """Resolve `key` to (a slice for every dim, the result's shape, the dims that it drops)."""
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    if taken > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    rest = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[rest : rest + 1] = [slice(None)] * (len(shape) - taken)
    box: list[slice] = []
    sizes: list[int] = []
    dropped: set[int] = set()
    for k in keys:
        dim = len(box)
        if k is None:
            sizes.append(1)
        elif isinstance(k, slice):
            start, stop, step = k.indices(shape[dim])
            if step != 1:
                raise IndexError(f"step {step} in dim {dim}: a part of a device tensor has step 1")
            box.append(slice(start, max(start, stop)))
            sizes.append(max(start, stop) - start)
        else:
            at, size = _integer(k), shape[dim]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for dimension {dim} with size {size}")
            box.append(slice(at % size, at % size + 1))
            dropped.add(dim)
    return tuple(box), sizes, dropped


def _integer(key: Any) -> int:
    try:
        if not isinstance(key, bool):
            return index(key)
    except TypeError:
        pass
    raise IndexError(
        f"index {quote(key)} of type {type(key).__name__}: a device tensor takes integers, slices, None and ...; "
        "read it first: .cpu()[...]"
    )


class DeviceTensor(Tensor):
    """Part or all of the memory behind a handle.

    A part must be one run of bytes, so that a kernel can reach it from one pointer and distinguish its PEs: whole
    consecutive shards, or consecutive elements inside one. Transposing and reshaping change how the host
    reads the elements, not their places; a kernel gets the same pointer, as in torch.
    """

    def __init__(
        self, host: HostProgram, handle: TensorHandle, layout: Layout, offset: int = 0,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._host = host
        self._handle = handle
        self._claim = handle.claim()
        self._layout = layout
        self._offset = offset
        self.device = Device("ahbm", handle.sip)
        self.dtype = layout.dtype
        self.shape = Size(layout.shape if shape is None else shape)
        self._stride = row_major(self.shape) if stride is None else tuple(stride)

    @property
    def name(self) -> str:
        return self._handle.name

    @property
    def sip(self) -> int:
        return self._handle.sip

    @property
    def layout(self) -> Layout:
        """Where its elements are, in the shape in which it was placed: a view may have another one."""
        return self._layout

    @property
    def shards(self) -> tuple[TensorShard, ...]:
        return self._layout.shards

    @property
    def pes(self) -> list[tuple[int, int]]:
        return sorted({(s.cube, s.pe) for s in self.shards})

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.data_ptr(), self.dtype)

    def data_ptr(self) -> int:
        return self._handle.va + self._offset

    # -- values

    def numpy(self) -> np.ndarray:
        """Read the values: wait for what was queued before and for the copy to the host.

        In a session without data there are none: floats are NaN, the rest 0.
        """
        pieces = self._layout.read_pieces
        data = self._host.read(self._handle, pieces)
        if data is None:
            unknown = np.nan if self.dtype.is_floating_point else 0
            return np.full(self.shape, unknown, self.dtype.numpy)
        return np.asarray(self._seen(self._layout.gather(data)), order="C")

    def copy_(self, src: Tensor) -> Tensor:
        """Copy the values of `src`, broadcast to this shape and rounded to this type.

        The values are those that `src` has now; the host continues, the copy is queued on the device. Between
        tensors of one layout on one device, the PEs copy their parts; other copies go through the host.
        """
        if isinstance(src, DeviceTensor) and self._has_layout_of(src):
            self._run("copy_", copy, self, (src,), Strided((self.numel(),), (1,), (1,), self._parts()))
            return self
        self._write(src.numpy())
        return self

    def fill_(self, value: float) -> Tensor:
        self._run("fill_", fill, self, value, self._parts())
        return self

    def clone(self) -> Tensor:
        return self._like(self.dtype).copy_(self)

    def contiguous(self) -> Tensor:
        """Return the tensor, or a row-major copy of it, made through the host."""
        if self.is_contiguous():
            return self
        order = sorted(range(self.dim()), key=lambda d: (-self._stride[d], self.shape[d] == 1))
        if tuple(self.shape[d] for d in order) != self._layout.shape:
            raise RuntimeError(
                f"{self.name}: a tensor that was reshaped and then transposed has no placement; copy it: "
                '.cpu().contiguous().to("ahbm", dp=...)'
            )
        copy = deploy_like(self._host, self._layout.permuted(np.argsort(order).tolist()), self.device)
        copy._write(self.numpy())
        return copy

    def _to(self, device: Device, dtype: DType, dp: DPPolicy | None, name: str | None) -> Tensor:
        if device.type == "cpu":
            if dp is not None:
                raise ValueError('dp places a tensor on a device; say .to("ahbm", dp=...)')
            return HostTensor(self._host, self.numpy().astype(dtype.numpy, copy=False))
        if device == self.device and dtype is self.dtype and dp is None:
            return self
        if dp is not None:
            return deploy(self._host, self.shape, dtype, device, dp, name).copy_(self)
        if device == self.device:
            from kernbench.runtime_api._operators import cast  # it is built on this module

            return cast(self, dtype, name)
        return self._like(dtype, name, device).copy_(self)

    def _write(self, values: np.ndarray) -> None:
        check_broadcast(values.shape, self.shape)
        data = self.bytes_of(values) if self._host.engine.data else None
        self._host.write(self._handle, self._layout.write_pieces, data)

    def poke(self, values: np.ndarray) -> None:
        """Set the values, broadcast to the shape, at no cost in simulated time and without regard to the queue."""
        self._handle.moved.clear()
        self._host.engine.memory.poke(self._layout.write_pieces, self.bytes_of(values))

    def poke_later(self, data: Future[np.ndarray]) -> None:
        """Set the values by `poke` before anything accesses them; `data` are those of `bytes_of`."""
        self._handle.moved.clear()
        self._host.engine.memory.later(self._layout.write_pieces, data)

    def peek(self) -> np.ndarray:
        """Return the values as they are now, at no cost in simulated time and without regard to the queue.

        `torch.ahbm.synchronize()` first lets everything that was queued end. A session without data has
        none.
        """
        return np.asarray(self._seen(self._layout.gather(self._host.engine.memory.peek(self._layout.read_pieces))))

    def bytes_of(self, values: np.ndarray) -> np.ndarray:
        """Return the bytes of values, broadcast to the shape, in the order of their addresses."""
        base = np.empty(self._layout.shape, self.dtype.numpy)
        assign(self._seen(base), values)
        return self._layout.scatter(base)

    def _seen(self, base: np.ndarray) -> np.ndarray:
        return strided(base.reshape(-1), self.shape, self._stride)

    def _has_layout_of(self, other: DeviceTensor) -> bool:
        same = (self.device, self.dtype, self.shape) == (other.device, other.dtype, other.shape)
        return same and self._stride == other._stride and self._layout.placement == other._layout.placement

    def _parts(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Map (cube, pe) to (first element, elements) of each part."""
        item = self.dtype.itemsize
        parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for s in self.shards:
            parts.setdefault((s.cube, s.pe), []).append((s.offset_bytes // item, s.nbytes // item))
        return parts

    def _run(self, name: str, kernel: Callable[..., object], *args: Any) -> None:
        """Launch a kernel on the PEs that hold this tensor; tensors in `args`, also inside tuples, become pointers."""
        if self.shards:
            handles: list[TensorHandle] = []
            self._host.launch(self.sip, self.pes, kernel, _passed(args, handles), name, handles)

    # -- views

    def _like(self, dtype: DType, name: str | None = None, device: Device | None = None) -> DeviceTensor:
        twin = deploy_like(self._host, self._layout.of(dtype), device or self.device, name)
        return DeviceTensor(self._host, twin._handle, twin._layout, 0, self.shape, self._stride)

    def _restrided(self, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        return DeviceTensor(self._host, self._handle, self._layout, self._offset, shape, stride)

    def __getitem__(self, key: Any) -> Tensor:
        box, shape, dropped = _parse(key, self.shape)
        if not self.is_contiguous():
            raise IndexError(f"{self.name}: index a device tensor before transposing it, or copy it: .contiguous()")
        if tuple(self.shape) == self._layout.shape:
            cut = self._layout.cut(box)
            if cut is None:
                raise IndexError(self._unaligned(box))
            offset, layout = cut
            layout = layout.permuted([i for i in range(len(box)) if i not in dropped]) if dropped else layout
        else:
            first, size = self._consecutive(box)
            flat = self._layout.flat()
            cut = None if flat is None else flat.cut((slice(first, first + size),))
            if cut is None:
                raise IndexError(
                    f"{self.name}: its parts are not in row-major order, so a reshaped view has no blocks to take; "
                    "index it before reshaping"
                )
            offset, layout = cut
        return DeviceTensor(self._host, self._handle, layout, self._offset + offset, shape)

    def _consecutive(self, box: tuple[slice, ...]) -> tuple[int, int]:
        row = Layout(self.shape, self.dtype, [TensorShard(0, 0, 0, 0, 0, self.nbytes, everything(self.shape))])
        cut = row.cut(box)
        if cut is None:
            raise IndexError(self._unaligned(box))
        return cut[0] // self.dtype.itemsize, cut[1].nbytes // self.dtype.itemsize

    def _unaligned(self, box: tuple[slice, ...]) -> str:
        asked = ", ".join(f"{b.start}:{b.stop}" for b in box)
        edges = "; ".join(f"dim {i} at {_some(n)}" for i, n in enumerate(self._layout.boundaries()))
        return (
            f"{self.name}[{asked}] is not one run of bytes of this tensor of shape {self._layout.shape}: "
            f"shards meet in {edges}; cut there, or read it first: .cpu()[...]"
        )

    # -- display

    def __repr__(self) -> str:
        what = f"shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}'"
        return f"Tensor({self.name}, {what}, {self._where()})"

    def _repr_html_(self) -> str:
        """Without the values: these would cost a simulated read."""
        from html import escape

        import pandas as pd

        rows = [
            (f"cube{s.cube}.pe{s.pe}", f"[{', '.join(f'{i.start}:{i.stop}' for i in s.index)}]", f"{s.nbytes:,} B")
            for s in self.shards
        ]
        table = pd.DataFrame(rows, columns=["PE", "part", "bytes"])
        return f"<p>{escape(repr(self))}</p>{table.to_html(index=False, max_rows=16)}"

    def _where(self) -> str:
        pes = self.pes
        counts = (len(self.shards), "shard"), (len(pes), "PE"), (len({cube for cube, _ in pes}), "cube")
        shards, on, of = (f"{n} {what}{'s' * (n != 1)}" for n, what in counts)
        return f"{shards} on {on} of {of}"


def deploy(
    host: HostProgram, shape: Sequence[int], dtype: DType, device: DeviceLike, dp: DPPolicy | None = None,
    name: str | None = None,
) -> DeviceTensor:  # fmt: skip
    """Allocate a tensor, on one PE without a policy; its contents are undefined."""
    sip, dp = host.index(device), dp or ONE_PE
    shards = resolve_dp_policy(
        dp, shape=shape, itemsize=dtype.itemsize, num_pe=host.config.pes_per_cube,
        num_cubes=host.config.cubes_per_sip, target_sip=sip,
    )  # fmt: skip
    handle = host.allocate(sip, shape, dtype, shards, dp, name)
    return DeviceTensor(host, handle, handle.layout)


def deploy_like(host: HostProgram, layout: Layout, device: Device, name: str | None = None) -> DeviceTensor:
    handle = host.allocate(host.index(device), layout.shape, layout.dtype, layout.shards, layout.dp, name)
    return DeviceTensor(host, handle, handle.layout)


def queue_launch(host: HostProgram, sip: int, name: str, kernel: Callable[..., object], args: Sequence[object]) -> None:
    """Queue `kernel` on the PEs of a SIP that hold a shard of a tensor among `args`."""
    _check_signature(name, kernel, args)
    tensors = []
    values = []
    for i, arg in enumerate(args):
        where = f"launch of {name!r}: argument {i}"
        if isinstance(arg, np.ndarray) and arg.ndim:
            raise TypeError(f'{where} is a numpy array; a kernel takes device tensors: torch.from_numpy(a).to("ahbm")')
        if not isinstance(arg, DeviceTensor):
            if isinstance(arg, Tensor):
                shape = tuple(arg.shape)
                raise TypeError(f'{where} is a tensor on the host, {shape}; expected one on a device: .to("ahbm")')
            values.append(arg)
            continue
        if arg.device.index != sip:
            raise RuntimeError(
                f"{where}, tensor {arg.name!r}, is on {arg.device}, but the current device is ahbm:{sip}; choose with "
                'torch.ahbm.set_device(...), or move it: .to("ahbm")'
            )
        tensors.append(arg)
        values.append(arg.pointer)
    targets = sorted({pe for tensor in tensors for pe in tensor.pes})
    if not targets:
        raise RuntimeError(
            f"launch of {name!r}: no argument is a tensor with elements on ahbm:{sip}; a kernel runs where its tensors "
            'are: create one with device="ahbm"'
        )
    host.forget_moved(sip)  # a kernel may write to any address
    host.launch(sip, targets, kernel, tuple(values), name, [tensor._handle for tensor in tensors])


def _check_signature(name: str, kernel: Callable[..., object], args: Sequence[object]) -> None:
    """Raise at the launch what would otherwise fail on a PE."""
    check_plain(kernel)
    try:
        signature = inspect.signature(kernel)
    except ValueError:
        return
    try:
        signature.bind(*args, tl=None)
    except TypeError as error:
        label = getattr(kernel, "__name__", repr(kernel))
        raise TypeError(
            f"launch of {name!r}: kernel {label}{signature} cannot be called with {len(args)} arguments and tl: "
            f"{error}; a kernel takes the launch's arguments, then tl by name"
        ) from None


def _passed(x: Any, handles: list[TensorHandle]) -> Any:
    """Replace tensors by pointers, and append their memory to `handles`."""
    if isinstance(x, DeviceTensor):
        handles.append(x._handle)
        return x.pointer
    # No closure: it would be part of a cycle, and keep the memory until that is collected.
    return tuple(_passed(each, handles) for each in x) if type(x) is tuple else x


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown}, ... {numbers[-1]}" if len(numbers) > 8 else shown
