"""The machine of compiled models: its session, memory and calls."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from kernbench.analysis._records import Records
from kernbench.config import AUTO
from kernbench.errors import ArgumentError, KernelError
from kernbench.ops._routes import host_ns
from kernbench.ops.matmul import PlacementLike
from kernbench.runtime_api._device_tensor import deploy_like
from kernbench.runtime_api._devices import LaunchGraph, StartOfWork
from kernbench.runtime_api.collective import queue_collective
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.runtime_api.types import Device as DeviceName
from kernbench.runtime_api.work import Call
from kernbench.torch import _inductor as inductor
from kernbench.torch import _rewrites as rewrites
from kernbench.torch._experts import Assignment, Routing, queue_exchange
from kernbench.torch._inductor import InductorProgram, Kernel
from kernbench.torch._memory import TensorMemory, TensorPlace, is_host_tensor, typed
from kernbench.torch._operators import ModelStep, Recorder
from kernbench.torch._parallel import EXPERTS
from kernbench.torch._types import check_types

_QUIET = frozenset((
    "_to_copy", "t", "view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "clone", "slice", "select",
    "alias",
    "_unsafe_view", "detach", "reshape", "as_strided", "convert_element_type", "broadcast_in_dim", "lift_fresh_copy",
))  # fmt: skip


_Places = Mapping[int, StartOfWork] | None  # of a collective, in the graph of each SIP


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector: a call creates a million objects that stay, and few cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class GraphCall:
    """One run of a compiled graph: its steps, and when it began and ended [ps].

    `first` maps a SIP to the index of the call's first launch there.
    """

    steps: tuple[ModelStep, ...]
    start_ps: int
    end_ps: int
    first: Mapping[int, int]
    ranks: int
    is_backward: bool


# The inputs of a program, their twins, its steps and its outputs.
_Recorded = tuple[list[Any], list[Any], Recorder, Sequence[Any]]


class ModelDevice:
    def __init__(
        self, machine: Any = "preset:default", data: bool = True, graph: bool = False,
        placement: Mapping[str, PlacementLike] | None = None, tp: int = 1, fuse: bool = False,
        routing: Routing | None = None,
    ) -> None:  # fmt: skip
        self.routing, self.of_experts = routing or Routing(), frozenset[str]()
        self.tp, self._own = tp, None if isinstance(machine, RuntimeContext) else session(machine, data=data)
        self.use(machine if self._own is None else self._own.__enter__())
        self.graph, self.placement, self.fuse = graph, dict(placement or {}), fuse
        self._recorder: Recorder | None = None
        # By storage of the first rank: a weak reference to it and the other ranks' tensors; and all ranks' gradients.
        self._of_ranks: dict[int, tuple[Any, Sequence[torch.Tensor]]] = {}
        self._gradients: dict[int, list[torch.Tensor]] = {}
        # Of calls that are recorded and not run, the steps of each rank; their results stay on the device.
        self.recorded: list[Sequence[Sequence[ModelStep]]] | None = None

    def use(self, torch: RuntimeContext) -> None:
        """Run on the machine of an open session from now on, without compiling again."""
        sips, data = torch.engine.machine.config.n_sips, torch.engine.data
        if not 1 <= self.tp <= sips:
            raise ArgumentError(f"tp = {self.tp}: the machine has {sips} SIPs; use at most that, or enlarge it")
        self.session = torch
        # Without values, ranks are identical unless each has its own experts: simulate one, and collectives over all.
        count = self.tp if data or EXPERTS in self.of_experts else 1
        self.memories = [TensorMemory(torch, sip, sip) for sip in range(count)]
        self.calls: list[GraphCall] = []
        self._records: tuple[tuple[int, int], Records] | None = None

    @property
    def records(self) -> Records:
        state = self.session.requests, int(self.session.engine.env.now)
        if self._records is None or self._records[0] != state:
            with collector_paused():
                self._records = state, self.session.result.records
        return self._records[1]

    def ranks(self, models: Sequence[torch.nn.Module], of_experts: Collection[str]) -> None:
        """Record which parameters and buffers of the ranks correspond, and the styles of layers of experts."""
        if of_experts:
            self.of_experts = frozenset(of_experts)
            self.use(self.session)
        for parts in zip(*([*model.parameters(), *model.buffers()] for model in models), strict=True):
            self.belong(parts)

    def belong(self, tensors: Sequence[torch.Tensor]) -> None:
        self._of_ranks[tensors[0].untyped_storage()._cdata] = inductor.storage_ref(tensors[0]), tensors[1:]

    def of_rank(self, rank: int, x: Any) -> Any:
        if not (rank and isinstance(x, torch.Tensor)):
            return x
        ref, tensors = self._of_ranks.get(x.untyped_storage()._cdata, (None, ()))
        if ref is None or ref.expired():
            return x
        own = tensors[rank - 1]
        return own if isinstance(x, torch.nn.Parameter) else own.as_strided(x.size(), x.stride(), x.storage_offset())

    def gradients(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return all ranks' gradients of a weight, given that of the first rank; without values, copies of its own."""
        found = self._gradients.pop(part.untyped_storage()._cdata)
        return found * (self.tp // len(found))

    def close(self) -> None:
        if self._own is not None and self._own.is_open:
            self._own.__exit__(None, None, None)

    # -- compiling

    def compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        modules = modules_of(gm)
        known = ["", *sorted(set(modules.values()) - {""})]
        unknown = [name for name in self.placement if name not in known]
        if unknown:
            raise ArgumentError(
                f"placement: the model has no module {unknown[0]!r}; those with operators are '' (the model itself)"
                f"{''.join(f', {name}' for name in known[1:])}"
            )

        inputs_of: list[int] = []  # the storages of the forward pass, in gradient order

        def inner(
            program: InductorProgram, graph: Any, example: Sequence[Any], options: dict[str, Any]
        ) -> Callable[..., Any]:
            is_backward = bool(options.get("is_backward"))
            named = {**modules, **modules_of(graph, "fwd_nn_module_stack")} if is_backward else modules

            def run(args: list[Any]) -> Any:
                if not is_backward:
                    inputs_of[:] = [x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else 0 for x in args]
                ranks = self._run(program, named, args, is_backward)
                both = list(zip(*ranks, strict=True))
                if is_backward and len(ranks) == len(self.memories):
                    self._gradients = dict(zip(inputs_of, map(list, both), strict=False))
                if len(ranks) > 1:
                    self._of_ranks = {k: v for k, v in self._of_ranks.items() if not v[0].expired()}
                    for tensors in both:
                        if isinstance(tensors[0], torch.Tensor) and tensors[0] is not tensors[1]:
                            self.belong(tensors)
                return ranks[0]

            return run

        def rewrite(graph: torch.fx.GraphModule, trained: bool) -> torch.fx.GraphModule:
            graph = rewrites.with_summed_products(rewrites.with_native_bmm(graph))
            return rewrites.with_fused_products(graph) if self.fuse and not trained else graph

        check_types(gm, modules)
        gm = rewrites.with_native_attention(gm)
        return inductor.compiled(
            gm, inputs, self._launch, self._allocate, inner,
            rewrites.DECOMPOSITIONS | (rewrites.OF_EXPERTS if self.of_experts else {}), rewrites.OF_TRAINING,
            rewrite,
        )  # fmt: skip

    def _allocate(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        assert self._recorder is not None
        return self._recorder.memory.allocate(size, stride, dtype)

    def _launch(self, kernel: Kernel, args: Sequence[Any]) -> None:
        assert self._recorder is not None
        self._recorder.kernel(kernel, args)

    # -- running

    def _run(
        self, program: InductorProgram, modules: Mapping[str, str], args: list[Any], is_backward: bool
    ) -> list[list[Any]]:
        self.session._host.check_open()
        runs = []
        assigned: dict[int, Assignment] = {}
        for rank, memory in enumerate(self.memories):
            runs.append(self._record(program, modules, memory, [self.of_rank(rank, x) for x in args], assigned))
        if self.recorded is None:
            self.session._host.synchronize()
        for memory, (given, _, _, _) in zip(self.memories, runs, strict=True):
            for x in {x.untyped_storage()._cdata: x for x in given if isinstance(x, torch.Tensor)}.values():
                memory.poke(x)
        if self.recorded is None:
            self._finish(runs, is_backward)
        else:
            self.recorded.append([recorder.steps for _, _, recorder, _ in runs])
        return [
            [self._output(x, recorder.inputs, memory) for x in outputs]
            for memory, (_, _, recorder, outputs) in zip(self.memories, runs, strict=True)
        ]

    def _finish(self, runs: Sequence[_Recorded], is_backward: bool) -> None:
        engine = self.session.engine
        first = dict(Counter(launch.sip for launch in engine.launches))
        start = int(engine.env.now)
        with collector_paused(), self._named(len(engine.launches)):
            self._start([recorder.steps for _, _, recorder, _ in runs])
            self.session._host.synchronize()
        self.calls.append(GraphCall(tuple(runs[0][2].steps), start, int(engine.env.now), first, len(runs), is_backward))
        for memory, (given, twins, recorder, _) in zip(self.memories, runs, strict=True):
            for x, twin in zip(given, twins, strict=True):
                # Includes a buffer that the program reuses for a result: its values are returned.
                if isinstance(x, torch.Tensor) and twin.untyped_storage()._cdata in recorder.written:
                    memory.peek(twin, x)

    @contextmanager
    def _named(self, first: int) -> Iterator[None]:
        try:
            yield
        except KernelError as error:
            sent = islice(self.session.engine.launches, first, None)
            running = next((launch.name for launch in sent if launch.end_ps < 0), "")
            raise type(error)(f"{running}: {error}" if running else str(error)) from error

    def _record(
        self,
        program: InductorProgram,
        modules: Mapping[str, str],
        memory: TensorMemory,
        args: list[Any],
        assigned: dict[int, Assignment],
    ) -> _Recorded:
        """Run a program on tensors without values."""
        twins = [memory.twin(x) if isinstance(x, torch.Tensor) else x for x in args]
        inputs = {
            twin.untyped_storage()._cdata: x for x, twin in zip(args, twins, strict=True) if isinstance(x, torch.Tensor)
        }

        def locate(last: int) -> tuple[str, tuple[str, ...]]:
            nodes, operators = program.place()
            return module_of(nodes, modules, last), operators_of(operators)

        per_launch_ns = 0.0 if self.graph else host_ns(self.session._host.config)
        self._recorder = recorder = Recorder(
            memory, locate, self.placement.get, inputs, per_launch_ns, self.tp, self.routing, assigned
        )
        try:
            with torch.no_grad(), recorder:
                outputs = program.call(list(twins))
        finally:
            self._recorder = None
        return args, twins, recorder, outputs

    def _start(self, ranks: Sequence[Sequence[ModelStep]]) -> None:
        """Queue the steps of all ranks; with `graph`, a rank's between two operators of the host are one graph."""
        for in_graph, run in groupby(zip(*ranks, strict=True), lambda steps: self.graph and not steps[0].on_host):
            if in_graph:
                self._replay(list(run))
                continue
            for steps in run:
                self.together(steps)

    def _replay(self, run: Sequence[Sequence[ModelStep]]) -> None:
        """Capture a graph for each rank, and queue the graphs step by step: a collective is one call for all ranks."""
        host, sips = self.session._host, [memory.sip for memory in self.memories]
        graphs = [LaunchGraph(host, sip) for sip in sips]
        places: dict[int, StartOfWork] = {}
        parts: list[
            tuple[list[int], Callable[[_Places], None] | None]
        ] = []  # launches of each rank, and what follows them
        for steps in run:
            before = [len(graph) for graph in graphs]
            queue = self._collective(steps) if steps[0].is_collective else None
            for sip, graph, step in zip(sips, graphs, steps, strict=True):
                if step.is_collective:
                    graph.add(partial(places.__setitem__, sip), 1)
                    continue
                with host.capture(sip, graph):
                    step.start()
            parts.append(([len(graph) - n for graph, n in zip(graphs, before, strict=True)], queue))
        replays = [graph.replaying() for graph in graphs]
        for counts, queue in parts:
            for replay, n in zip(replays, counts, strict=True):
                for _ in islice(replay, n):
                    pass
            if queue is not None:
                queue(places)

    def start(self, sip: int, steps: Sequence[ModelStep]) -> None:
        if not self.graph:
            for step in steps:
                step.start()
            return
        with self.session._host.capture(sip) as graph:
            for step in steps:
                step.start()
        graph.replay()

    def together(self, steps: Sequence[ModelStep]) -> None:
        if steps[0].is_collective:
            self._collective(steps)(None)
            return
        for step in steps:
            step.start()

    def _collective(self, steps: Sequence[ModelStep]) -> Callable[[_Places], None]:
        """Return what queues a collective of all ranks at its places in their graphs."""
        name = steps[0].name
        if steps[0].summed is not None:
            return partial(self._sum, [step.summed for step in steps if step.summed is not None], name)
        of, to, messages = zip(*(step.exchange() for step in steps if step.exchange), strict=True)
        return partial(queue_exchange, self.session, of, to, messages[0], name)

    def _sum(self, summed: Sequence[TensorPlace], name: str, places: _Places) -> None:
        """Queue an all-reduce over the ranks; ranks that are not simulated join when the first one does."""
        tensors, host = [typed(place) for place in summed], self.session._host
        for sip in range(len(tensors), self.tp):
            tensors.append(deploy_like(host, tensors[0].layout, DeviceName("ahbm", sip)))
            host.stream(sip).wait_stream(host.stream(0))
            places = places and {**places, sip: places[0]}
        if len(tensors) > 1:
            sips = tuple(x.sip for x in tensors)
            queue_collective(
                host, self.session._collectives, tensors, AUTO, None, name, None, {}, by_model=True,
                record=lambda x: Call("all_reduce", tensors={"tensor": x}).communication(sips), places=places,
            )  # fmt: skip

    def _output(self, x: Any, inputs: Mapping[int, torch.Tensor], memory: TensorMemory) -> Any:
        if not isinstance(x, torch.Tensor) or is_host_tensor(x):
            return x
        source = inputs.get(x.untyped_storage()._cdata)
        if source is not None:
            return source.as_strided(x.size(), x.stride(), x.storage_offset())
        with next((t.fake_mode for t in inputs.values() if isinstance(t, FakeTensor)), nullcontext()):
            whole = torch.zeros(x.untyped_storage().nbytes() // x.element_size(), dtype=x.dtype)
            if not self.session.engine.data and x.dtype.is_floating_point:
                whole.fill_(float("nan"))
            found = memory.peek(x, whole) if self.recorded is None else memory.stand_in(x, whole)
            return found.as_strided(x.size(), x.stride(), x.storage_offset())


def modules_of(gm: torch.fx.GraphModule, key: str = "nn_module_stack") -> dict[str, str]:
    """Map the names of a graph's nodes to module paths; empty for the model itself.

    The key is "nn_module_stack" in a graph of dynamo; "fwd_nn_module_stack" in one of a backward pass has the modules
    of the forward operators.
    """
    found: dict[str, str] = {}
    for node in gm.graph.nodes:
        stack = node.meta.get(key)
        if stack:
            path, _ = list(stack.values())[-1]
            found[node.name] = readable(path)
    return found


def readable(path: str) -> str:
    """Convert dynamo's path of a module to that of `named_modules`.

    >>> readable("L['self'].model.layers[0].mlp"), readable("L['self']._modules['n']"), readable("L['self']")
    ('model.layers.0.mlp', 'n', '')
    """
    inside = path.partition("']")[2] if path.startswith("L['") else path
    for old, new in (("._modules", ""), ("['", "."), ("']", ""), ("[", "."), ("]", "")):
        inside = inside.replace(old, new)
    return inside.strip(".")


def module_of(nodes: Sequence[str], modules: Mapping[str, str], last: int = 0) -> str:
    """Return the common module of several nodes; if that is the model itself, the module of the last node.

    With `last`, return the common module of the last `last` nodes, which may be the model.
    """
    found = []
    for name in nodes:
        path = modules.get(name)
        if path is None:
            path = modules.get(name.rpartition("_")[0])
        if path is not None:
            found.append(path.split(".") if path else [])
    if not found:
        return ""
    found = found[-last:]
    common: list[str] = []
    for parts in zip(*found, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common if common or last else found[-1])


def operators_of(names: Sequence[str]) -> tuple[str, ...]:
    short = [name.rpartition(".")[2] for name in names]
    return tuple(dict.fromkeys([name for name in short if name not in _QUIET])) or tuple(short[-1:]) or ("copy",)
