cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._log_table cimport LogTable


cdef class Waits:
    cdef public dict last, first
    cdef public LogTable table, kept
    cpdef follow(self, int64_t key)
    cpdef int64_t of(self, int64_t key) except? -1
    cpdef landed(self, int64_t key, int64_t wait)
    @cython.locals(wait=int64_t, at=int64_t)
    cpdef int64_t forget(self, int64_t key) except? -1
    @cython.locals(rows=int64_t[::1], i=int64_t, number=int64_t)
    cpdef int64_t add(self, int64_t before, int64_t link, int64_t front, int64_t ps) except -1
    @cython.locals(rows=int64_t[::1], kept=int64_t[::1], i=int64_t, j=int64_t)
    cdef int64_t _keep(self, int64_t number) except -1
