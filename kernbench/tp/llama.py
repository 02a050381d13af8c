"""A block of Llama under tensor parallelism: RMSNorm, QKV, rotary, attention, O, and SwiGLU, forward only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.dtensor._redistribute import relaid
from kernbench.kernels import elementwise
from kernbench.kernels.attention import attention
from kernbench.kernels.elementwise import swiglu
from kernbench.kernels.llama import rmsnorm, split_heads
from kernbench.ops.matmul import BY_ROWS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp._layers import ColumnParallelLinear, ModelParallelConfig, RowParallelLinear
from kernbench.tp._mappings import rank_share


def llama_block(x: np.ndarray, weights: Mapping[str, np.ndarray], sizes: LlamaConfig) -> np.ndarray:
    """Compute a block's output for x [sequence, batch, hidden] with numpy, with the weights of `LlamaConfig.shapes`."""
    w = weights
    x = x + dense_attention(_norm(x, w["norm1"], sizes.eps) @ w["qkv"].T, sizes) @ w["o"].T
    y = _norm(x, w["norm2"], sizes.eps)
    gate = y @ w["gate"].T
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["up"].T)) @ w["down"].T


def dense_attention(qkv: np.ndarray, sizes: LlamaConfig) -> np.ndarray:
    """Causal attention with rotary embedding of a fused projection: [sequence, batch, heads * head_dim]."""
    tokens, batch, _ = qkv.shape
    group, d = sizes.group, sizes.head_dim
    heads = qkv.reshape(tokens, batch, sizes.kv_heads, group + 2, d)
    turn = np.exp(1j * sizes.angles(tokens))[:, None, None, None]
    z = (heads[..., : d // 2] + 1j * heads[..., d // 2 :]) * turn
    turned = np.concatenate([z.real, z.imag], -1).astype(qkv.dtype)
    q, k, v = turned[..., :group, :], turned[..., group, :], heads[..., group + 1, :]
    s = np.einsum("qbhgd,kbhd->bhgqk", q, k) / np.sqrt(d)
    s = np.where(np.tri(tokens, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhgqk,kbhd->qbhgd", p / p.sum(-1, keepdims=True), v).reshape(tokens, batch, -1)


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a block; the defaults are those of Llama-3 70B.

    Attributes
    ----------
    hidden, ffn : int
        Width of the residual stream, and of the feed-forward layer.
    heads, kv_heads, head_dim : int
        Query heads, key/value heads, elements of each.
    eps, theta : float
        Epsilon of RMSNorm, and the base of the rotary angles.
    """

    hidden: int = 8192
    ffn: int = 28672
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 128
    eps: float = 1e-5
    theta: float = 500000.0

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every unsharded weight, (outputs, inputs).

        `qkv` holds, for each kv head, its query heads, then k, then v, as in Megatron-LM.
        """
        h, f, d = self.hidden, self.ffn, self.head_dim
        qkv = self.kv_heads * (self.group + 2) * d
        return {
            "norm1": (h,), "qkv": (qkv, h), "o": (h, self.heads * d),
            "norm2": (h,), "gate": (f, h), "up": (f, h), "down": (h, f),
        }  # fmt: skip

    def angles(self, tokens: int) -> np.ndarray:
        """Rotary angles [rad], (tokens, head_dim / 2)."""
        half = self.head_dim // 2
        return np.arange(tokens)[:, None] * self.theta ** (-np.arange(half) / half)


class LlamaBlock:
    """One Llama block; activations are [sequence, batch, hidden], by rows over the PEs, and identical on every rank.

    Heads and feed-forward columns are distributed over the ranks of the tensor group, which must divide the kv heads;
    each half of the block ends with one all-reduce.

    Parameters
    ----------
    sizes : LlamaConfig
    config : ModelParallelConfig
        Sequence parallelism is not part of the block.
    """

    def __init__(self, sizes: LlamaConfig, config: ModelParallelConfig) -> None:
        self.sizes, self.config = sizes, config
        shapes = sizes.shapes()

        def column(name: str) -> ColumnParallelLinear:
            return ColumnParallelLinear(*shapes[name][::-1], config=config, bias=False)

        def row(name: str) -> RowParallelLinear:
            return RowParallelLinear(*shapes[name][::-1], config=config, bias=False)

        self.qkv, self.gate, self.up = column("qkv"), column("gate"), column("up")
        self.o, self.down = row("o"), row("down")
        self.kv_heads = rank_share(sizes.kv_heads, self.qkv.mesh, "LlamaBlock: kv_heads")
        self._torch: Any = self.qkv.mesh.torch
        self.norm1, self.norm2 = (self._weight(np.ones(sizes.hidden)) for _ in range(2))

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Set this rank's parts of the weights that `LlamaConfig.shapes` names, in no simulated time."""
        for name in ("qkv", "o", "gate", "up", "down"):
            getattr(self, name).load(weights[name])
        self.norm1, self.norm2 = self._weight(weights["norm1"]), self._weight(weights["norm2"])

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; `x` is unchanged."""
        x = relaid(x, BY_ROWS)
        x = self._add(x, self._attention(self._norm(x, self.norm1)))
        return self._add(x, self._feed_forward(self._norm(x, self.norm2)))

    __call__ = forward

    def _weight(self, values: np.ndarray) -> Tensor:
        dp = DPPolicy()  # a copy on each PE
        return self._torch.tensor(values, dtype=self.config.params_dtype, device="ahbm", dp=dp)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        rows, columns = x.numel() // self.sizes.hidden, self.sizes.hidden
        out = self._torch.empty_like(x)
        self._launch("rmsnorm", rmsnorm, x, weight, out, rows, columns, self.sizes.eps)
        return out

    def _attention(self, x: Tensor) -> Tensor:
        sizes, torch = self.sizes, self._torch
        tokens, batch = x.shape[0], x.shape[1]
        kv, group, d = self.kv_heads, sizes.group, sizes.head_dim
        qkv, _ = self.qkv(x)
        q, out = self._new("q", batch * kv, tokens, group, d), self._new("out", tokens, batch, kv * group * d)
        k, v = (self._new("kv", batch * kv, tokens, d) for _ in range(2))
        angles = sizes.angles(tokens)
        cos, sin = (
            torch.tensor(f(angles), dtype=torch.float32, device="ahbm", dp=DPPolicy(num_cubes=1, num_pes=1))
            for f in (np.cos, np.sin)
        )
        self._launch("rotary", split_heads, qkv, cos, sin, q, k, v, tokens, batch, kv, group, d)
        self._launch("attention", attention, q, k, v, out, batch * kv, group, tokens, tokens, d, True, True)
        return self.o(out)[0]

    def _feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x)[0], self.up(x)[0]
        hidden = self._torch.empty_like(gate)
        self._launch("swiglu", swiglu, gate, up, hidden, gate.numel())
        return self.down(hidden)[0]

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        out = self._torch.empty_like(x)
        self._launch("residual", elementwise.add, x, y, out, x.numel())
        return out

    def _launch(self, name: str, kernel: Callable[..., object], *args: Any) -> None:
        """Run a kernel on all PEs, also those without tokens."""
        host, handles = self._torch._host, [x._handle for x in args if isinstance(x, DeviceTensor)]
        values = tuple(x.pointer if isinstance(x, DeviceTensor) else x for x in args)
        host.launch(host.current, host.pes, kernel, values, name, handles)

    def _new(self, name: str, *shape: int) -> Tensor:
        return self._torch.empty(*shape, dtype=self.config.params_dtype, device="ahbm", dp=BY_ROWS, name=name)
