cimport cython
from libc.stdint cimport int64_t


cdef class Route:
    cdef public int64_t base, nbytes, flits, logged
    cdef public list counter
    cdef public tuple links
    cdef public dict small
    cdef public Route reply
    @cython.locals(count=int64_t)
    cpdef int64_t key(self)
    @cython.locals(n=int64_t, size=int64_t)
    cpdef count(self, int64_t nbytes)
    cpdef count_flits(self, int64_t n, int64_t size)
