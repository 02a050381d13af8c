"""Random kernels against numpy, to the bit or to a stated error; hostile ones, each to an error with its line."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import session
from tests.fuzz.report import Report

MACHINE = "preset:small"
TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
    "i8": np.int8,
}
FLOATS = ("f32", "f16", "bf16")
# Reductions add in an order of their own: error against float64, in units of the last place of the result's type.
SUM_ULP, DOT_ULP = 8, 8


def wide(x: np.ndarray) -> np.ndarray:
    """Return an array in the type that numpy computes in before it rounds."""
    return x.astype(np.float32) if x.dtype in (np.float16, ml_dtypes.bfloat16) else x


class Drawn:
    """A random kernel: steps that both `tl` and numpy can do, on two operands of one type."""

    def __init__(self, seed: int) -> None:
        chosen = self.chosen = random.Random(seed)
        self.name = chosen.choice(list(TYPES))
        self.dtype = np.dtype(TYPES[self.name])
        self.shape = chosen.choice([(1,), (7,), (64,), (33,), (5, 3), (16, 16), (1, 9), (13, 8)])
        self.steps = [self._step() for _ in range(chosen.randrange(1, 7))]
        self.end = chosen.choice(["tile", "tile", "sum", "max", "min", "dot" if self._has_dot() else "tile"])
        rng = np.random.default_rng(seed)
        least = -9 if chosen.random() < 0.7 else 0
        self.given = [rng.integers(least, 10, self.shape).astype(self.dtype) for _ in "ab"]
        if self.name in FLOATS and chosen.random() < 0.7:
            self.given = [rng.normal(size=self.shape).astype(self.dtype) for _ in "ab"]

    def _has_dot(self) -> bool:
        return len(self.shape) == 2 and self.name in FLOATS

    def _step(self) -> tuple[str, float]:
        names = ["add", "sub", "mul", "maximum", "minimum", "where", "abs", "scalar", "neg", "trans2"]
        if self.name in FLOATS:
            names += ["div", "exp", "sqrt", "sigmoid", "fma"]
        return self.chosen.choice(names), self.chosen.choice([1, 2, 3, -2])

    def kernel(self, a_ptr: Any, b_ptr: Any, out_ptr: Any, *, tl: Any) -> None:
        x, y = tl.load(a_ptr, shape=self.shape), tl.load(b_ptr, shape=self.shape)
        for name, value in self.steps:
            x, y = self._tl(tl, name, value, x, y), x
        if self.end == "dot":
            tl.store(out_ptr, tl.dot(x, tl.trans(y)))
        else:
            tl.store(out_ptr, x if self.end == "tile" else getattr(tl, self.end)(x))

    def _tl(self, tl: Any, name: str, value: float, x: Any, y: Any) -> Any:
        calls: dict[str, Callable[[], Any]] = {
            "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "div": lambda: (x / y).to(x.dtype),
            "neg": lambda: -x, "maximum": lambda: tl.maximum(x, y), "minimum": lambda: tl.minimum(x, y),
            "abs": lambda: tl.abs(x),
            "where": lambda: tl.where(x > y, x, y), "scalar": lambda: x * int(value) + 1, "exp": lambda: tl.exp(x),
            "sqrt": lambda: tl.sqrt(tl.abs(x)), "sigmoid": lambda: tl.sigmoid(x), "fma": lambda: tl.fma(x, y, x),
            "trans2": lambda: tl.trans(tl.trans(x)) if len(self.shape) == 2 else x,
        }  # fmt: skip
        return calls[name]()

    def expected(self) -> np.ndarray:
        """Return what numpy makes of it, each step rounded once."""
        x, y = self.given
        with np.errstate(all="ignore"):
            for name, value in self.steps:
                x, y = self._numpy(name, value, x, y), x
            if self.end in ("max", "min"):
                return np.asarray((np.fmax if self.end == "max" else np.fmin).reduce(wide(x), axis=None)).astype(
                    x.dtype
                )
            if self.end == "sum":
                return np.asarray(x.astype(np.float64 if self.name in FLOATS else np.int64).sum())
            if self.end == "dot":
                return x.astype(np.float64) @ y.astype(np.float64).T
        return x

    def _numpy(self, name: str, value: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = wide(x), wide(y)
        calls: dict[str, Callable[[], Any]] = {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b, "neg": lambda: -a,
            "maximum": lambda: np.fmax(a, b), "minimum": lambda: np.fmin(a, b), "abs": lambda: np.abs(a),
            "where": lambda: np.where(a > b, a, b), "exp": lambda: np.exp(a), "sqrt": lambda: np.sqrt(np.abs(a)),
            "sigmoid": lambda: 1 / (1 + np.exp(-a)), "trans2": lambda: a,
            "scalar": lambda: wide((a * a.dtype.type(value)).astype(x.dtype)) + a.dtype.type(1),
            "fma": lambda: (x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)),
        }  # fmt: skip
        return np.asarray(calls[name]()).astype(x.dtype)

    def wrong(self, got: np.ndarray, want: np.ndarray) -> str:
        """Return how the result differs; empty if it does not by more than is stated."""
        if got.shape != want.shape:
            return f"shape {got.shape}, expected {want.shape}"
        if self.end in ("sum", "dot"):
            return self._far(got, want)
        kind = np.uint16 if got.dtype.itemsize == 2 else got.dtype
        a, b = np.asarray(got), np.asarray(want, got.dtype)
        same = (a.view(kind) == b.view(kind)) | ((wide(a) == wide(b)) | (wide(a) != wide(a)) & (wide(b) != wide(b)))
        return "" if same.all() else f"{(~same).sum()} of {same.size} elements differ: {a[~same][:3]} != {b[~same][:3]}"

    def _far(self, got: np.ndarray, want: np.ndarray) -> str:
        if self.name not in FLOATS:
            # i8 sums are i32; i32 wraps.
            same = got.astype(np.int64) == want.astype(np.int64).astype(got.dtype).astype(np.int64)
            return "" if np.all(same) else f"{got} != {want}"
        exact = got.astype(np.float64)
        finite = np.isfinite(want) & np.isfinite(exact)
        terms = max(self.shape)
        eps = 2.0**-23 if got.dtype == np.float32 else float(ml_dtypes.finfo(got.dtype).eps)
        scale = np.maximum(np.abs(want), self._size())
        bound = (SUM_ULP * eps + terms * 2.0**-23) * scale
        with np.errstate(all="ignore"):
            bad = finite & (np.abs(exact - want) > bound)
        return "" if not np.any(bad) else f"{exact[bad][:3]} differs from {want[bad][:3]} by more than {bound[bad][:3]}"

    def _size(self) -> np.ndarray | float:
        """Return the sum of the sizes of all terms, which bounds what rounding can do."""
        x, y = self.given
        with np.errstate(all="ignore"):
            for name, value in self.steps:
                x, y = self._numpy(name, value, x, y), x
            a, b = np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64))
            return a.sum() if self.end == "sum" else a @ b.T


def run(seeds: range, _folder: object = None) -> Report:
    """Run the random kernels of `seeds` on the machine, and compare with numpy."""
    report = Report("kernels against numpy")
    for seed in seeds:
        report.tried += 1
        drawn = Drawn(seed)
        try:
            want = drawn.expected()
            with session(MACHINE, data=True, limits={"host_s": 10}) as torch:
                a, b = (torch.from_numpy(x).to("ahbm") for x in drawn.given)
                dtype = want.dtype
                if drawn.end in ("sum", "dot"):
                    dtype = np.dtype(
                        np.int32 if drawn.name not in FLOATS else np.float32 if drawn.end == "dot" else drawn.dtype
                    )
                out = torch.from_numpy(np.zeros(want.shape, dtype)).to("ahbm")
                torch.launch("fuzz", drawn.kernel, a, b, out)
                wrong = drawn.wrong(out.numpy(), want)
        except BaseException as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
            if isinstance(error, KeyboardInterrupt):
                raise
        if wrong:
            report.failed(seed, f"{drawn.name} {drawn.shape} {drawn.steps} {drawn.end}: {wrong}")
    return report


# Errors that a kernel may raise, of any kind.
RAISED = (
    "ValueError('no')", "KeyError('no')", "RecursionError", "MemoryError", "StopIteration(3)", "GeneratorExit",
    "SystemExit(0)", "SystemExit(3)", "BaseException('no')", "OSError(5, 'no')",
    "UnicodeDecodeError('utf-8', b'', 0, 1, 'no')",
    "AssertionError", "type('Own', (BaseException,), {})('mine')",
    "type('Odd', (Exception,), {'__str__': lambda s: 1 / 0})()",
)  # fmt: skip
# Bodies of kernels that must end in an error; `x` is a pointer to 64 f32, `n` a number.
BODIES = {
    "divide": ("tl.arange(0, 4) // 0", "tl.arange(0, 4) % 0", "1 // 0", "tl.cdiv(4, 0)"),
    "bounds": (
        "tl.load(x + n * 1000, shape=(4,))", "tl.store(x - n * 99, tl.zeros((4,), tl.float32))",
        "tl.load(x, shape=(n * 1000,))", "tl.load(x + tl.arange(0, 128) * n)",
        "tl.store(x + (1 << 50), tl.zeros((4,), tl.float32))",
    ),
    "room": (
        "tl.zeros((1 << 14, 1 << (n + 12)), tl.float32) + tl.load(x, shape=(1,))",
        "[tl.load(x, shape=(64,)) for _ in range(1 << 20)][0]", "tl.load(x, shape=(1 << 40,))",
    ),
    "shape": (
        "tl.load(x, shape=(3,)) + tl.load(x, shape=(4,))", "tl.load(x, shape=(0,))", "tl.load(x, shape=(-n,))",
        "tl.load(x, shape='a')", "tl.load(x, shape=(4,)).reshape(3)", "tl.load(x, shape=(2.5,))",
        "tl.dot(tl.load(x, shape=(4, 4)), tl.load(x, shape=(8, 8)))", "tl.sum(tl.load(x, shape=(4,)), axis=n)",
        "tl.arange(4, 0)", "tl.arange(0, 1 << 60)", "tl.full((4,), 'a', tl.float32)",
    ),
    "name": (
        "tl.no_such(x)", "undefined", "tl.float33", "x.no_such", "tl.load(x, shape=(4,)).no_such()",
        "tl.load(x, size=4)",
    ),
    "kind": (
        "tl.load(None)", "tl.load(3)", "tl.load('x')", "x + 'a'", "x * 2", "x + 1.5", "tl.load(x, shape=(4,)) + None",
        "tl.store(x, None)", "tl.store(x, 'a')", "tl.store(None, tl.arange(0, 4))", "tl.exp(None)", "tl.wait(3)",
        "tl.load(x, shape=(4,), dtype='f99')", "if_tile(tl.load(x, shape=(4,)))", "tl.load(x, shape=(4,)).to('no')",
        "tl.program_id(n + 3)", "tl.num_programs(-n)", "len(x)", "x[0]", "tl.load(x, shape=(4,))[n]",
        "float(tl.load(x, shape=(4,)))", "list(tl.load(x, shape=(4,)))",
    ),
    "queue": (
        "tl.send(tl.load(x, shape=(4,)), 'right')", "tl.recv('left', shape=(4,))", "tl.send(None, None)",
        "tl.recv_async('E', shape=(4,))",
    ),
    "composite": (
        "tl.composite('no', x, x, x)", "tl.composite('gemm', x, x, x)", "tl.composite('gemm', None, None, None)",
        "tl.composite()",
    ),
    "late": ("kept.append(tl) or kept[0].load(x, shape=(4,))", "kept.append(tl.load(x, shape=(4,))) or kept[0] + 1"),
    "depth": ("deep(n)", "[x for x in iter(lambda: deep(1), 0)]"),
    "time": ("spin()", "commands(x, tl)", "caught(x, tl)"),
    "raise": tuple(f"throw({text})" for text in RAISED),
    "kinds of kernel": ("(yield)", "await_it"),
}  # fmt: skip


HELPERS = """
kept = []
def throw(error):
    raise error
