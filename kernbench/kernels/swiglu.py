"""SwiGLU: the gated activation of Llama's feed-forward layers."""

from __future__ import annotations

from kernbench.kernels.partition import blocks
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def swiglu(gate_ptr: Pointer, up_ptr: Pointer, out_ptr: Pointer, n: int, block: int = 4096, *, tl: TLContext) -> None:
    """Write silu(gate) up to out, element by element over n values, computed in f32."""
    for start, size in blocks(n, block, tl):
        gate = tl.load(gate_ptr + start, shape=(size,)).to(tl.float32)
        up = tl.load(up_ptr + start, shape=(size,)).to(tl.float32)
        tl.store(out_ptr + start, gate * tl.sigmoid(gate) * up)
