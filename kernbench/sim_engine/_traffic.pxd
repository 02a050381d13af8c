cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core as CCore
from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._transaction cimport Route as CRoute


cdef class Terminal(Callee):
    cdef CCore _core
    cdef list _routes
    cdef int64_t _nbytes, _next
    cdef int64_t[::1] _to, _sent, _arrived
    cdef readonly object arrived_ps
    @cython.locals(route=CRoute, i=int64_t, n=int64_t)
    cpdef woken(self, int what, arg)
    @cython.locals(i=int64_t)
    cpdef landed(self, arg)
