cimport cython
from libc.stdint cimport int64_t

cdef int _WIDTH


@cython.no_gc
@cython.freelist(256)
cdef class Cause:
    cdef public int64_t event, command
    cdef public int depth
    cdef public Cause before
    cdef public int64_t[10] parts
    @cython.locals(found=Cause, i=int)
    cpdef Cause then(self, int64_t command, int part, int64_t ps)
