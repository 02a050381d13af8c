"""A tensor's parts with one number, element by element: every PE on its own, wherever they lie."""

from __future__ import annotations

from kernbench.kernels.elementwise import BLOCK
from kernbench.kernels.parts import FUNCTIONS, Parts
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def scalar(name: str, x_ptr: Pointer, value: float, out_ptr: Pointer, parts: Parts, *, tl: TLContext) -> None:
    """Write a function of x, which lies as out does, and of `value` to out; computed in f32, as torch does it."""
    for first, n in parts.get((int(tl.program_id(1)), int(tl.program_id(0))), ()):
        for at in range(first, first + n, BLOCK):
            size = min(BLOCK, first + n - at)
            x = tl.load(x_ptr + at, shape=(size,)).to(tl.float32)
            tl.store(out_ptr + at, FUNCTIONS[name](tl, x, value))
