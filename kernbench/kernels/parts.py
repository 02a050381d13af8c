"""Element by element on a tensor's parts: every PE on its own, wherever they lie, copies included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernbench.errors import KernelError
from kernbench.kernels.elementwise import BLOCK
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

Parts = Mapping[tuple[int, int], Sequence[tuple[int, int]]]  # (cube, PE) to (first element, elements)

FUNCTIONS: dict[str, Callable[..., Tile]] = {
    "add": lambda _tl, x, y: x + y,
    "mul": lambda _tl, x, y: x * y,
    "relu": lambda tl, x: tl.maximum(x, 0.0),
    "silu": lambda tl, x: x * tl.sigmoid(x),
    "gelu": lambda tl, x: x * tl.sigmoid(x * tl.fma(x * x, 0.044715, 1.0) * 1.5957691216057308),
}


def elementwise(name: str, operands: Sequence[Pointer], out_ptr: Pointer, parts: Parts, *, tl: TLContext) -> None:
    """Write a function of the operands, all of which lie alike, to out; computed in f32."""
    if name not in FUNCTIONS:
        raise KernelError(f"function {name!r} is unknown; known: {', '.join(FUNCTIONS)}")
    for first, n in parts.get((int(tl.program_id(1)), int(tl.program_id(0))), ()):
        for at in range(first, first + n, BLOCK):
            size = min(BLOCK, first + n - at)
            tiles = [tl.load(ptr + at, shape=(size,)).to(tl.float32) for ptr in operands]
            tl.store(out_ptr + at, FUNCTIONS[name](tl, *tiles))
