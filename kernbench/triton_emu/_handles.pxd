from kernbench.components._command cimport Backend, Command, Recv, Value


cdef class Owner:
    cdef public Backend _backend
    cdef public bint _data, _open


cdef class Tensor:
    pass


cdef class Pending:
    cdef public Command command


cdef class Tile(Tensor):
    cdef public Value _held
    cdef public bint _constant
    cdef public Tile _base
    cdef public tuple shape
    cdef public Owner _tl
    cdef public object dtype, _access, _places, _undefined
    cdef public Recv _recv
    cpdef _with(self, str name, other)
