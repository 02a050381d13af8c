cimport cython
from libc.stdint cimport int64_t


@cython.locals(n=int64_t, n_ready=int64_t, i=int64_t, j=int64_t, e=int64_t, s=int64_t, learns=bint, t=double,
               ready=double, wait=double, came=double, begun=double, lasted=double[::1], previouses=int64_t[::1], times=double[::1], free=double[::1], begin=double[::1],
               left=int64_t[::1], heap=int64_t[::1], firsts=int64_t[::1], targets=int64_t[::1], weights=double[::1],
               servers=int64_t[::1], services=double[::1], spreads=double[::1], all_at_once=int64_t[::1], shares=double[::1], leasts=double[::1],
               owns=double[::1], known=double[::1])
cpdef retime(first, target, weight, before, server, service, spread, at_once, previous, share, least, own, recorded=*)
@cython.locals(at=int64_t, parent=int64_t, j=int64_t)
cdef int64_t _push(int64_t[::1] heap, int64_t n, double[::1] times, int64_t i) noexcept
@cython.locals(at=int64_t, child=int64_t, i=int64_t, j=int64_t, a=int64_t, b=int64_t)
cdef int64_t _pop(int64_t[::1] heap, int64_t n, double[::1] times) noexcept
