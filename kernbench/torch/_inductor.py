"""The only module that uses private names of Inductor."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pkgutil import resolve_name
from types import FrameType, FunctionType
from typing import Any
from unittest import mock

import torch
from torch._inductor.codegen.triton import TritonOverrides
from torch._inductor.compile_fx import compile_fx, compile_fx_inner

from kernbench.errors import StateError

# Names outside torch's interface; tests/torch/test_contract.py reports those that a release changes.
PRIVATE = (
    "torch._dynamo.output_graph:GraphCompileReason",
    "torch._inductor.compile_fx:compile_fx",
    "torch._inductor.compile_fx:compile_fx_inner",
    "torch._inductor.async_compile:AsyncCompile.triton",
    "torch._inductor.codegen.triton:TritonOverrides.floordiv",
    "torch._inductor.decomposition:select_decomp_table",
    "torch._inductor.output_code:CompiledFxGraph",
    "torch._inductor.runtime.triton_helpers:maximum",
    "torch._inductor.runtime.triton_heuristics:pointwise",
    "torch._inductor.virtualized:V",
    "torch._C._dynamo.guards:_reinterpret_tensor",
    "torch._C._dynamo.guards:_empty_strided_cpu",
    "torch.utils._triton:triton_hash_with_backend",
    "torch.multiprocessing.reductions:StorageWeakRef",
)
SETTINGS = {
    "cpu_backend": "triton",
    "compile_threads": 1,
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "size_asserts": False,
    "alignment_asserts": False,
    "graph_partition": False,
    "layout_optimization": False,
    "combo_kernels": False,
    "force_pointwise_cat": True,
    "assert_indirect_indexing": True,
    "comment_origin": False,
    "triton.codegen_upcast_to_fp32": True,
    "triton.mix_order_reduction": False,
}
# The name in a generated program's globals that is replaced.
ALLOCATION = "empty_strided_cpu"
_floordiv = TritonOverrides.floordiv
_HEURISTICS = "@triton_heuristics."
_ASSERTION = re.compile(r"^( *)(tl\.device_assert\(.*\))$", re.MULTILINE)
_OTHER = re.compile(r", other=0(\.0)?(?=[,)])")
_NODES = re.compile(r"Source Nodes: \[(.*?)\], Original ATen: \[(.*?)\]")


def missing() -> list[str]:
    from torch._inductor import config

    known = config.get_config_copy() if hasattr(config, "get_config_copy") else config.shallow_copy_dict()
    found = [f"torch._inductor.config.{name}" for name in SETTINGS if name not in known]
    for name in PRIVATE:
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            found.append(name)
    return found


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel written by Inductor: its function, and the metadata of its arguments."""

    name: str
    function: FunctionType
    meta: dict[str, Any]
    launch: Callable[[Kernel, Sequence[Any]], None]

    def written(self, names: Iterable[str]) -> list[str]:
        mutated = self.meta.get("inductor_meta", {}).get("mutated_arg_names", ())
        return [name for name in names if name.startswith(("out_ptr", "in_out_ptr", "ws_ptr")) or name in mutated]

    def run(self, *args: Any, stream: Any = None, **_: Any) -> None:
        self.launch(self, args)


class _Heuristics:
    """Replaces `triton_heuristics` in a kernel's file, and keeps the arguments of the decorators."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] = {}

    def __getattr__(self, kind: str) -> Any:
        def decorate(**given: Any) -> Callable[[Any], Any]:
            self.meta = {"kind": kind, **given}
            return lambda function: function

        return decorate


class _WithoutBroadcast(ast.NodeTransformer):
    """Replaces `tl.broadcast_to(x, shape)` by x: numpy broadcasts the operands of a comparison."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        return node.args[0] if ast.unparse(node.func) == "tl.broadcast_to" else node


def _asserted(line: re.Match[str]) -> str:
    """Rewrite an assertion as a check of values, which takes no simulated time."""
    call = _WithoutBroadcast().visit(ast.parse(line[2])).body[0].value
    condition, message = call.args
    names = sorted({x.id for x in ast.walk(condition) if isinstance(x, ast.Name) and x.id != "tl"})
    lambdas = f"lambda {', '.join(names)}: {ast.unparse(condition)}"
    return f"{line[1]}tl.assert_of_values({lambdas}, ({''.join(f'{x}, ' for x in names)}), {ast.unparse(message)})"


def _kernel(name: str, source: str, launch: Callable[[Kernel, Sequence[Any]], None]) -> Kernel:
    """Execute the source of a kernel, without Triton's decorators."""
    source = source.replace("triton_helpers.set_driver_to_cpu()", "").replace("@triton.jit", "")
    source = _ASSERTION.sub(_asserted, source.replace(_HEURISTICS, "@_heuristics."))
    source = _OTHER.sub("", source)  # masked loads are 0 without it; an explicit 0 would be a fault as a divisor
    heuristics = _Heuristics()
    file = f"<{name} of {len(linecache.cache)}>"
    names: dict[str, Any] = {"_heuristics": heuristics, "__name__": file, "__file__": file}
    exec(compile(source, file, "exec"), names)  # noqa: S102 : Inductor's output
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    return Kernel(name, names[name], heuristics.meta, launch)


