cimport cython
from libc.stdint cimport int64_t

cdef int _WIDTH
cdef int64_t NONE


cdef class Cause:
    cdef public int64_t event, command
    cdef public int depth
    cdef public Cause before
    cdef public int64_t[10] parts
    cdef begins(self, int64_t event, int64_t command, Cause before, int depth)
    @cython.locals(found=Cause, i=int)
    cpdef Cause then(self, int64_t command, int part, int64_t ps)


cdef class Moment:
    cdef public int64_t ps
    cdef public Cause by
