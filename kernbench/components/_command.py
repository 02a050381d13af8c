# cython: annotation_typing=True
"""Commands of a kernel to its PE, and the values in TCM that they read and produce.

The kernel language builds commands; `PE_CPU` gives them times (and, with data on, values).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from greenlet import GreenletExit

from kernbench._dtypes import DType

Waiters = tuple[Any, ...]  # programs, and callbacks of (time, event)
AccessSpan = tuple[int, int, bool]


class Value:
    """A tile in TCM, of `nbytes`. `array` is in the carrier type, rounded to `dtype`; None while unknown.

    `done_ps` is the completion time, set as soon as it is known (0 for a constant, -1 while unknown). The backend owns
    the rest: the number of commands that still need it, its waiters, its space in TCM, and the id of the producing
    command.
    """

    __slots__ = (
        "__weakref__", "array", "done_by", "done_ps", "dropped", "dtype", "maker", "nbytes", "pending", "shape",
        "space", "waiters",
    )  # fmt: skip

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, array: np.ndarray | None = None, done_ps: int = -1
    ) -> None:
        self.opens(shape, dtype)
        self.array, self.done_ps = array, done_ps

    def opens(self, shape: Any, dtype: Any) -> None:
        """Set the fields of a result, of an object that compiled code has made without `__init__`."""
        sizes: tuple[int, ...] = shape
        self.shape, self.dtype, self.done_ps = sizes, dtype, -1
        self.array = None
        nbytes = dtype.itemsize
        for size in sizes:
            nbytes *= size
        self.nbytes = nbytes
        self.pending, self.dropped, self.maker, self.done_by = 0, False, -1, 0
        self.space: Any = None
        self.waiters: Waiters = ()


class Run(NamedTuple):
    """`nbytes` consecutive bytes of virtual memory; `payload` counts repeated requests of a byte, too."""

    va: int
    nbytes: int
    payload: int


@dataclass(frozen=True, slots=True)
class Ref:
    """A row-major matrix or vector that stays in memory and is streamed from there.

    A block of a larger matrix is accessed at `va`, as if that matrix were stored block by block, but has the elements
    of `runs`, which ascend; `order` returns the index of each of them among these, None if they ascend, too.
    """

    va: int
    shape: tuple[int, ...]
    dtype: DType
    runs: tuple[Run, ...] = ()
    order: Callable[[], np.ndarray | None] | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def elements(self) -> tuple[Run, ...]:
        return self.runs or (Run(self.va, self.nbytes, self.nbytes),)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Build the matrix from the bytes of its elements."""
        order = None if self.order is None else self.order()
        values = self.dtype.decode(raw, -1)
        return (values if order is None else values[order]).reshape(self.shape)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Convert the matrix to the bytes of its elements."""
        order = None if self.order is None else self.order()
        if order is not None:
            flat, values = values.reshape(-1), np.empty(values.size, values.dtype)
            values[order] = flat
        return self.dtype.encode(values)


class VectorOp(NamedTuple):
    """Work for the vector engine: `kind` is "simple", "slow" (exp, log, sqrt, div, sin, cos, tanh, erf) or "reduce"."""

    kind: str
    elements: int
    itemsize: int


@dataclass(eq=False)
class Command:
    """One command of a program. `compute` maps the inputs' arrays to the output's.

    `flops` counts useful work. `done_ps` is -1 until the completion time is known; `id` is the log's. A command reads
    the memory of `runs`, which ascend by address, or with `writes` writes it. `atomic` marks the two commands of an
    atomic operation; one that `releases` follows all earlier writes of the program.
    """

    name: str
    inputs: tuple[Value, ...] = ()
    output: Value | None = None
    compute: Callable[..., np.ndarray] | None = None
    flops: int = 0
    tag: str = ""
    runs: tuple[Run, ...] = ()
    done_ps: int = field(default=-1, init=False)
    done_by: int = field(default=0, init=False)
    waiters: Waiters = field(default=(), init=False)
    id: int = field(default=-1, init=False)
    atomic: bool = field(default=False, init=False)
    releases: bool = field(default=False, init=False)
    writes: ClassVar[bool] = False

    def opens(self, name: Any, inputs: Any, output: Any, compute: Any, tag: Any) -> None:
        """As of a `Value`; without memory and flops."""
        self.name, self.inputs, self.output, self.compute, self.tag = name, inputs, output, compute, tag
        self.flops, self.runs, self.waiters = 0, (), ()
        self.done_ps = self.id = -1
        self.done_by, self.atomic, self.releases = 0, False, False

    def touches(self) -> Sequence[AccessSpan]:
        """Virtual memory that the command accesses, as (start, end, whether it writes)."""
        return [(run.va, run.va + run.nbytes, self.writes) for run in self.runs] if self.runs else ()


@dataclass(eq=False)
class Load(Command):
    """Memory to TCM. `compute` gets the bytes of the runs, concatenated, as uint8.

    `tiled` is True for a pointer tile: one descriptor per HBM slice, which serves each distinct 256 B line once. False:
    one descriptor per run.
    """

    tiled: bool = False


@dataclass(eq=False)
class Store(Command):
    """TCM to memory. `compute` maps the input's array to the bytes (uint8) of the runs, concatenated.

    For an atomic store, it maps the bytes in memory at completion and the inputs' arrays.
    """

    tiled: bool = False
    writes: ClassVar[bool] = True


@dataclass(eq=False)
class Vector(Command):
    """Element-wise work or reductions on PE_MATH: values in TCM to a value in TCM."""

    work: tuple[VectorOp, ...] = ()


@dataclass(eq=False)
class Dot(Command):
    """`output[m, n] = inputs[0][m, k] @ inputs[1][k, n] (+ inputs[2])`, all in TCM, tiled like a composite."""

    mkn: tuple[int, int, int] = (0, 0, 0)


@dataclass(eq=False)
class Composite(Command):
    """A tiled operation planned by PE_SCHEDULER: op "gemm" (a @ b) or "math" (element-wise on a, and b).

    `a`, `b` and the entries of `extra` are Ref (streamed) or Value (pinned); `extra` belongs to the
    epilogue: each is read once per output tile, "row" entries (bias) as the tile's columns only.
    `inputs` repeats the pinned ones and `acc`. `compute` gets the arrays of a, b (if any), the extras in
    order, then acc (if any) and returns the output array, shaped as `out`. PE_MATH is charged for each entry
    of `epilogue` with the elements of the output tile at hand (their own `elements` is not read).
    """

    op: str = "gemm"
    a: Ref | Value | None = None
    b: Ref | Value | None = None
    out: Ref | None = None
    acc: Value | None = None
    extra: tuple[tuple[str, Ref | Value], ...] = ()
    epilogue: tuple[VectorOp, ...] = ()
    writes: ClassVar[bool] = True

    def touches(self) -> Sequence[AccessSpan]:
        operands = (self.a, self.b, *[operand for _, operand in self.extra])
        found = [(x.va, x.va + x.nbytes, False) for x in operands if isinstance(x, Ref)]
        return found if self.out is None else [*found, (self.out.va, self.out.va + self.out.nbytes, True)]


@dataclass(eq=False)
class Send(Command):
    """A message to the PE in `direction`: a value in TCM, or (without inputs) the bytes of `runs` in memory.

    `compute` maps the input's array to the message's `nbytes` bytes (uint8). Complete when its last part has left.
    """

    direction: str = ""
    nbytes: int = 0
    dtype: DType | None = None


@dataclass(eq=False)
class Recv(Command):
    """The next message of `nbytes` from `direction` (None: the earliest arrival of any), into TCM or into `runs`.

    `compute` maps the bytes (uint8) to the output's array; with `runs` there is no output. `consume` False leaves
    the message in its queue. `came_from` is the direction, set on completion.
    """

    direction: str | None = None
    nbytes: int = 0
    consume: bool = True
    came_from: str = ""
    writes: ClassVar[bool] = True


class Stopped(GreenletExit):  # type: ignore[misc]
    """Raised in a kernel when its run is stopped: not an error of the kernel."""


class Backend(Protocol):
    """Executes a program's commands: a PE of the machine, or a mock that computes values only."""

    data: bool

    def submit(self, command: Command) -> None:
        """Issue the next command of the program; never waits for its completion."""

    def block(self, on: Value | Command) -> None:
        """Return once `on` is complete (its `done_ps`, and with data its array, are set)."""

    def drop(self, value: Value) -> None:
        """Free `value`, which the program no longer references, once no command needs it."""
