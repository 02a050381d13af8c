cimport cython

from kernbench.components._command cimport Dot, Value
from kernbench.triton_emu._handles cimport Tile
from kernbench.triton_emu._program cimport Program


@cython.locals(mkn=tuple, inputs=list, added=Tile, out=Value, command=Dot, result=Tile)
cdef Tile _dot(Program tl, Tile input, Tile other, acc, out_dtype)