def deep(n):
    return deep(n + 1) + 1
def spin():
    while True:
        pass
def commands(x, tl):
    while True:
        tl.store(x, tl.load(x, shape=(4,)) + 1)
def caught(x, tl):
    while True:
        try:
            tl.store(x, tl.load(x, shape=(4,)) + 1)
        except Exception:
            pass
def if_tile(tile):
    return 1 if tile > 0 else 2
"""


def run_hostile(seeds: range, _folder: object = None) -> Report:
    """Run the hostile kernels in turn, in a launch or in a rank's; each must end in an error that names its line."""
    report = Report("hostile kernels")
    known = [(name, body) for name, several in BODIES.items() for body in several]
    for seed in seeds:
        name, body = known[seed % len(known)]
        chosen = random.Random(seed)
        n = chosen.choice([1, 2, 3, 7])
        space: dict[str, Any] = {"__name__": "hostile"}
        head = "async def" if body == "await_it" else "def"
        result = "None" if body == "await_it" else body
        source = f"{HELPERS}\n{head} kernel(x, n, *, tl):\n    tl.load(x, shape=(8,))\n    return {result}\n"
        exec(compile(source, f"<hostile {seed}>", "exec"), space)
        report.tried += 1
        begin = time.process_time()  # other processes of the host do not count
        try:
            rounds = 2 if name == "late" else 1
            for _ in range(rounds):
                told = _outcome(space["kernel"], n, chosen.random() < 0.3, 0.5 if name == "time" else 20)
        except BaseException as error:
            told = error
            if isinstance(error, KeyboardInterrupt):
                raise
        seconds = time.process_time() - begin
        report.most("slowest [CPU s]", seconds)
        if name == "late" and told is None and n:  # a tile of a program that runs is what it is
            continue
        if not isinstance(told, (KernbenchError, TypeError)):
            report.failed(seed, f"{body}: {'no error' if told is None else f'{type(told).__name__}: {told}'}")
        elif f"<hostile {seed}>" not in str(told):
            report.failed(seed, f"{body}: the error names no line: {str(told)[:300]}")
        elif seconds > 10:
            report.failed(seed, f"{body}: took {seconds:.1f} s")
    return report


def _outcome(kernel: Any, n: int, in_rank: bool, host_s: float) -> BaseException | None:
    def program(torch: Any) -> None:
        x = torch.zeros(64, dtype=torch.float32, device="ahbm")
        torch.launch("hostile", kernel, x, n)
        x.numpy()

    try:
        with session(MACHINE, data=True, limits={"host_s": host_s}) as torch:
            if in_rank:
                torch.multiprocessing.spawn(lambda rank: program(torch), nprocs=1)
            else:
                program(torch)
    except torch.multiprocessing.ProcessRaisedException as error:
        return error.__cause__
    except Exception as error:  # noqa: BLE001
        return error
    return None
