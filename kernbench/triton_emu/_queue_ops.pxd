cimport cython

from kernbench.components._command cimport Recv, Send, Value
from kernbench.triton_emu._handles cimport Pending, Tile
from kernbench.triton_emu._program cimport Program, shape_of


cdef class Arrival(Pending):
    cdef public Tile tile


@cython.locals(value=Value, command=Send)
cdef _send(Program tl, str dir, Tile tile)
@cython.locals(out=Value, tile=Tile, command=Recv)
cdef Tile _receive(Program tl, dir, tuple sizes, dtype, bint consume)
@cython.locals(tile=Tile)
cdef Tile _received(Program tl, dir, tuple sizes, dtype, bint consume)
cdef Recv _into_memory(Program tl, dir, tuple sizes, dtype, dst)
