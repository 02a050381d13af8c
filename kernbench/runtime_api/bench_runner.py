"""Run one bench on one machine, from a fresh engine to a result."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kernbench._dtypes import DType
from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError, StateError, VerificationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._making import Told
from kernbench.runtime_api._parts import assign, largest_absolute, part_slices, product_in_parts
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.sim_engine._limits import Limits, limited
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine, resolve_topology

Values = Callable[[], np.ndarray]


def operand(
    torch: RuntimeContext, name: str, shape: Sequence[int], dtype: DType, dp: DPPolicy | None = None
) -> tuple[Tensor, Values | None]:
    """Return a tensor of random values on the current device, and a function that returns them (None without data).

    Setting the values takes no simulated time; they depend on name and shape only. The function returns float64.
    """
    tensor = torch.empty(shape, dtype=dtype, device="ahbm", dp=dp, name=name)
    if not torch.engine.data:
        return tensor, None
    rng = np.random.default_rng([*name.encode(), *shape])
    made = torch.fill_later(tensor, lambda told: _drawn(rng, prod(shape), dtype, told).reshape(shape))

    def exact() -> np.ndarray:
        found = np.empty(tuple(shape))
        assign(found, made.result())
        return found

    return tensor, exact


def _drawn(rng: np.random.Generator, n: int, dtype: DType, told: Told) -> np.ndarray:
    values = np.empty(n, dtype.numpy)
    for where in part_slices(n):
        part = values[where]
        drawn = rng.standard_normal(part.size) if dtype.is_floating_point else rng.integers(-8, 8, part.size)
        part[:] = drawn.astype(np.float32).astype(dtype.numpy)
        told(part.size)
    return values


def check_product(torch: RuntimeContext, name: str, got: Tensor, x: Values | None, y: Values | None) -> None:
    """Read `got`, and with data compare it with x() @ y(), within the rounding error of its type."""
    values = got.numpy()
    if x is None or y is None:
        return
    a, b = x(), y()
    rtol = atol = 0.0
    if got.dtype.is_floating_point:
        rtol, atol = _eps(got.dtype), a.shape[-1] * 2.0**-24 * largest_absolute(a) * largest_absolute(b)
    _compare(torch, name, values, product_in_parts(a, b), rtol, atol)


def check(
    torch: RuntimeContext, name: str, got: Tensor, expected: np.ndarray | None, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Read `got`, and with data compare it: |got - expected| <= atol + rtol |expected|."""
    values = got.numpy()
    if expected is not None:
        _compare(torch, name, values, expected, rtol, atol)


def _compare(
    torch: RuntimeContext, name: str, values: np.ndarray, expected: np.ndarray, rtol: float, atol: float
) -> None:
    torch.checks += 1
    shape, expected = values.shape, np.broadcast_to(expected, values.shape)
    values, expected = values.reshape(-1), expected.reshape(-1)
    count, worst, largest_error = 0, 0, -np.inf
    for where in part_slices(values.size):
        value = values[where].astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            wanted = expected[where].astype(values.dtype).astype(np.float64)
            error = np.abs(value - wanted) - (atol + rtol * np.abs(wanted))
        same = (value == wanted) | (np.isnan(value) & np.isnan(wanted))
        wrong = ~same & ~(error <= 0)
        if wrong.any():
            count += int(wrong.sum())
            errors = np.where(wrong, np.nan_to_num(error, nan=np.inf), -np.inf)
            if errors.max() > largest_error:
                worst, largest_error = where.start + int(errors.argmax()), errors.max()
    if count:
        wanted = expected[worst : worst + 1].astype(values.dtype).astype(np.float64)[0]
        raise VerificationError(
            f"{name}: {count} of {prod(shape)} elements differ from numpy; the worst is "
            f"[{', '.join(map(str, np.unravel_index(worst, shape)))}] = {float(values[worst]):g}, expected {wanted:g} "
            f"+- {atol + rtol * abs(wanted):.2g}"
        )


