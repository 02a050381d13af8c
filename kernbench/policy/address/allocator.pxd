cimport cython
from libc.stdint cimport int64_t


cdef class FirstFit:
    cdef public str name
    cdef public int64_t alignment, nbytes
    cdef list _holes
    cdef dict _held
    @cython.locals(size=int64_t, start=int64_t, end=int64_t, i=int64_t)
    cpdef take(self, int64_t nbytes)
    @cython.locals(start=int64_t, end=int64_t, i=int64_t)
    cpdef free(self, int64_t address)
