"""Device memory for the tensors of a generated program, which have no values: they are on torch's meta device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from kernbench._dtypes import DType, as_dtype, uint8
from kernbench.errors import ArgumentError
from kernbench.kernels.partition import chunk
from kernbench.ops._routes import cubes_near_io
from kernbench.ops._stored import Span, Stored
from kernbench.ops.attention import Heads
from kernbench.ops.matmul import BY_ROWS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._layout import Layout
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch._inductor import storage_ref
from kernbench.triton_emu._handles import Pointer

COPIES = DPPolicy()
LINE = 2048  # minimum bytes per PE: smaller parts cost their readers a round trip each (chosen)
_SMALL = 64 * 1024  # bytes: 1-d weights up to this size are replicated on every PE (chosen)


@dataclass(frozen=True)
class TensorPlace:
    """The place of a tensor on the device: memory, address of the first element, shape and strides in elements."""

    buffer: DeviceTensor
    va: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def pointer(self) -> Pointer:
        return Pointer(self.va, self.dtype)

    @property
    def extent(self) -> tuple[int, int]:
        """(first byte in its memory, bytes up to the last element)."""
        last = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return self.va - self.buffer.data_ptr(), (last + 1) * self.dtype.itemsize

    @property
    def row(self) -> TensorPlace:
        return replace(self, shape=(1, self.shape[-1]), strides=(0, self.strides[-1]))

    @property
    def stored(self) -> Stored:
        """As the operand of a product: a matrix, or a stack of matrices."""
        (m, n), batch = self.shape[-2:], prod(self.shape[:-2])
        stride = self.strides[0] if len(self.strides) == 3 else 0
        return Stored.strided((m, n), self.strides[-2:], self._held, [i * stride for i in range(batch)])  # type: ignore[arg-type]

    @property
    def heads(self) -> Heads:
        """As the operand of attention: [batch, heads, tokens, width]."""
        batch, *strides = self.strides
        return Heads(tuple(i * batch for i in range(self.shape[0])), tuple(strides), self._held)  # type: ignore[arg-type]

    @property
    def _held(self) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
        """(first element, counted from the pointer, elements, holders) of each part of the memory."""
        item, first = self.dtype.itemsize, self.va - self.buffer.data_ptr()
        held = self.buffer.layout.held(self.buffer._host.config.pes_per_cube)
        return tuple(((at - first) // item, nbytes // item, pes) for at, nbytes, pes in held)


_Key = tuple[int, int, DType, DPPolicy]  # shape of the memory, its type and placement


@dataclass
class _Block:
    ref: Any
    buffer: DeviceTensor
    key: _Key
    later: bool


class TensorMemory:
    """Finds or allocates the memory of a tensor; that of dead storages is reused.

    `recorded`: steps run later than values are copied, so tensors of the host have memory that no step has used before.
    """

    def __init__(self, session: RuntimeContext, sip: int, rank: int, recorded: bool = False) -> None:
        self.session, self.sip, self.rank, self._recorded = session, sip, rank, recorded
        self.parts = len(session._host.pes)
        self._blocks: dict[int, _Block] = {}  # by storage without values
        self._twins: dict[int, tuple[Any, torch.Tensor]] = {}  # by storage on the host; a weak reference to it
        self._results: dict[int, Any] = {}  # those whose values are on the device
        self._free: dict[tuple[_Key, bool], list[DeviceTensor]] = {}  # that is allocated while steps are queued, apart
        self._constants: dict[Any, tuple[list[Any], torch.Tensor]] = {}

    def type_of(self, dtype: torch.dtype) -> DType:
        """Return the machine's type; raise ArgumentError if it has none."""
        try:
            return as_dtype(str(dtype).removeprefix("torch."))
        except TypeError:
            raise ArgumentError(f"{dtype} is not a type of the machine; convert the model: model.half()") from None

    def twin(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor without values that replaces one of the host; one storage has one memory."""
        storage = x.untyped_storage()
        known = self._twins.get(storage._cdata)
        if known is None or known[0].expired() or known[1].untyped_storage().nbytes() < storage.nbytes():
            self._twins = {k: v for k, v in self._twins.items() if not v[0].expired()}
            whole = torch.empty(-(-storage.nbytes() // 8) * 8, dtype=torch.uint8, device="meta")
            known = self._twins[storage._cdata] = storage_ref(x), whole
            small = x.dim() <= 1 and 0 < storage.nbytes() <= _SMALL
            spread = self._spread(x, storage.nbytes())
            key = (*spread[:3], COPIES) if small and isinstance(x, torch.nn.Parameter) else spread
            self._take(known[1], key, self._recorded)
        empty = torch.empty(0, dtype=x.dtype, device="meta")
        return empty.set_(known[1].untyped_storage(), x.storage_offset(), x.size(), x.stride())

    def allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        x = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        self._take(x, self._spread(x, x.untyped_storage().nbytes()))
        return x

    def placed(self, size: Span, dtype: torch.dtype, policy: DPPolicy) -> torch.Tensor:
        """Allocate a matrix that a policy places; only products read it, as a `Stored`."""
        x = torch.empty(size, dtype=dtype, device="meta")
        self._take(x, (*size, self.type_of(dtype), policy))
        return x

    def rows(self, n: int, width: int, dtype: torch.dtype, *, later: bool = False) -> torch.Tensor:
        """Allocate a matrix by rows, in parts of equal size on all PEs: ranks exchange rows of it.

        With `later`, it is allocated while steps are queued. Its memory is not that of dead storages of the program,
        which steps use that are queued after it.
        """
        x = torch.empty(n, width, dtype=dtype, device="meta")
        self._take(x, (n, width * x.element_size(), uint8, BY_ROWS), later)
        return x

    def place_for(self, x: torch.Tensor, estimate: Callable[[int, int, list[tuple[int, int]]], float]) -> None:
        """Place a new tensor over the number of cubes with the lowest estimate.

        `estimate` gets the bytes per PE, the bytes per element, and the PEs.
        """
        near, nbytes = cubes_near_io(self.session.engine.machine), x.untyped_storage().nbytes()
        pes, found = self.session._host.config.pes_per_cube, []
        units, unit, _, policy = self._spread(x, nbytes)
        most = len(policy.cubes or near)
        for cubes in sorted({most, *(2**i for i in range(most.bit_length()))}):
            held = [(cube, pe) for cube in near[:cubes] for pe in range(min(pes, units))]
            found.append((estimate(-(-units // len(held)) * unit, x.element_size(), sorted(held)), cubes))
        self._take(x, self._spread(x, nbytes, min(found)[1]))

    def constant(
        self, twins: Sequence[torch.Tensor], inputs: Mapping[int, torch.Tensor], parts: int, policy: DPPolicy
    ) -> torch.Tensor:
        """Return matrices of the host side by side (`Stored.side_by_side`), placed by `policy`, in no simulated time.

        `inputs` maps storages of twins to tensors of the host.
        """
        views = [(x.untyped_storage()._cdata, x.size(), x.stride(), x.storage_offset()) for x in twins]
        key = parts, policy, *views
        self._constants = {k: v for k, v in self._constants.items() if not any(ref.expired() for ref in v[0])}
        if key not in self._constants:
            size = twins[0].shape[0], sum(x.shape[1] for x in twins)
            self._constants[key] = [storage_ref(x) for x in twins], self.placed(size, twins[0].dtype, policy)
        found = self._constants[key][1]
        if self.session.engine.data:
            given = [inputs[storage].as_strided(*view) for storage, *view in views]
            columns = [x.narrow(1, *chunk(x.shape[1], parts, part)) for part in range(parts) for x in given]
            buffer = self._blocks[found.untyped_storage()._cdata].buffer
            buffer.poke(_bytes(torch.cat(columns, 1)).view(buffer.dtype.numpy).reshape(buffer.shape))
        return found

    def place(self, x: torch.Tensor) -> TensorPlace:
        dtype = self.type_of(x.dtype)
        block = self._blocks.get(x.untyped_storage()._cdata)
        if block is None or block.ref.expired():
            self._take(x, self._spread(x, x.untyped_storage().nbytes()))
            block = self._blocks[x.untyped_storage()._cdata]
        va = block.buffer.data_ptr() + x.storage_offset() * x.element_size()
        return TensorPlace(block.buffer, va, dtype, tuple(x.shape), tuple(x.stride()))

    def move(self, x: torch.Tensor, to: torch.Tensor) -> None:
        """Give the memory of a tensor to another one of its form; the first gets new memory at its next use."""
        block = self._blocks.pop(x.untyped_storage()._cdata)
        self._blocks[to.untyped_storage()._cdata] = _Block(storage_ref(to), block.buffer, block.key, block.later)

    def stand_in(self, twin: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Map a host tensor to a tensor of the device, which has the values."""
        ref, key = storage_ref(x), x.untyped_storage()._cdata
        self._twins[key], self._results[key] = (ref, twin), ref
        return x

    def message(self, sent: TensorPlace, x: torch.Tensor) -> TensorPlace:
        """Map a host tensor to a message, in new memory that is placed as the tensor of its sender."""
        twin = torch.empty(x.shape, dtype=x.dtype, device="meta")
        (units, unit), dtype, policy = sent.buffer.shape, sent.buffer.dtype, sent.buffer.layout.dp
        assert policy is not None
        key = units, unit, dtype, policy
        self._blocks[twin.untyped_storage()._cdata] = _Block(storage_ref(twin), self._new(*key), key, True)
        self.stand_in(twin, x)
        return self.place(twin)

    def poke(self, x: torch.Tensor) -> None:
        """Copy the values of a host tensor to the device, in no simulated time."""
        result = self._results.get(x.untyped_storage()._cdata)
        if self.session.engine.data and (result is None or result.expired()):
            buffer = self._blocks[self._twins[x.untyped_storage()._cdata][1].untyped_storage()._cdata].buffer
            raw, held = _bytes(x), np.zeros(buffer.numel(), np.uint8)
            held[: raw.size] = raw
            buffer.poke(held.reshape(buffer.shape))

    def peek(self, x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Copy the values of a tensor without values to a host tensor, in no simulated time."""
        if self.session.engine.data:
            self.put(self._blocks[x.untyped_storage()._cdata].buffer.peek(), into)
        return into

    def put(self, values: np.ndarray, into: torch.Tensor) -> None:
        raw = _bytes(into)
        raw[:] = values.reshape(-1)[: raw.size]

    def _new(self, units: int, unit: int, dtype: DType, policy: DPPolicy) -> DeviceTensor:
        made = self.session.empty(units, unit, dtype=dtype, dp=policy, device=f"ahbm:{self.sip}")
        assert isinstance(made, DeviceTensor)
        return made

    def _spread(self, x: torch.Tensor, nbytes: int, most: int = 1 << 30) -> _Key:
        """Spread a tensor over `most` cubes at most: in rows if each PE gets one, else in lines of `LINE` bytes."""
        width = x.shape[-1] * x.element_size() if x.dim() > 1 and x.stride(-1) == 1 else 0
        units, unit = max(1, -(-nbytes // LINE)), LINE
        if width and nbytes % width == 0 and nbytes // width >= self.parts:
            units, unit = nbytes // width, width
        # A tensor of few units is in few cubes, near the IO chiplet, through which SIPs exchange it for an all-reduce.
        near = cubes_near_io(self.session.engine.machine)
        cubes = min(most, -(-units // self.session._host.config.pes_per_cube))
        return units, unit, uint8, BY_ROWS if cubes >= len(near) else replace(BY_ROWS, cubes=near[:cubes])

    def _take(self, x: torch.Tensor, key: _Key, later: bool = False) -> None:
        for storage, block in list(self._blocks.items()):
            if block.ref.expired():
                del self._blocks[storage]
                self._free.setdefault((block.key, block.later), []).append(block.buffer)
        free = self._free.get((key, later))
        buffer = free.pop() if free else self._new(*key)
        self._blocks[x.untyped_storage()._cdata] = _Block(storage_ref(x), buffer, key, later)


def typed(place: TensorPlace) -> DeviceTensor:
    layout, size = place.buffer.layout, place.dtype.itemsize
    rows, width = layout.shape
    shards = [replace(s, index=(s.index[0], slice(0, width // size))) for s in layout.shards]
    own = Layout((rows, width // size), place.dtype, shards, layout.dp)
    return DeviceTensor(place.buffer._host, place.buffer._handle, own)


def _bytes(x: torch.Tensor) -> np.ndarray:
    storage = x.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),)).numpy()


def is_host_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor) and (isinstance(x, FakeTensor) or x.device.type == "cpu")
