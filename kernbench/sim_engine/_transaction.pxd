cimport cython
from libc.stdint cimport int64_t


from kernbench.sim_engine._causes cimport Cause
from kernbench.sim_engine._waits cimport Waits


cdef class Route:
    cdef public int64_t base, flit_bytes, nbytes, flits, logged, sent
    cdef public Route first
    cdef public tuple links, alternatives
    cdef public dict small
    cdef public Route reply
    @cython.locals(first=Route)
    cpdef int64_t key(self)
    @cython.locals(n=int64_t, size=int64_t)
    cpdef count(self, int64_t nbytes)
    cpdef Route drawn(self)
    cpdef count_flits(self, int64_t n, int64_t size)


cdef class Transaction:
    cdef public object arg, fn, lines, pieces, data
    cdef public int64_t nbytes, offset, key, arrived, end, asked_ps, tile, number
    cdef public Cause cause
    cdef public int64_t arrived_ps, since_ps, opener, served_ps
    cdef public Route back
    cdef public list pending
    cdef public bint posted
    cpdef follow(self, Waits waits)


cdef class Reply:
    cdef public Transaction txn
    cdef public int64_t done, flits, parts, sent
    @cython.locals(n=int64_t)
    cpdef int64_t ready(self)
