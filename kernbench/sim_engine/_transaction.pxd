cimport cython
from libc.stdint cimport int64_t


from kernbench.sim_engine._causes cimport Cause


cdef class Route:
    cdef public int64_t base, flit_bytes, nbytes, logged, sent
    cdef int64_t _flits, _latest, _latest_flits
    cdef public Route first
    cdef public tuple links, alternatives
    cdef public object parts
    cdef dict _smaller
    cdef public Route reply
    @cython.locals(first=Route)
    cpdef int64_t key(self)
    @cython.locals(n=int64_t)
    cpdef int64_t count(self, int64_t nbytes)
    cpdef int64_t flits(self, int64_t nbytes)
    cpdef Route drawn(self)
    cpdef count_flits(self, int64_t n, int64_t size)
    cpdef dict counts(self)


cdef class Transaction:
    cdef public object arg, fn, lines, pieces, data
    cdef public int64_t nbytes, offset, key, arrived, end, asked_ps, tile, number
    cdef public Cause cause
    cdef public int64_t arrived_ps, since_ps, opener, served_ps
    cdef public Route back
    cdef public list pending
    cdef public bint posted
    cpdef begins(self, int64_t nbytes, int64_t offset, fn, arg, lines)


cdef class Reply:
    cdef public Transaction txn
    cdef public int64_t done, flits, parts, sent
    cpdef begins(self, Transaction txn, int64_t parts)
    @cython.locals(n=int64_t)
    cpdef int64_t ready(self)
