cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine.transfer cimport Callee
from kernbench.sim_engine.core cimport Core
cdef int _PUMP, _IN_SLOT, _RELEASE
from kernbench.sim_engine.transfer cimport Route
from kernbench.sim_engine.core cimport Arbiter as CArbiter
from kernbench.components.command cimport Value, Command, Send, Recv
from kernbench.components.queues cimport Slot, Queue, Message, RecvJob
from kernbench.components.receiver cimport Receiver
from kernbench.components.pe cimport Pe
from kernbench.components.builtin.pe_cpu cimport Program
from kernbench.components.builtin.pe_dma cimport PeDma
from kernbench.components.builtin.pe_fetch_store cimport PeFetchStore
cdef class PeIpcq(Callee):
    cdef public Pe pe
    cdef public object engine, name, fabric, log, component, observers
    cdef public PeFetchStore _ports
    cdef public Core core
    cdef public dict sets, _by_ring
    cdef public Receiver receiver
    cdef public int64_t _write_free
    @cython.locals(queue=Queue)
    cpdef Message message(self, Send command, Program program)
    @cython.locals(first=Queue)
    cpdef RecvJob receive(self, Recv command, Program program)
    @cython.locals(now=int64_t, message=Message)
    cpdef pump(self, Queue queue)
    @cython.locals(i=int64_t, at=int64_t, slot=Slot, command=Send)
    cpdef _give_slot(self, Queue queue, Message message)
    @cython.locals(slot=Slot, arbiter=CArbiter, route=Route)
    cpdef _leave(self, Queue queue)
    @cython.locals(now=int64_t)
    cpdef reached(self, Slot slot)
    @cython.locals(queue=Queue, written=dict, ring_pa=int64_t)
    cpdef _in_slot(self, Slot slot)
    @cython.locals(now=int64_t, message=Message)
    cpdef _arrive(self, Queue queue, Slot slot)
    cpdef release(self, Slot slot, int64_t t)
    @cython.locals(queue=Queue, first=Slot, back=Route, key=int64_t, arbiter=CArbiter)
    cpdef _release(self, Slot slot)
    @cython.locals(queue=Queue, route=Route, slot=Slot, key=int64_t)
    cpdef credited(self, Slot first)
