"""Work of a whole device whose PEs share memory, as it is measured: with the launch, and caches warm or cold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench._dtypes import as_dtype
from kernbench.config import MachineConfig
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine

_ROWS = DPPolicy(cube="replicate", pe="row_wise")


def _device_ns(machine: Machine, prepare: Callable[[RuntimeContext], Callable[[], object]], l2: str) -> float:
    """Time of work on a device [ns], from its launch: the first time, with the caches empty, or the second time."""
    took = 0.0

    def program(torch: RuntimeContext) -> None:
        nonlocal took
        work = prepare(torch)
        for _ in range(1 if l2 == "cold" else 2):
            torch.ahbm.synchronize()
            start = torch.engine.now_ns
            work()
            torch.ahbm.synchronize()
            took = float(torch.engine.now_ns - start)

    run_program(machine, program, log="off")
    return took


def device_product(machine: Machine, m: int, k: int, n: int, dtype: str, l2: str) -> float:
    """Time of a product on all PEs of a device, the launch included [ns]."""

    def prepare(torch: RuntimeContext) -> Callable[[], object]:
        a, b, out = (torch.empty(x, dtype=as_dtype(dtype), device="ahbm", dp=_ROWS) for x in ((m, k), (k, n), (m, n)))
        return lambda: torch.matmul(a, b, out=out)

    return _device_ns(machine, prepare, l2)


def device_attention(
    machine: Machine, *, q_len: int, kv_len: int, heads: int, kv_heads: int, head_dim: int, batch: int = 1,
    dtype: str = "f16", l2: str = "warm",
) -> float:  # fmt: skip
    """Time of causal attention on a device, the launch included [ns]."""

    def prepare(torch: RuntimeContext) -> Callable[[], object]:
        lengths = ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
        q, k, v = (torch.empty(batch, *x, head_dim, dtype=as_dtype(dtype), device="ahbm") for x in lengths)
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k, v, is_causal=q_len > 1, enable_gqa=heads != kv_heads)

    return _device_ns(machine, prepare, l2)


def refuse_attention(_: MachineConfig, *, q_len: int, kv_len: int, heads: int, kv_heads: int, **__: Any) -> str:
    if heads % kv_heads:
        return f"heads = {heads} is no multiple of kv_heads = {kv_heads}"
    return "" if q_len in (1, kv_len) else f"q_len = {q_len}: prefill (kv_len = {kv_len}) and decode (1) are compared"
