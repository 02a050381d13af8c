cimport cython
from libc.stdint cimport int64_t


@cython.locals(block=int64_t, row=int64_t, bits=int)
cpdef tuple controller_of(int64_t offset, int64_t nbytes, int64_t n, bint hashed)
@cython.locals(at=int64_t, end=int64_t, high=int64_t, count=int64_t, number=int64_t, offset=int64_t, extent=tuple)
cpdef list by_controller(int64_t address, int64_t size, int64_t nbytes, int64_t n, bint hashed)


@cython.final
cdef class Hole:
    cdef public int64_t start, end


cdef class FirstFit:
    cdef public str name
    cdef public int64_t alignment, nbytes
    cdef list _holes
    cdef dict _held
    cpdef int64_t held(self, int64_t address)
    @cython.locals(size=int64_t, address=int64_t)
    cpdef int64_t take(self, int64_t nbytes) except? -2
    cpdef int64_t aligned(self, int64_t nbytes) except -1
    @cython.locals(start=int64_t, i=Py_ssize_t, holes=list, hole=Hole)
    cpdef int64_t cut(self, int64_t size) except -2
    cpdef free(self, int64_t address)
    @cython.locals(end=int64_t, i=Py_ssize_t, n=Py_ssize_t, middle=Py_ssize_t, holes=list, hole=Hole, following=Hole)
    cpdef join(self, int64_t address, int64_t size)