def _eps(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def run_program(
    machine: Machine, program: Callable[[RuntimeContext], object], *, data: bool = False, log: str = "operation",
    tie_seed: int | None = None,
) -> Result:  # fmt: skip
    with RuntimeContext(GraphEngine(machine, data, log=log, tie_seed=tie_seed)) as torch:
        program(torch)
    return torch.result


class Completion(str):
    __slots__ = ()

    @property
    def ok(self) -> bool:
        return self == _OK


_OK, _FAILED, NO_REQUESTS = map(Completion, ("OK", "FAILED", "NO_REQUESTS"))
PASSED, WRONG, NOT_CHECKED = "PASSED", "FAILED", "NOT_CHECKED"


@dataclass(frozen=True, slots=True, repr=False)
class BenchResult:
    """The outcome of a bench: how it ended, and whether its numbers were checked."""

    name: str
    completion: Completion
    correctness: str
    result: Result
    error: KernbenchError | None = None

    @property
    def ok(self) -> bool:
        return self.completion.ok

    def __repr__(self) -> str:
        return f"{self._headline()}\n{self.result!r}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self._headline())}</b></p>{self.result._repr_html_()}"

    def _headline(self) -> str:
        error = f": {self.error}" if self.error else ""
        return f"{self.name}: {self.completion}, numbers {self.correctness}{error}"


def _takes_device(factory: Callable[..., GraphEngine]) -> bool:
    parameters = signature(factory).parameters
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return "device" in parameters or len(needed) > 1


def run_bench(
    *, topology: Machine | str | Path | Mapping[str, Any] | None, bench_fn: Callable[[RuntimeContext], object],
    device: DeviceSelector | str | None = None, engine_factory: Callable[..., GraphEngine] | None = None,
    data: bool = False, log: str = "operation", limits: Limits | Mapping[str, float] | None = None,
) -> BenchResult:  # fmt: skip
    """Run `bench_fn(torch)` and return the outcome.

    `engine_factory` makes the engine from the machine, and from the device if it takes two arguments; `data` and `log`
    are for the default engine. `limits` also hold for sessions that the bench opens. A KernbenchError is an outcome of
    the bench; other exceptions are bugs in it, and are raised. A milestone may leave the machine unused: its study
    makes its own.
    """
    machine = resolve_topology(topology)
    selector = resolve_device(device, machine.config.n_sips)
    if engine_factory is None:
        engine = GraphEngine(machine, data, log=log)
    else:
        engine = engine_factory(*(machine, selector)[: 1 + _takes_device(engine_factory)])
    name = str(getattr(bench_fn, "name", getattr(bench_fn, "__name__", "bench")))
    limits = Limits.of(limits)
    torch = RuntimeContext(engine, selector, correlation_id=name, limits=limits)
    error: KernbenchError | None = None
    try:
        with limited(limits), torch:
            bench_fn(torch)
        if not torch.result.complete:
            error = StateError(f"{name}: INCOMPLETE: the run did not finish; its times are not valid")
    except KernbenchError as caught:
        error = caught
    completion = _OK if error is None else _FAILED
    correctness = PASSED if torch.checks and completion == _OK else NOT_CHECKED
    if isinstance(error, VerificationError):
        correctness = WRONG
    if completion == _OK and not torch.requests and not getattr(bench_fn, "is_milestone", False):
        completion = NO_REQUESTS
        error = StateError(f"{name}: NO_REQUESTS: the bench launched nothing and copied nothing; launch a kernel")
    program = f"bench {name}" if hasattr(bench_fn, "name") else name
    arguments: Mapping[str, Any] = getattr(bench_fn, "arguments", {})
    parameters = {name: value for name, value in arguments.items() if value is not None}
    manifest = replace(torch.result.manifest, program=program, parameters=parameters)
    result = replace(torch.result, manifest=manifest)
    return BenchResult(name, completion, correctness, result, error)
