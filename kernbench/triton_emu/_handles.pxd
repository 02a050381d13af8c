cdef class Pending
cdef class Tile

from kernbench.components._command cimport Command, Recv, Value
from kernbench.triton_emu._program cimport Program


cdef class Tensor:
    pass


cdef class Pending:
    cdef public Command command


cdef class Tile(Tensor):
    cdef public Value _held
    cdef public bint _constant
    cdef public Tile _base
    cdef public tuple shape
    cdef public Program _tl
    cdef public object dtype, _access, _places, _undefined
    cdef public Recv _recv
    cpdef opens(self, Program tl, Value value)
    cpdef _with(self, str name, other)