class _Target:
    """The answers of Triton's driver when Inductor asks for the device."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0


def _checked_floordiv(a: Any, b: Any) -> Any:
    """Generate Inductor's integer division, which is 0 for the divisor 0, and an assertion against that divisor."""
    from torch._inductor.virtualized import V

    asked = sorted({*getattr(b, "mask_vars", ()), *filter(None, [V.kernel._load_mask])}, key=str)
    masked = "".join(f" | ~({mask})" for mask in asked)
    V.kernel.compute.writeline(f"tl.device_assert(({b} != 0){masked}, 'integer division by zero')")
    return _floordiv(a, b)


@contextmanager
def _writing_triton(launch: Callable[[Kernel, Sequence[Any]], None]) -> Iterator[None]:
    """Make Inductor generate Triton without a GPU, and pass the kernels to `launch` instead of compiling them."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile
    from triton.runtime import driver

    def triton(_: Any, name: str, source: str, device_str: str = "") -> Kernel:
        return _kernel(name, source, launch)

    with ExitStack() as stack:
        stack.enter_context(config.patch(SETTINGS))
        stack.enter_context(mock.patch.object(AsyncCompile, "triton", triton))
        stack.enter_context(mock.patch.object(TritonOverrides, "floordiv", staticmethod(_checked_floordiv)))
        stack.enter_context(mock.patch("torch.utils._triton.triton_hash_with_backend", return_value="kernbench"))
        active = getattr(driver, "_active", None)
        driver.set_active(_Target())
        stack.callback(setattr, driver, "_active", active)
        yield


@dataclass(frozen=True)
class InductorProgram:
    """A graph compiled by Inductor: its function, and its source."""

    call: Callable[[list[Any]], Sequence[Any]]
    lines: Sequence[str]
    file: str

    def place(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Source nodes and ATen operators of the running line."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        line = 0 if frame is None else frame.f_lineno - 1
        while line > 0:
            line -= 1
            found = _NODES.search(self.lines[line])
            if found:
                nodes, operators = (tuple(x for x in part.split(", ") if x) for part in found.groups())
                return nodes, operators
        return (), ()


Inner = Callable[[InductorProgram, Any, Sequence[Any], dict[str, Any]], Callable[[list[Any]], Any]]


def compiled(
    gm: Any, inputs: Sequence[Any], launch: Callable[[Kernel, Sequence[Any]], None], allocate: Callable[..., Any],
    inner: Inner, decompositions: dict[Any, Any], of_training: dict[Any, Any],
    rewrite: Callable[[torch.fx.GraphModule, bool], torch.fx.GraphModule],
) -> Any:  # fmt: skip
    """Compile a graph of dynamo; `inner` wraps each program that Inductor generates.

    `allocate` replaces `empty_strided_cpu` in the programs, and `launch` receives the launches of their kernels.
    `of_training` has the decompositions that only a graph with gradients needs, and `rewrite` changes the graph before
    Inductor lowers it, given whether it has gradients.
    """
    from torch._inductor.decomposition import select_decomp_table

    def compile_inner(graph: Any, example: Sequence[Any], **options: Any) -> Any:
        with _writing_triton(launch):
            code = compile_fx_inner(rewrite(graph, trained), example, **options)
        made = inner(_program(code, allocate), graph, example, dict(options))
        made._boxed_call = True  # type: ignore[attr-defined]
        return made

    # Also patched in Inductor's own table, which it uses for replaced patterns and keeps for the whole process.
    trained = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    extra = of_training if trained else {}
    with torch._inductor.config.patch(SETTINGS), mock.patch.dict(select_decomp_table(), extra):
        table = {**select_decomp_table(), **decompositions, **extra}
        return compile_fx(gm, list(inputs), inner_compile=compile_inner, decompositions=table)


def _program(code: Any, allocate: Callable[..., Any]) -> InductorProgram:
    if isinstance(code, FunctionType):  # a graph without operators
        return InductorProgram(code, (), "")
    call: Any = getattr(code, "current_callable", None)
    function = getattr(call, "__func__", call)
    while not isinstance(function, FunctionType) or ALLOCATION not in function.__globals__:
        function = getattr(function, "__wrapped__", None)
        if function is None:
            raise StateError(f"Inductor of torch {torch.__version__} makes programs of another form; {_versions()}")
    function.__globals__[ALLOCATION] = allocate
    return InductorProgram(call, code.source_code.splitlines(), function.__code__.co_filename)


def graph_break(gm: Any) -> str:
    """Place and reason of a break that ends a graph of dynamo before the model; empty if there is none."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    last = reason.user_stack[-1]
    return f"{last.filename}:{last.lineno}: {reason.reason.strip().splitlines()[0]}"


def _versions() -> str:
    return 'it is made for those of `pip install "kernbench[torch]"`'


def storage_ref(x: torch.Tensor) -> Any:
    """Return a weak reference to the storage of a tensor; its `cdata` is a key while the storage lives."""
    return import_module("torch.multiprocessing.reductions").StorageWeakRef(x.untyped_storage())
