cimport cython
from libc.stdint cimport int64_t


cdef class Value:
    cdef object __weakref__
    cdef public object shape, dtype, array, space
    cdef public tuple waiters
    cdef public int64_t nbytes, maker, done_by, done_ps
    cdef public int pending
    cdef public bint dropped
    @cython.locals(nbytes=int64_t, size=int64_t, sizes=tuple)
    cpdef opens(self, shape, dtype)
# A dataclass that is compiled has its fields in this order.
cdef class Command:
    cdef public str name
    cdef public tuple inputs
    cdef public Value output
    cdef public object compute
    cdef public int64_t flops
    cdef public object tag
    cdef public tuple runs
    cdef public int64_t done_ps, done_by
    cdef public tuple waiters
    cdef public int64_t id
    cdef public bint atomic, releases
    cpdef opens(self, name, inputs, output, compute, tag)
    cpdef touches(self)
cdef class Load(Command):
    cdef public bint tiled
cdef class Store(Command):
    cdef public bint tiled
cdef class Vector(Command):
    cdef public tuple work
cdef class Dot(Command):
    cdef public object mkn
cdef class Composite(Command):
    cdef public object op, a, b, out, acc, extra, epilogue
@cython.final
cdef class Send(Command):
    cdef public object direction
    cdef public int64_t nbytes
    cdef public object dtype
@cython.final
cdef class Recv(Command):
    cdef public object direction
    cdef public int64_t nbytes
    cdef public bint consume
    cdef public object came_from
