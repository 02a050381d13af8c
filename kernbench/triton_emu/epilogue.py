"""The epilogue of a composite: what happens to an output tile between the accumulator and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.errors import KernelError
from kernbench.triton_emu.handles import nearest
from kernbench.triton_emu.vector_ops import sigmoid

Step = Callable[..., np.ndarray]


def gelu(x: np.ndarray) -> np.ndarray:
    """Return x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), the tanh form of GELU."""
    inner = np.float32(1.5957691216057308) * x * (1 + np.float32(0.044715) * x * x)
    y: np.ndarray = x * sigmoid(inner)
    return y


# Name -> operations of PE_MATH, function. With an operand: bias (one row), add (a whole matrix), scale (a number).
PLAIN: dict[str, tuple[tuple[str, ...], Step]] = {
    "relu": (("simple",), lambda x: np.maximum(x, 0)),
    "silu": (("slow", "simple", "slow", "simple"), lambda x: x * sigmoid(x)),
    "gelu": (("simple", "simple", "simple", "slow", "simple", "slow", "simple"), gelu),
    "exp": (("slow",), np.exp),
}
WITH_OPERAND: dict[str, Step] = {"bias": np.add, "add": np.add, "scale": np.multiply}
_FORMS = '"relu", "silu", "gelu", "exp", ("bias", pointer), ("add", pointer), ("scale", number)'


def parse(item: Any) -> tuple[str, Any]:
    """Return (name, operand or None) of one epilogue item.

    Raises
    ------
    KernelError
        If there is no such item, or it lacks its operand or has one too many.
    """
    name, operand = item if isinstance(item, (tuple, list)) and len(item) == 2 else (item, None)
    if not isinstance(name, str) or name not in (*PLAIN, *WITH_OPERAND):
        raise KernelError(f"unknown epilogue item {item!r}; {nearest(str(name), [*PLAIN, *WITH_OPERAND])}")
    if (name in WITH_OPERAND) != (operand is not None):
        raise KernelError(f"epilogue item {item!r} is not complete; the items are {_FORMS}")
    return name, operand
