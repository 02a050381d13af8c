"""The steps of a generated program: launches on the PEs, and operators that only the host has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kernbench.errors import ArgumentError
from kernbench.kernels.partition import nonempty_parts
from kernbench.ops import attention
from kernbench.ops._routes import host_ns
from kernbench.ops._stored import Stored
from kernbench.ops.attention import Attention
from kernbench.ops.copy import Matrix, Strided, copy
from kernbench.ops.matmul import Choice, PlacementLike, Product, partial_sums, pieces_of, tasks, traffic
from kernbench.ops.matmul import steps as ops_steps
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._products import chosen_placement
from kernbench.runtime_api.collective import tuner_of
from kernbench.torch._experts import Assignment, Exchanged, Launch, Layer, Routing, grouped_product
from kernbench.torch._grid import block_sizes as blocks_of
from kernbench.torch._grid import grid_owners
from kernbench.torch._grid import holders as holders_of
from kernbench.torch._inductor import Kernel
from kernbench.torch._memory import LINE, TensorMemory, TensorPlace, is_host_tensor
from kernbench.triton._grid import tl_program
from kernbench.triton._translate import check_names
from kernbench.triton_emu._handles import Pointer

aten = torch.ops.aten

# Products of groups of rows, each with its own matrix: torch's, and transformers' for the types that torch's lacks.
GROUPED = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")


@dataclass
class ModelStep:
    name: str
    module: str
    operators: tuple[str, ...]
    start: Callable[[], None]
    on_host: bool = False
    flops: int = 0
    nbytes: int = 0  # per rank; of streamed operands, which a log of operations does not count
    choice: Choice | None = None
    summed: TensorPlace | None = None  # the tensor that a collective sums over the ranks
    exchange: Callable[[], Exchanged] | None = None  # what the ranks exchange, known when it is queued

    @property
    def is_collective(self) -> bool:
        return self.summed is not None or self.exchange is not None

    @property
    def is_launch(self) -> bool:
        return not self.on_host and not self.is_collective


# The module and the operators of the running line; of several nodes, the argument is the number of last ones.
Locate = Callable[[int], tuple[str, tuple[str, ...]]]


class Recorder(TorchDispatchMode):
    """Converts the operators of a generated program, called with tensors without values, into steps."""

    def __init__(
        self, memory: TensorMemory, locate: Locate, placement: Callable[[str], PlacementLike | None],
        inputs: Mapping[int, torch.Tensor], host_ns: float, ranks: int, routing: Routing,
        assigned: dict[int, Assignment],
    ) -> None:  # fmt: skip
        super().__init__()
        self._host_ns = host_ns  # per launch
        self._ranks, self._routing = ranks, routing
        self._assigned, self._layers = assigned, 0  # of layers of experts, by number; common to the ranks
        self.inputs = inputs  # host tensors, by the storage of their twins
        self.memory, self.session, self._locate, self._placement = memory, memory.session, locate, placement
        self._host = self.session._host
        self.steps: list[ModelStep] = []
        self.written: set[int] = set()  # storages written by launches and by operators on the host
        self._native: dict[Any, Callable[..., None]] = {
            aten.mm: self._mm, aten.bmm: self._mm, aten.addmm: self._addmm, aten.baddbmm: self._addmm,
            torch.ops.kernbench.attention: self._attention, aten.copy_: self._copy,
            torch.ops.kernbench.products: self._products, torch.ops.kernbench.bmm: self._mm,
            torch.ops.kernbench.summed_mm: self._summed_mm,
            aten._scaled_dot_product_flash_attention_for_cpu: self._recognized,
        }  # fmt: skip

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record a step for an operator; views, and operators without device tensors, run directly."""
        kwargs = kwargs or {}
        given = [x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if func.is_view or not any(x.device.type == "meta" for x in given):
            return func(*args, **kwargs)
        if func is torch.ops.kernbench.all_reduce.default:
            return self._all_reduce(args[0], func(args[0]))
        if func is torch.ops.kernbench.experts.default:
            return self._experts(*args)
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
        """Record a sum over the ranks, in place: nothing else reads the result of a row-parallel layer."""
        self._at(x)
        self.memory.move(x, out)
        module, _ = self._locate(1)
        name = f"{module}/all_reduce" if module else "all_reduce"
        self.steps.append(ModelStep(name, module, ("all_reduce",), lambda: None, summed=self._at(out)))
        return out

    def _item(self, x: torch.Tensor) -> Any:
        source = self.inputs.get(x.untyped_storage()._cdata)
        if source is None:
            raise ArgumentError(
                f"{self._locate(1)[0] or 'the model'}: the value of a tensor of the device is needed to continue; "
                "launches are queued, so the machine does not have it"
            )
        return source.as_strided(x.size(), x.stride(), x.storage_offset()).item()

    def _fits(self, x: torch.Tensor) -> bool:
        return x.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.bool)

    # -- generated kernels

    def kernel(self, kernel: Kernel, args: Sequence[Any]) -> None:
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
        # Kernels do not say if they write only a part of a tensor: few PEs write a few elements each then.
        lines = -(-prod(sizes.values()) * reduced * largest.dtype.itemsize // LINE)
        blocks = blocks_of(sizes, reduced, min(len(holders), lines), names)
        grid = tuple(-(-sizes[axis] // blocks.get(f"{axis.upper()}BLOCK", 1)) for axis in ("x", "y", "z"))
        count = prod(grid)
        targets, shares = grid_owners(largest, count)
        values |= {k: Pointer(place.va, place.dtype) for k, place in places.items()}
        check_names(kernel.function)
        program = tl_program(
            kernel.function, {**values, **blocks}, known, (grid[0], grid[1], grid[2]), targets, shares
        )  # fmt: skip
        self._launch(targets, program, (), list(places.values()), 0, None)

    def _launch(
        self, targets: Sequence[tuple[int, int]], program: Callable[..., object], args: tuple[Any, ...],
        places: Sequence[TensorPlace], flops: int, choice: Choice | None, operator: str = "", nodes: int = 1,
        nbytes: int = 0,
    ) -> None:  # fmt: skip
        module, operators = self._locate(nodes if operator else 0)
        operators = (operator,) if operator else operators
        name = f"{module}/{'+'.join(operators)}" if module else "+".join(operators)
        handles = [place.buffer._handle for place in places]
        sip, host = self.memory.sip, self._host

        def start() -> None:
            host.launch(sip, targets, program, args, name, handles)

        self.steps.append(ModelStep(name, module, operators, start, False, flops, nbytes, choice))

    def _at(self, x: torch.Tensor) -> TensorPlace:
        if is_host_tensor(x):
            with _disable_current_modes():  # creating the twin must not be recorded
                twin = self.memory.twin(x)
                self.memory.poke(x)
            return self.memory.place(twin)
        return self.memory.place(x)

    # -- native kernels

    def _mm(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        self._product([out], a, [b], None, 1, 1, "mm" if a.dim() == 2 else "bmm")

    def _summed_mm(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """Record a product whose result is placed for the fastest sum over the ranks, by estimate."""
        self.memory.place_for(out, self._to_sum)
        self._mm(out, a, b)

    def _to_sum(self, nbytes: int, itemsize: int, pes: Sequence[tuple[int, int]]) -> float:
        """Estimate an all-reduce over the ranks [ns], with `nbytes` on each of the PEs."""
        tuner, first = tuner_of(self.session.engine.machine, by_model=True), self.memory.sip - self.memory.rank
        sips = range(first, first + self._ranks)
        return tuner.choose("all_reduce", nbytes, sips=sips, places=pes, itemsize=itemsize).best.ns

    def _products(self, out: Sequence[torch.Tensor], a: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
        self._product(out, a, weights, None, 1, 1, "mm")

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
        self._product([out], a, [b], bias if beta else None, alpha, beta, "addmm" if a.dim() == 2 else "baddbmm")

    def _product(
        self, out: Sequence[torch.Tensor], a: torch.Tensor, b: Sequence[torch.Tensor], bias: torch.Tensor | None,
        alpha: float, beta: float, operator: str,
    ) -> None:  # fmt: skip
        """Record the product of a with one or several matrices side by side: each cube has columns of all."""
        x, ys, zs = self._at(a), [self._at(t) for t in b], [self._at(t) for t in out]
        batch, (m, k), n = prod(x.shape[:-2]), x.shape[-2:], sum(y.shape[-1] for y in ys)
        if not batch * m * n:
            return
        module, _ = self._locate(len(ys))
        config, machine = self._host.config, self.session.engine.machine
        w = None if bias is None else self._at(bias.expand(out[0].shape))
        cubes = config.cubes_per_sip if len(ys) > 1 else 1
        of_b, of_c = (
            Stored.side_by_side(
                [y.stored for y in many], [(y.va - many[0].va) // y.dtype.itemsize for y in many], cubes
            )
            for many in (ys, zs)
        )
        of_bias = None if w is None else w.stored if any(w.strides[:-1]) else w.row.stored
        product = Product(
            m, n, k, x.dtype.name, x.stored, of_b, of_c, batch, of_bias, float(alpha), float(beta), self._host_ns
        )
        uses = inf if all(self._is_constant(t) for t in b) else 0
        found = chosen_placement(machine, product, self._placement(module), fixed=True, uses=uses)
        held: list[torch.Tensor] = []  # keeps memory alive: a freed buffer is reused by the next allocation
        places = {"a": [x], "b": ys, "c": zs} | ({} if w is None else {"bias": [w]})
        for policy in found.a:
            held.append(self.memory.placed((m, k), a.dtype, policy))
            [of], to, at = places["a"], self._at(held[-1]), Stored.of(config, (m, k), policy)
            parts = pieces_of(config, at)
            moved = to.pointer, (of.pointer,), Matrix(product.a, parts)
            self._launch(sorted(parts), copy, moved, [of, to], 0, None, f"{operator}_copy", len(ys))
            product, places["a"] = replace(product, a=at), [to]
        if found.b:
            policy = found.b[-1]
            places["b"] = [self._at(self.memory.constant(b, self.inputs, cubes, policy))]
            product = replace(product, b=Stored.of(config, (k, n), policy))
        for name, ((rows, columns), _) in partial_sums(config, product, found.placement).items():
            held.append(self.memory.allocate((rows, columns), (columns, 1), torch.float32))
            places[name] = [self._at(held[-1])]
        flops = 2 * batch * m * k * n
        choice: Choice | None = found
        streams = any(x.is_composite for own in tasks(config, product, found.placement).values() for x in own)
        nbytes = int(traffic(config, product, found.placement)[0].sum()) if streams else 0
        for step in ops_steps(config, product, found.placement):
            own = [places[name] for name in step.tensors]
            args = (*(each[0].pointer for each in own), *step.sizes)
            every = [place for each in own for place in each]
            self._launch(step.pes, step.kernel, args, every, flops, choice, operator, len(ys), nbytes)
            flops, nbytes, choice, operator = 0, 0, None, f"{operator}_sum"  # further steps add up partial sums

    def _is_constant(self, x: torch.Tensor) -> bool:
        storage = x.untyped_storage()._cdata
        return isinstance(self.inputs.get(storage), torch.nn.Parameter) and storage not in self.written

    def _grouped(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> None:
        """Distribute groups and columns over the PEs; without values, the groups have equal sizes."""
        x, y, w, z = (self._at(t) for t in (a, b, ends, out))
        (rows, k), (groups, _, n) = a.shape, b.shape
        known = None if self.session.engine.data else [rows * (i + 1) // groups for i in range(groups)]
        targets, kernel = grouped_product(self.session, x, y, z, known)
        args = tuple(place.pointer for place in (x, y, w, z))
        self._launch(targets, kernel, args, [x, y, w, z], 2 * rows * k * n, None, "grouped_mm")

    def _experts(
        self, x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor,
        ranks: int,
    ) -> torch.Tensor:  # fmt: skip
        """Record a layer of experts: the host reads which experts the tokens have, and knows all sizes then."""
        module, _ = self._locate(1)
        number, self._layers = self._layers, self._layers + 1
        out = self.memory.rows(x.shape[0], x.shape[1], x.dtype)
        tensors = {"x": x, "index": index, "weights": weights, "gate_up": gate_up.mT, "down": down.mT}
        places = {name: self._at(tensor) for name, tensor in tensors.items()} | {"out": self._at(out)}
        assigned, routing = self._assigned, self._routing
        rank = self.memory.rank if ranks > 1 else 0
        layer = Layer(self.session, self.memory, rank, lambda: assigned[number], places, x.dtype)
        host, sip, data = self._host, self.memory.sip, self.session.engine.data
        experts, at = gate_up.shape[0] * ranks, places["index"]

        def draw() -> Assignment:
            return Assignment(routing.drawn(at.shape[0], at.shape[1], experts, ranks), experts, ranks)

        def read() -> None:
            if self.memory.rank:
                return
            values = at.buffer.numpy().reshape(-1)
            if data:
                own = values[at.va - at.buffer.data_ptr() :].view(at.dtype.numpy)
                own = np.lib.stride_tricks.as_strided(own, at.shape, [n * own.itemsize for n in at.strides])
                assigned[number] = Assignment(routing.kept(own.astype(np.int64), experts), experts, ranks)
            else:
                assigned[number] = draw()

        def add(operator: str, **how: Any) -> None:
            name = f"{module}/{operator}" if module else operator
            self.steps.append(ModelStep(name, module, (operator,), **how))

        def launch(operator: str, make: Callable[[], Launch], flops: int = 0) -> None:
            def start() -> None:
                targets, kernel, args, used = make()
                host.launch(sip, targets, kernel, args, name, [place.buffer._handle for place in used])

            name = f"{module}/{operator}" if module else operator
            add(operator, start=start, flops=flops)

        def exchange(operator: str, make: Callable[[], Exchanged]) -> None:
            if ranks > 1:
                add(operator, start=lambda: None, exchange=make)

        if not routing.on_device:
            add("routes on the host", start=read, on_host=True)
        elif data:
            raise ArgumentError(
                "Routing: on_device = True: values need sizes on the host; pass data=False, or leave it out"
            )
        else:
            assigned[number] = draw()
        launch("permute", layer.permute)
        exchange("dispatch", layer.dispatch)
        # A rank's share of the FLOPs of all; its own follow from the routing.
        flops = 2 * prod(index.shape) * prod(down.shape[1:]) // ranks
        launch("grouped_mm", layer.gate_up, 2 * flops)
        launch("silu+mul", layer.activate)
        launch("grouped_mm", layer.down, flops)
        exchange("combine", layer.combine)
        launch("weighed_sum", layer.weigh)
        exchange("all_gather", layer.gather)
        return out

    def _attention(
        self, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        behind: int | None, scale: float,
    ) -> None:  # fmt: skip
        batch, heads, q_len, head_dim = q.shape
        tensors = {"q": q, "k": k, "v": v, "out": out}
        if mask is not None:
            tensors["mask"] = mask.expand(batch, heads, q_len, k.shape[2])
        places = {name: self._at(x) for name, x in tensors.items()}
        at: dict[str, Any] = {name: place.heads for name, place in places.items()}
        machine, dtype = self.session.engine.machine, places["q"].dtype.name
        sizes = Attention(
            heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[3], float(scale), dtype, behind=behind,
            host_ns=self._host_ns and host_ns(machine.config, "attention"), **at,
        )  # fmt: skip
        held: list[torch.Tensor] = []
        flops = sizes.flops
        for name, ((rows, columns), _) in attention.partial_results(machine, sizes).items():
            held.append(self.memory.allocate((rows, columns), (columns, 1), torch.float32))
            places[name] = self._at(held[-1])
        for step in attention.steps(machine, sizes):
            own = [places[name] for name in step.tensors]
            args = (*(place.pointer for place in own), *step.sizes)
            self._launch(step.pes, step.kernel, args, own, flops if step.name == "attention" else 0, None, step.name)

    def _recognized(
        self, out: tuple[torch.Tensor, torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
    ) -> None:  # fmt: skip
        """Record attention that Inductor has recognized from matrix products around a softmax."""
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        self._attention(out[0], q, k, v, attn_mask, 0 if is_causal else None, scale)

    def _copy(self, _: None, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> None:
        of, to = self._at(source.expand(target.shape)), self._at(target)
        holders = holders_of(to)
        lines = -(-target.numel() * to.dtype.itemsize // LINE)
        spans = dict(
            zip(holders, ([x] for x in nonempty_parts(target.numel(), min(len(holders), lines))), strict=False)
        )
        if spans:
            args = to.pointer, (of.pointer,), Strided(to.shape, of.strides, to.strides, spans)
            self._launch(sorted(spans), copy, args, [of, to], 0, None, "copy")

    # -- operators that the machine does not have

    def _fallback(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an operator on the host: operands are read from the device, and results written to it."""
        module, _ = self._locate(1)
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
                if is_host_tensor(x):
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
        self.steps.append(ModelStep(name, module, (operator,), start, True, _host_flops(func, args, kwargs, made)))
        return made


def _as_on_the_host(func: Any, args: Any, kwargs: Any) -> Any:
    """Results without values, with the sizes and strides of the host's operator."""

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
    """Copy a result from the host to the device, in simulated time."""
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
    return torch.utils._pytree.tree_leaves(x)


def _mapped(x: Any, function: Callable[[Any], Any]) -> Any:
    return torch.utils._pytree.tree_map(function, x)
