"""Operands with known values, and results compared with numpy: how a bench or a study checks itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import ml_dtypes
import numpy as np

from kernbench.dtypes import DType
from kernbench.errors import VerificationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor


def operand(
    torch: RuntimeContext, name: str, shape: Sequence[int], dtype: DType, dp: DPPolicy | None = None
) -> tuple[Tensor, np.ndarray | None]:
    """Return a tensor of random values on the current device, and the values (float64; None without data).

    The values are there at no simulated cost, and depend on name and shape only.
    """
    if not torch.engine.data:
        return torch.empty(shape, dtype=dtype, device="ahbm", dp=dp, name=name), None
    rng = np.random.default_rng([*name.encode(), *shape])
    drawn = rng.standard_normal(tuple(shape)) if dtype.is_floating_point else rng.integers(-8, 8, tuple(shape))
    values = drawn.astype(np.float32).astype(dtype.numpy)
    tensor = torch.tensor(values, dtype=dtype, device="ahbm", dp=dp, name=name)
    return tensor, values.astype(np.float64)


def check_product(torch: RuntimeContext, name: str, got: Tensor, a: np.ndarray | None, b: np.ndarray | None) -> None:
    """Read `got`, and with data compare it with a @ b.

    Notes
    -----
    Allowed is one unit in the last place of the result, for its rounding, and what summing K products in f32 may
    lose: K 2^-24 max|a| max|b|. Integers are exact.
    """
    atol = 0.0
    expected = None
    if a is not None and b is not None:
        expected = a @ b
        atol = a.shape[-1] * 2.0**-24 * float(np.abs(a).max() * np.abs(b).max())
    exact = not got.dtype.is_floating_point
    check(torch, name, got, expected, rtol=0.0 if exact else _eps(got.dtype), atol=0.0 if exact else atol)


def check(
    torch: RuntimeContext, name: str, got: Tensor, expected: np.ndarray | None, *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Read `got`, and with data compare it: |got - expected| <= atol + rtol |expected|.

    Raises
    ------
    VerificationError
        If an element is further off; the message names the worst one.
    """
    values = got.numpy().astype(np.float64)
    if expected is None:
        return
    torch.checks += 1
    with np.errstate(invalid="ignore", over="ignore"):
        wanted = expected.astype(got.dtype.numpy).astype(np.float64)
        error = np.abs(values - wanted) - (atol + rtol * np.abs(wanted))
    same = (values == wanted) | (np.isnan(values) & np.isnan(wanted))
    wrong = ~same & ~(error <= 0)
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(error, nan=np.inf), -np.inf)), wrong.shape)
        raise VerificationError(
            f"{name}: {int(wrong.sum())} of {prod(wrong.shape)} elements differ from numpy; the worst is "
            f"[{', '.join(map(str, worst))}] = {values[worst]:g}, expected {wanted[worst]:g} "
            f"+- {atol + rtol * abs(wanted[worst]):.2g}"
        )


def _eps(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
