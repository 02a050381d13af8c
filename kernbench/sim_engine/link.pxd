cimport cython
from libc.stdint cimport int64_t
cdef class Route:
    cdef public int64_t base, nbytes, flits
    cdef public list counter
    cdef public tuple links
    cdef public dict small
    cdef public object start
    cdef public Route reply
    cdef public bint direct
    @cython.locals(count=int64_t)
    cpdef int64_t key(self)
