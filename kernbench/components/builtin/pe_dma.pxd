from libc.stdint cimport int64_t
cdef class Channel
cdef class Port
cdef class PeDma
from kernbench.sim_engine.core cimport Core
from kernbench.sim_engine.route cimport Route
from kernbench.sim_engine.core cimport Arbiter as CArbiter
from kernbench.sim_engine.transfer cimport Transaction
cdef class Channel:
    cdef public Core core
    cdef public int limit, outstanding
    cdef public object queue, _wake
    cdef public bint _pumping
    cpdef pump(self)
    cpdef done(self)
cdef class Port:
    cdef public PeDma dma
    cdef public object fabric, memory, _on_read
    cdef public Route route, back
    cpdef read(self, Transaction txn, int kind=*)
    cpdef write(self, Transaction txn, int kind=*)
cdef class PeDma:
    cdef public object pe, component
    cdef public str node_id
    cdef public dict _ports
    cdef public CArbiter arbiter
    cdef public Channel reader, writer
    cpdef Port port(self, memory)
