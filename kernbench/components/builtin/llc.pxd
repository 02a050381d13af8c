cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._core cimport Core
from kernbench.sim_engine._network cimport Network
from kernbench.sim_engine._transaction cimport Reply, Route, Transaction

cdef int64_t _EMPTY
cdef int _LOOKED_UP, _WRITTEN


@cython.final
cdef class CachedRead(Reply):
    cdef public int64_t came_ps, hits
    cdef public list missed
    cpdef came(self, Transaction txn, int64_t now)


cdef class LlcSlice(Callee):
    cdef public object below, memory
    cdef public Network network
    cdef public Core core
    cdef public str name
    cdef public Route route
    cdef public int64_t line_bytes, hit_ps, ways, sets
    cdef public int line_bits, more_bits
    cdef public int64_t[::1] held
    cdef public dict filling, opened
    @cython.locals(read=CachedRead)
    cpdef on_read(self, Transaction txn)
    cpdef on_write(self, Transaction txn)
    @cython.locals(line=int64_t)
    cpdef _look_up(self, Transaction txn, CachedRead read)
    @cython.locals(waiting=list)
    cpdef _touch(self, int64_t line, CachedRead read)
    @cython.locals(held=int64_t[::1], first=int64_t, moved=int64_t, i=int64_t)
    cpdef bint _use(self, int64_t line, bint dirty) except -1
    @cython.locals(read=CachedRead, fill=Transaction, line=int64_t)
    cpdef woken(self, int what, arg)
    @cython.locals(fill=Transaction, read=CachedRead, reads=list, opener=int64_t)
    cpdef landed(self, arg)
    @cython.locals(txn=Transaction, arrived=int64_t)
    cpdef _waited(self, CachedRead read, Transaction fill, int64_t opener)
    cpdef _reply(self, CachedRead read, int64_t lines)
