cimport cython
from libc.stdint cimport int64_t

cdef int64_t HELD, _ROWS


cdef class LogTable:
    cdef public int64_t width, _rows, _dropped
    cdef int64_t place, _left
    cdef int64_t[::1] last
    cdef list _blocks
    @cython.locals(held=int64_t)
    cdef int64_t add(self) except -1
    cpdef drop(self, int64_t number)
    cdef int64_t place_of(self, int64_t number) noexcept
    @cython.locals(at=int64_t)
    cdef int64_t[::1] block(self, int64_t number)
