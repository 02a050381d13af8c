cimport cython
from libc.stdint cimport int64_t


cdef class PeMath:
    cdef public object config
    cdef int64_t _ps, _cycles
    cdef dict _known
    cpdef int64_t service_ps(self, tuple work) except -1
    @cython.locals(cycles=int64_t)
    cpdef int64_t ps(self, work, elements=*) except -1
