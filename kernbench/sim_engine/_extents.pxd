cimport cython
from libc.stdint cimport int64_t


cdef class Extent:
    cdef public str node_id
    cdef public int64_t offset, nbytes
    cdef public object at, pieces
    cdef public list lines
    cpdef take(self, command)
    cpdef put(self, data, command)


cdef class Extents:
    cdef public object addresses, graph
    cdef public int64_t controllers, slice_bytes
    cdef dict _interleaved, _slices
    @cython.locals(offset=int64_t)
    cpdef tuple locate(self, int64_t pa)
    cpdef list of(self, int64_t pa, int64_t nbytes)
    cpdef list _split(self, int64_t pa, int64_t nbytes)
    @cython.locals(each=Extent, found=list, nbytes=int64_t, pa=int64_t, part=int64_t)
    cpdef list requests(self, pieces, int64_t at=*)
