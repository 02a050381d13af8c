cimport cython
from libc.stdint cimport int64_t

from kernbench.components._command cimport Value
from kernbench.policy.address.allocator cimport FirstFit


@cython.final
cdef class Space:
    cdef public FirstFit area
    cdef public int64_t address, nbytes, at, by
    cdef opens(self, FirstFit area, int64_t address, int64_t nbytes)


cdef class PeTcm:
    cdef public str name
    cdef public object config
    cdef public FirstFit scratch, heap
    cdef int64_t _small
    cdef list _returned
    cdef public int64_t freed_by
    @cython.locals(nbytes=int64_t, area=FirstFit, address=int64_t, space=Space)
    cpdef int64_t alloc(self, Value value, bint loaded, int64_t now) except -2
    @cython.locals(i=Py_ssize_t, returned=list, space=Space, earlier=Space)
    cpdef free(self, Value value, int64_t at, int64_t by)
    @cython.locals(space=Space)
    cpdef int64_t _give_back(self) except -2


cdef class PeFetchStore:
    cdef object _read, _write
    cdef int64_t _fetched, _stored, _fetch, _store
    cpdef int64_t fetch_ps(self, int64_t nbytes)
    cpdef int64_t store_ps(self, int64_t nbytes)
