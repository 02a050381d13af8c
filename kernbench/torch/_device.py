"""The machine that compiled models run on: its session, memory and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import session
from kernbench.torch import _inductor as inductor
from kernbench.torch import _ops as ops
from kernbench.torch._inductor import Kernel, Program
from kernbench.torch._memory import Memory, is_host
from kernbench.torch._steps import Recorder, Step

_QUIET = frozenset((
    "_to_copy", "t", "view", "transpose", "permute", "expand", "unsqueeze", "squeeze", "clone", "slice", "select",
    "alias",
    "_unsafe_view", "detach", "reshape", "as_strided", "convert_element_type", "broadcast_in_dim", "lift_fresh_copy",
))  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One run of a compiled graph: its steps, and when it began and ended [ps]. `first` is its first launch."""

    steps: tuple[Step, ...]
    start_ps: int
    end_ps: int
    first: int
    is_backward: bool


class Device:
    """A simulated machine for compiled models."""

    def __init__(
        self, machine: Any = "preset:default", data: bool = True, graph: bool = False,
        placement: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.session = session(machine, data=data)
        self.session.__enter__()
        config = self.session.engine.machine.config
        self.memory = Memory(self.session, config.cubes_per_sip * config.pes_per_cube)
        self.graph, self.placement = graph, dict(placement or {})
        self.calls: list[Call] = []
        self._modules: dict[str, str] = {}
        self._recorder: Recorder | None = None

    def close(self) -> None:
        """End the session; results stay."""
        if self.session.is_open:
            self.session.__exit__(None, None, None)

    # -- compiling

    def compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Compile a graph of dynamo: the backend of `torch.compile`."""
        modules = modules_of(gm)
        unknown = [name for name in self.placement if name not in modules.values()]
        if unknown:
            known = ", ".join(sorted(set(modules.values()) - {""}))
            raise ArgumentError(f"placement: the model has no module {unknown[0]!r}; those with operators are {known}")

        def inner(program: Program, graph: Any, example: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
            def run(args: list[Any]) -> Any:
                return self._run(program, modules, args, bool(options.get("is_backward")))

            return run

        gm = ops.with_native_attention(gm)
        decompositions = {
            torch.ops.aten.convolution.default: ops.convolution,
            torch.ops.aten.topk.default: ops.topk,
            torch.ops.aten.histc.default: ops.histc,
        }
        return inductor.compiled(gm, inputs, self._launch, self.memory.allocate, inner, decompositions)

    def _launch(self, kernel: Kernel, args: Sequence[Any]) -> None:
        assert self._recorder is not None
        self._recorder.kernel(kernel, args)

    # -- running

    def _run(self, program: Program, modules: Mapping[str, str], args: list[Any], is_backward: bool) -> Any:
        self.session._host.check_open()
        given = [x for x in args if isinstance(x, torch.Tensor)]
        inputs = {id(x): self.memory.twin(x) for x in given}
        twins = [inputs[id(x)] if isinstance(x, torch.Tensor) else x for x in args]
        kept, originals = list(twins), list(args)  # their memory is not used again before the end

        def locate(last: bool) -> tuple[str, tuple[str, ...]]:
            nodes, operators = program.place()
            return module_of(nodes[-1:] if last else nodes, modules), operators_of(operators)

        scalars = {
            id(x): y
            for i, (x, y) in enumerate(zip(twins, args, strict=True))
            if isinstance(y, torch.Tensor) and not y.dim() and i not in program.mutated
        }
        self._recorder = recorder = Recorder(self.memory, locate, self._placement_of, scalars)
        try:
            with torch.no_grad(), recorder:
                outputs = program.call(twins)
        finally:
            self._recorder = None
        self.session.ahbm.synchronize()
        for x in {x.untyped_storage()._cdata: x for x in given}.values():
            self.memory.poke(x)
        engine, first = self.session.engine, len(self.session.engine.launches)
        start = int(engine.env.now)
        self._start(recorder.steps)
        self.session.ahbm.synchronize()
        self.calls.append(Call(tuple(recorder.steps), start, int(engine.env.now), first, is_backward))
        for i in sorted(program.mutated):
            self.memory.peek(kept[i], originals[i])
        by_storage = {inputs[id(x)].untyped_storage()._cdata: x for x in given}
        return [self._output(x, by_storage) for x in outputs]

    def _start(self, steps: Sequence[Step]) -> None:
        """Queue the steps; with `graph`, the launches between two operators of the host are one graph."""
        if not self.graph:
            for step in steps:
                step.start()
            return
        at = 0
        while at < len(steps):
            if steps[at].on_host:
                steps[at].start()
                at += 1
                continue
            with self.session.ahbm.graph() as graph:
                while at < len(steps) and not steps[at].on_host:
                    steps[at].start()
                    at += 1
            graph.replay()

    def _output(self, x: Any, inputs: Mapping[int, torch.Tensor]) -> Any:
        if not isinstance(x, torch.Tensor) or is_host(x):
            return x
        source = inputs.get(x.untyped_storage()._cdata)
        if source is not None:
            return source.as_strided(x.size(), x.stride(), x.storage_offset())
        size = x.untyped_storage().nbytes() // x.element_size()
        whole = torch.empty(size, dtype=x.dtype)
        return self.memory.peek(x, whole).as_strided(x.size(), x.stride(), x.storage_offset())

    def _placement_of(self, module: str) -> str | None:
        return self.placement.get(module)


def modules_of(gm: torch.fx.GraphModule) -> dict[str, str]:
    """Return the module path of each node of a graph of dynamo, by the node's name; empty for the model itself."""
    found: dict[str, str] = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            path, _ = list(stack.values())[-1]
            found[node.name] = readable(path)
    return found


def readable(path: str) -> str:
    """Return a module's path as `named_modules` has it.

    >>> readable("L['self'].model.layers[0].mlp"), readable("L['self']._modules['n']"), readable("L['self']")
    ('model.layers.0.mlp', 'n', '')
    """
    inside = path.partition("']")[2] if path.startswith("L['") else path
    for old, new in (("._modules", ""), ("['", "."), ("']", ""), ("[", "."), ("]", "")):
        inside = inside.replace(old, new)
    return inside.strip(".")


def module_of(nodes: Sequence[str], modules: Mapping[str, str]) -> str:
    """Return the module that several nodes share, or that of the last one where they share the model alone."""
    found = []
    for name in nodes:
        path = modules.get(name)
        if path is None:
            path = modules.get(name.rpartition("_")[0])
        if path is not None:
            found.append(path.split(".") if path else [])
    if not found:
        return ""
    common: list[str] = []
    for parts in zip(*found, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common) or ".".join(found[-1])


def operators_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the operators of a launch, without those that only look at memory in another way."""
    short = [name.rpartition(".")[2] for name in names]
    return tuple(dict.fromkeys([name for name in short if name not in _QUIET])) or tuple(short[-1:]) or ("copy",)
