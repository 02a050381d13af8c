cimport cython
from libc.stdint cimport int64_t
cdef class Channel
cdef class Port
cdef class PeDma
from kernbench.sim_engine.core cimport Core
from kernbench.sim_engine.transfer cimport Route
from kernbench.sim_engine.core cimport Arbiter as CArbiter
from kernbench.sim_engine.transfer cimport Transaction
from kernbench.components.source cimport Source
from kernbench.sim_engine.transfer cimport Callee
cdef class Channel(Callee):
    cdef public Core core
    cdef public int limit, outstanding
    cdef public object queue
    cdef public int64_t _wake
    cdef public bint _pumping
    @cython.locals(source=Source, t=int64_t)
    cpdef pump(self)
    cpdef done(self)
cdef class Port:
    cdef public PeDma dma
    cdef public object fabric, memory, _on_read
    cdef public Core core
    cdef public Route route, back
    @cython.locals(route=Route, key=int64_t, arbiter=CArbiter)
    cpdef read(self, Transaction txn, int kind=*)
    @cython.locals(arbiter=CArbiter)
    cpdef write(self, Transaction txn, int kind=*)
cdef class PeDma:
    cdef public object pe, component
    cdef public str node_id
    cdef public dict _ports
    cdef public CArbiter arbiter
    cdef public Channel reader, writer
    cpdef Port port(self, memory)
