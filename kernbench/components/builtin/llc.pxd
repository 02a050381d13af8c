cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core
from kernbench.sim_engine._transaction cimport Reply, Route, Transaction


@cython.final
cdef class CachedRead(Reply):
    cdef public int64_t came_ps, hits
    cdef public list missed


cdef class LlcSlice:
    cdef public object engine, network, below
    cdef public Core core
    cdef public str name
    cdef public Route route
    cdef public int64_t line_bytes, hit_ps, ways, sets
    cdef public int line_bits, more_bits
    cdef public dict held, filling, opened
    @cython.locals(lines=list, line=int64_t, present=bint, read=CachedRead)
    cpdef on_read(self, Transaction txn)
    @cython.locals(line=int64_t)
    cpdef on_write(self, Transaction txn)
    cpdef list _lines(self, Transaction txn)
    @cython.locals(number=int64_t, held=dict, back=Transaction)
    cpdef bint _use(self, int64_t line, bint dirty) except -1
    @cython.locals(fill=Transaction, line=int64_t)
    cpdef _looked_up(self, CachedRead read)
    @cython.locals(read=CachedRead, reads=list)
    cpdef _filled(self, Transaction fill)
    @cython.locals(txn=Transaction, arrived=int64_t)
    cpdef _waited(self, CachedRead read, Transaction fill)
    cpdef _reply(self, CachedRead read, int64_t lines)
