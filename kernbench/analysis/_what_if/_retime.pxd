cimport cython
from libc.stdint cimport int64_t


@cython.locals(n=int64_t, i=int64_t, e=int64_t, latest=double, t=double, times=double[::1], firsts=int64_t[::1], sources=int64_t[::1], weights=double[::1], owns=double[::1])
cpdef double retime(first, source, weight, own)
