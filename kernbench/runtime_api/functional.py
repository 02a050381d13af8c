"""`torch.nn.functional`: the functions that shipped kernels compute on device tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from kernbench.dtypes import DType
from kernbench.errors import ArgumentError
from kernbench.runtime_api import operators
from kernbench.runtime_api.tensor import Tensor


class Functional:
    """Names, arguments and meaning are torch's; computed in f32 and rounded once."""

    @staticmethod
    def relu(input: Tensor) -> Tensor:
        """Return max(x, 0)."""
        return operators.unary("relu", input)

    @staticmethod
    def silu(input: Tensor) -> Tensor:
        """Return x sigmoid(x)."""
        return operators.unary("silu", input)

    @staticmethod
    def gelu(input: Tensor, approximate: str = "none") -> Tensor:
        """Return gelu(x) in its tanh form, the one that PE_MATH computes: say `approximate="tanh"`."""
        if approximate != "tanh":
            raise ArgumentError(f'gelu: approximate = {approximate!r}; only "tanh" has a kernel')
        return operators.unary("gelu", input)

    @staticmethod
    def softmax(input: Tensor, dim: int | None = None, dtype: DType | str | None = None) -> Tensor:
        """Return softmax along `dim`."""
        return operators.softmax(input, dim, dtype)

    @staticmethod
    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x w^T (+ bias)."""
        return operators.linear(input, weight, bias)

    @staticmethod
    def rms_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) (* weight) over the last dim; eps is that of float32 unless given."""
        y = operators.norm("rms_norm", input, normalized_shape, 1.1920929e-07 if eps is None else eps)
        return y if weight is None else y * weight

    @staticmethod
    def layer_norm(
        input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        """Return (x - mean) / sqrt(var + eps) (* weight) (+ bias) over the last dim."""
        y = operators.norm("layer_norm", input, normalized_shape, eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    @staticmethod
    def scaled_dot_product_attention(
        query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None
    ) -> Tensor:
        """Return softmax(query key^T scale) value; scale is 1 / sqrt(head size) unless given. There is no mask."""
        factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
        scores = operators.matmul(query, key.transpose(-2, -1)) * factor
        return operators.matmul(operators.softmax(scores, -1), value)


class Nn:
    """`torch.nn`: functions only, no modules."""

    functional = Functional
