cimport cython
from libc.stdint cimport int64_t

cdef class Message
cdef class PeIpcq
cdef class Queue
cdef class Receiver
cdef class RecvJob
cdef class Slot

from kernbench.components.builtin.pe_units cimport PeFetchStore
from kernbench.components.command cimport Recv, Send
from kernbench.components.pe cimport Job, Pe, Program
from kernbench.sim_engine.core cimport Arbiter as CArbiter, Core
from kernbench.sim_engine.op_log cimport OpLog
from kernbench.sim_engine.transaction cimport Callee, Route

cdef int _PROGRESS, _IN_SLOT, _RELEASE


@cython.freelist(64)
cdef class Slot:
    cdef public Message message
    cdef public int64_t index, number, pa, nbytes, sent_ps, arrived_ps, since_ps, read_ps, credit, key
    cdef public bint loaded, free
    cdef public Queue queue
    cdef public Route route, back
    cdef public Slot by
    cdef public int64_t credit_key, credit_ps
cdef class Queue:
    cdef public PeIpcq owner, peer
    cdef public object spec, name
    cdef public int64_t n_slots, slot_bytes, peer_pa, ring_pa, credit_bytes
    cdef public bint in_tcm
    cdef public int64_t arrived, credit_key, credits, released, sent, taken, wake_ps
    cdef public list held, inbox, leaving, outbox
    cdef public dict written
    cdef public Route way, way_back
@cython.final
cdef class Message(Job):
    cdef public object array, data, dtype
    cdef public RecvJob claimed
    cdef public int64_t arrived, left, nbytes, parts, start_ps
    cdef public Queue queue
    cdef public list slots
    cpdef begin(self, int64_t t)
    cpdef bytes(self)
@cython.final
cdef class RecvJob(Job):
    cdef public int64_t asked, left
    cdef public Message message
    cdef public Queue queue
    cdef public tuple queues
    cdef public Receiver receiver


cdef class Receiver(Callee):
    cdef public PeIpcq ipcq
    cdef public Pe pe
    cdef public object engine
    cdef public OpLog log
    cdef public list waiting
    cdef public Core core
    cdef public dict setup_ps
    cdef public int64_t unclaimed, _read_free, _looking
    cdef public PeFetchStore _ports
    cdef public Queue _served
    @cython.locals(now=int64_t)
    cpdef post(self, RecvJob job)
    @cython.locals(now=int64_t, job=RecvJob, queues=tuple, able=cython.bint, first=Queue)
    cpdef look(self, _)
    @cython.locals(command=Recv, message=Message)
    cpdef _claim(self, RecvJob job, Queue queue)
    @cython.locals(now=int64_t, end=int64_t, message=Message, command=Recv, slot=Slot)
    cpdef take(self, RecvJob job)
    @cython.locals(command=Recv)
    cpdef _done(self, RecvJob job, Slot slot)
    @cython.locals(command=Recv)
    cpdef _received(self, RecvJob job, int64_t end)
    cpdef _log_read(self, RecvJob job, Slot slot, int64_t end)


cdef class PeIpcq(Callee):
    cdef public Pe pe
    cdef public object engine, name, network, component, observers
    cdef public OpLog log
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
    cpdef progress(self, Queue queue)
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
