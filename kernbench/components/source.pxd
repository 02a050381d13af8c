from libc.stdint cimport int64_t
from kernbench.sim_engine.transfer cimport Callee


cdef class Source(Callee):
    cpdef int64_t next_ps(self) except -2
    cpdef bint issue(self) except -1
