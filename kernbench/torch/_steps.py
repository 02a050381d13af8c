"""What a generated program does, as steps: launches on the PEs, and operators that only the host has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kernbench.errors import ArgumentError
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.torch import _kernels as kernels
from kernbench.torch._grid import blocks as blocks_of
from kernbench.torch._grid import holders as holders_of
from kernbench.torch._grid import owners
from kernbench.torch._inductor import Kernel
from kernbench.torch._kernels import Heads, Unit
from kernbench.torch._memory import Memory, Place, is_host
from kernbench.torch._placement import Choice, Operand, Product, choose
from kernbench.triton._arguments import Place as Argument
from kernbench.triton._bind import check
from kernbench.triton._session import program_of

aten = torch.ops.aten

ROWS = 64  # rows of attention at a time
KV_SPLIT = 128  # kv tokens of a part, at least, where one query token's attention is split
# Products of groups of rows, each with a matrix: torch's, and what transformers calls for types that torch's has not.
GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")


@dataclass
class Step:
    """One launch or one operator of the host: what it is, where in the model, and how to start it."""

    name: str
    module: str
    operators: tuple[str, ...]
    start: Callable[[], None]
    on_host: bool = False
    flops: int = 0
    choice: Choice | None = None
    summed: Place | None = None  # what a collective over the ranks sums

    @property
    def is_launch(self) -> bool:
        """Whether it is one launch of one rank."""
        return not self.on_host and self.summed is None


# The module and the operators of what is running; with True, of the last node alone.
Locate = Callable[[bool], tuple[str, tuple[str, ...]]]


class Recorder(TorchDispatchMode):
    """Turns the operators of a generated program, called with tensors without values, into steps."""

    def __init__(
        self, memory: Memory, locate: Locate, placement: Callable[[str], str | None],
        inputs: Mapping[int, torch.Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.inputs = inputs  # tensors of the host, by the storage that replaces theirs
        self.memory, self.session, self._locate, self._placement = memory, memory.session, locate, placement
        self._host = self.session._host
        self.steps: list[Step] = []
        self.written: set[int] = set()  # the storages that launches and operators of the host write
        self._native: dict[Any, Callable[..., None]] = {
            aten.mm: self._mm, aten.bmm: self._mm, aten.addmm: self._addmm, aten.baddbmm: self._addmm,
            torch.ops.kernbench.attention: self._attention, aten.copy_: self._copy,
            aten._scaled_dot_product_flash_attention_for_cpu: self._recognized,
        }  # fmt: skip

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a step for an operator; views and operators without tensors run as they are."""
        kwargs = kwargs or {}
        given = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if func.is_view or not any(x.device.type == "meta" for x in given):
            return func(*args, **kwargs)
        if func is torch.ops.kernbench.all_reduce.default:
            return self._all_reduce(args[0], func(args[0]))
        if func is aten._local_scalar_dense.default:
            return self._item(given[0])
        if func._schema.name in GROUPED and not kwargs and [x.dim() for x in given] == [2, 3, 1]:
            out = func(*args)
            self._grouped(out, *args)
            return out
        native = self._native.get(func.overloadpacket)
        if native is not None and all(self._fits(x) for x in given):
            out = kwargs.pop("out", None)
            if out is None and func is not aten.copy_.default:
                out = func(*args, **kwargs)
            native(out, *args, **kwargs)
            self._writes(*_leaves(args[0] if out is None else out))
            return args[0] if out is None else out
        return self._fallback(func, args, kwargs)

    def _writes(self, *tensors: Any) -> None:
        self.written.update(x.untyped_storage()._cdata for x in tensors if isinstance(x, torch.Tensor))

    def _all_reduce(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Record a sum over the ranks, in place: nothing else uses what a row-parallel layer computes."""
        self._at(x)
        self.memory.move(x, out)
        module, _ = self._locate(True)
        name = f"{module}/all_reduce" if module else "all_reduce"
        self.steps.append(Step(name, module, ("all_reduce",), lambda: None, summed=self._at(out)))
        return out

    def _item(self, x: torch.Tensor) -> Any:
        """Return the value of a scalar that the host gave."""
        source = self.inputs.get(x.untyped_storage()._cdata)
        if source is None:
            raise ArgumentError(
                f"{self._locate(True)[0] or 'the model'}: the value of a tensor of the device is needed to continue; "
                "launches are queued, so the machine does not have it"
            )
        return source.as_strided(x.size(), x.stride(), x.storage_offset()).item()

    def _fits(self, x: torch.Tensor) -> bool:
        return x.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.bool)

    # -- generated kernels

    def kernel(self, kernel: Kernel, args: Sequence[Any]) -> None:
        """Record the launch of a kernel that Inductor has written."""
        code = kernel.function.__code__
        names = code.co_varnames[: code.co_argcount]
        known = frozenset(x for x in names if x.endswith("BLOCK"))
        values: dict[str, Any] = dict(zip([x for x in names if x not in known], args, strict=False))
        places = {k: self._at(v) for k, v in values.items() if isinstance(v, torch.Tensor)}
        sizes = {axis: int(values.get(f"{axis}numel", 1)) for axis in ("x", "y", "z")}
        reduced = int(values.get("r0_numel", 1))
        mutated = kernel.written(places)
        self._writes(*(values[k] for k in mutated))
        written = [places[k] for k in mutated] or list(places.values())
        largest = max(written, key=lambda place: prod(place.shape))
        holders = holders_of(largest)
        blocks = blocks_of(sizes, reduced, len(holders), names)
        grid = tuple(-(-sizes[axis] // blocks.get(f"{axis.upper()}BLOCK", 1)) for axis in ("x", "y", "z"))
        count = prod(grid)
        targets, shares = owners(largest, holders, count)
        values |= {k: Argument(place.va, place.dtype) for k, place in places.items()}
        check(kernel.function)
        program = program_of(
            kernel.function, {**values, **blocks}, known, (grid[0], grid[1], grid[2]), targets, shares
        )  # fmt: skip
        self._launch(targets, program, (), list(places.values()), 0, None)

    def _launch(
        self, targets: Sequence[tuple[int, int]], program: Callable[..., object], args: tuple[Any, ...],
        places: Sequence[Place], flops: int, choice: Choice | None, operator: str = "",
    ) -> None:  # fmt: skip
        module, operators = self._locate(bool(operator))
        operators = (operator,) if operator else operators
        name = f"{module}/{'+'.join(operators)}" if module else "+".join(operators)
        handles = [place.buffer._handle for place in places]
        sip, host = self.memory.sip, self._host

        def start() -> None:
            host.launch(sip, targets, program, args, name, handles)

        self.steps.append(Step(name, module, operators, start, False, flops, choice))

    def _at(self, x: torch.Tensor) -> Place:
        """Return where a tensor is; one of the host is a constant of the program."""
        if is_host(x):
            with _disable_current_modes():  # what makes the twin is no operator of the program
                twin = self.memory.twin(x)
                self.memory.poke(x)
            return self.memory.place(twin)
        return self.memory.place(x)

    # -- native kernels

    def _mm(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        self._product(out, a, b, None, 1, 1, "mm" if a.dim() == 2 else "bmm")

    def _addmm(
        self,
        out: torch.Tensor,
        bias: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        beta: float = 1,
        alpha: float = 1,
    ) -> None:
        self._product(out, a, b, bias if beta else None, alpha, beta, "addmm" if a.dim() == 2 else "baddbmm")

    def _product(
        self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, alpha: float, beta: float,
        operator: str,
    ) -> None:  # fmt: skip
        x, y, z = (self._at(t) for t in (a, b, out))
        batch, (m, k), n = prod(x.shape[:-2]), x.shape[-2:], y.shape[-1]
        if not batch * m * n:
            return
        module, _ = self._locate(True)
        w = None if bias is None else self._at(bias.expand(out.shape))
        places = [place for place in (x, y, z, w) if place is not None]
        of = Operand.of
        product = Product(
            batch, m, k, n, of(x), of(y), None if w is None else of(w), of(z), float(alpha), float(beta)
        )  # fmt: skip
        choice = choose(self.session.engine.machine, product, self._placement(module))
        added = None if w is None else w.matrix
        args = (x.matrix, y.matrix, added, z.matrix, k, product.alpha, product.beta, choice.shares)
        self._launch(sorted(choice.shares), kernels.matmul, args, places, 2 * batch * m * k * n, choice, operator)

    def _grouped(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> None:
        """Deal out groups and columns; without values, the groups are of equal size."""
        x, y, w, z = (self._at(t) for t in (a, b, ends, out))
        (rows, k), (groups, _, n) = a.shape, b.shape
        known = None if self.session.engine.data else [rows * (i + 1) // groups for i in range(groups)]
        cuts = kernels.split(n, max(1, len(self._host.pes) // groups))
        parts = _deal([(i, columns) for i in range(groups) for columns in cuts], self._host.pes)
        args = (x.matrix, y.matrix, w.pointer, z.matrix, (rows, k), known, parts)
        self._launch(sorted(parts), kernels.grouped, args, [x, y, w, z], 2 * rows * k * n, None, "grouped_mm")

    def _attention(
        self, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        is_causal: bool, scale: float,
    ) -> None:  # fmt: skip
        heads, kv_heads, q_len, kv_len = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
        group, pes, batch = heads // kv_heads, self._host.pes, q.shape[0]
        places = [self._at(t) for t in (q, k, v, out)]
        at = [Heads(place.pointer, place.strides) for place in places]  # type: ignore[arg-type]
        masked = None
        if mask is not None:
            full = self._at(mask.expand(batch, heads, q_len, kv_len))
            places.append(full)
            masked = Heads(full.pointer, full.strides)  # type: ignore[arg-type]
        together = max(1, min(group, ROWS))
        tokens = max(1, min(q_len, ROWS // together))
        spans = [(i, min(tokens, q_len - i)) for i in range(0, q_len, tokens)]
        groups = [(h, min(together, kv * group + group - h)) for kv in range(kv_heads)
                  for h in range(kv * group, kv * group + group, together)]  # fmt: skip
        seen = 0 if is_causal else None
        split = (
            max(1, min(len(pes) // max(1, batch * len(groups)), kv_len // KV_SPLIT))
            if q_len == 1 and seen is None
            else 1
        )
        units = [
            Unit(b, h, t, kv, part)
            for b in range(batch) for h in groups for t in spans for part, kv in enumerate(kernels.split(kv_len, split))
        ]  # fmt: skip
        flops = 2 * batch * heads * q_len * kv_len * (q.shape[3] + v.shape[3])
        parts = None
        if split > 1:
            size = (batch, heads, split, v.shape[3] + 2)
            kept = self._at(self.memory.allocate(size, _row_major(size), torch.float32))
            places.append(kept)
            parts = Heads(kept.pointer, kept.strides)  # type: ignore[arg-type]
        dealt = _deal(units, pes)
        args = (*at[:3], masked, at[3], group, seen, float(scale), (q.shape[3], v.shape[3]), parts, dealt)
        self._launch(sorted(dealt), kernels.attention, args, places, flops, None, "attention")
        if parts is not None:
            pairs = _deal([(b, h) for b in range(batch) for h in range(heads)], pes)
            self._launch(
                sorted(pairs),
                kernels.merge,
                (parts, split, at[3], v.shape[3], pairs),
                places,
                0,
                None,
                "attention_merge",
            )

    def _recognized(
        self, out: tuple[torch.Tensor, torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> None:  # fmt: skip
        """Record attention that Inductor has recognized in matrix products around a softmax."""
        self._attention(out[0], q, k, v, attn_mask, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)

    def _copy(self, _: None, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        of, to = self._at(source.expand(target.shape)), self._at(target)
        holders = holders_of(to)
        spans = dict(zip(holders, ([x] for x in kernels.split(target.numel(), len(holders))), strict=False))
        if spans:
            args = (of.pointer, to.pointer, to.shape, of.strides, to.strides, spans)
            self._launch(sorted(spans), kernels.copy, args, [of, to], 0, None, "copy")

    # -- operators that the machine does not have

    def _fallback(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operator of the host: its operands are read from the device, its results are written there."""
        module, _ = self._locate(True)
        written = [
            (i, a) for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write
        ]
        try:
            made = func(*args, **kwargs) if written else _as_on_the_host(func, args, kwargs)
        except RuntimeError as error:
            raise ArgumentError(
                f"{module or 'the model'}: {func} needs values to know the shape of its result, which the machine does "
                f"not have when launches are queued: {error}"
            ) from None
        for i, argument in written:
            self._writes(kwargs.get(argument.name, args[i] if i < len(args) else None))
        session = self.session
        inputs = {id(x): self._at(x) for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        outputs = [x for x in _leaves(made) if isinstance(x, torch.Tensor) and id(x) not in inputs]
        places = [self._at(x) for x in outputs]

        def start() -> None:
            host: dict[int, torch.Tensor] = {}

            def read(x: Any) -> Any:
                if not isinstance(x, torch.Tensor):
                    return x
                values = inputs[id(x)].buffer.numpy()
                if not session.engine.data:
                    return x
                if is_host(x):
                    return x
                whole = torch.from_numpy(values.reshape(-1)).view(x.dtype)
                host[id(x)] = whole.as_strided(x.size(), x.stride(), x.storage_offset())
                return host[id(x)]

            found = func(*_mapped(args, read), **_mapped(kwargs, read))
            results = [x for x in _leaves(found) if isinstance(x, torch.Tensor)]
            for place, like, result in zip(places, outputs, results, strict=False):
                _write(place.buffer, like, result, session.engine.data)
            for i, argument in written:
                x = kwargs.get(argument.name, args[i] if i < len(args) else None)
                if isinstance(x, torch.Tensor):
                    _write(inputs[id(x)].buffer, x, host.get(id(x)), session.engine.data)

        operator = func.overloadpacket.__name__
        name = f"{module}/{operator} on the host" if module else f"{operator} on the host"
        self.steps.append(Step(name, module, (operator,), start, True, _host_flops(func, args, kwargs, made)))
        return made


def _as_on_the_host(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the results without values, of the sizes and strides that the host's operator has."""

    def on(device: str) -> Callable[[Any], Any]:
        def empty(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)

        return empty

    with FakeTensorMode():
        found = func(*_mapped(args, on("cpu")), **_mapped(kwargs, on("cpu")))
    return _mapped(found, on("meta"))


def _write(buffer: DeviceTensor, like: torch.Tensor, result: torch.Tensor | None, data: bool) -> None:
    """Copy a result of the host to the device, which takes its time."""
    values = buffer.peek() if data else None
    if values is not None and result is not None:
        whole = torch.from_numpy(values.reshape(-1)).view(like.dtype)
        whole.as_strided(like.size(), like.stride(), like.storage_offset()).copy_(result)
    buffer._write(np.zeros(buffer.shape, np.uint8) if values is None else values)


def _host_flops(func: Any, args: Any, kwargs: Any, made: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    counted = flop_registry.get(func.overloadpacket)
    if counted is not None:
        return int(counted(*args, **kwargs, out_val=made))
    return sum(x.numel() for x in _leaves(made) if isinstance(x, torch.Tensor))


def _leaves(x: Any) -> list[Any]:
    found: list[Any] = torch.utils._pytree.tree_leaves(x)
    return found


def _mapped(x: Any, function: Callable[[Any], Any]) -> Any:
    return torch.utils._pytree.tree_map(function, x)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _deal(units: Sequence[Any], pes: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[Any]]:
    """Return the units of each PE, dealt out forth and back."""
    found: dict[tuple[int, int], list[Any]] = {}
    for i, unit in enumerate(units):
        turn, at = divmod(i, len(pes))
        found.setdefault(pes[len(pes) - 1 - at if turn % 2 else at], []).append(unit)
    return found
