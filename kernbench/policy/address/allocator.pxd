cimport cython
from libc.stdint cimport int64_t


cdef class FirstFit:
    cdef public str name
    cdef public int64_t alignment, nbytes
    cdef list _starts, _ends
    cdef dict _held
    cpdef int64_t held(self, int64_t address)
    @cython.locals(size=int64_t, start=int64_t, end=int64_t, i=Py_ssize_t, starts=list, ends=list)
    cpdef int64_t take(self, int64_t nbytes) except? -2
    @cython.locals(end=int64_t, following=int64_t, before=int64_t, i=Py_ssize_t, joins=bint, starts=list, ends=list)
    cpdef free(self, int64_t address)
