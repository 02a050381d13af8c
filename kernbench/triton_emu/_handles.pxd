from kernbench.components._command cimport Command, Recv, Value


cdef class Tensor:
    pass


cdef class Pending:
    cdef public Command command


cdef class Owner:
    cdef public object _backend
    cdef public bint _data, _open
    cpdef Tile _binary(self, str name, a, b)
    cpdef Tile _fold(self, array, dtype)


cdef class Tile(Tensor):
    cdef public Owner _tl
    cdef public Value _held
    cdef public bint _constant
    cdef public Tile _base
    cdef public tuple shape
    cdef public object dtype, _access, _places, _undefined
    cdef public Recv _recv
    cpdef _with(self, str name, other)
