from libc.stdint cimport int64_t
from kernbench.sim_engine.route cimport Route
cdef class Transaction:
    cdef public object arg, fn, lines, pieces, data
    cdef public int64_t nbytes, offset, key, arrived, end, asked_ps, tile
    cdef public int64_t arrived_ps, since_ps, opener, served_ps
    cdef public Route back
    cdef public list pending
    cdef public bint posted
