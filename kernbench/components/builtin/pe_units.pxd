from libc.stdint cimport int64_t


cdef class PeFetchStore:
    cdef object _read, _write
    cdef int64_t _fetched, _stored, _fetch, _store
    cpdef int64_t fetch_ps(self, int64_t nbytes)
    cpdef int64_t store_ps(self, int64_t nbytes)
