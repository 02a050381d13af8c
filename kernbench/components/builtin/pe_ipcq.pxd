cimport cython
from libc.stdint cimport int64_t

cdef class QueuePart
cdef class PeIpcq
cdef class PeQueue

from kernbench.components.builtin.pe_tcm cimport PeFetchStore
from kernbench.components._command cimport Recv
from kernbench.components._pe cimport Pe, PeProgram
from kernbench.components.builtin.queues cimport Inbox, Message, Queue, Receive, Slot
from kernbench.sim_engine._core cimport Arbiter as CArbiter, Core
from kernbench.sim_engine._op_log cimport OpLog
from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._transaction cimport Route

cdef int _PROGRESS, _IN_SLOT, _RELEASE, _MATCH
cdef int64_t ARRIVED, NONE, SENT
cdef int _SEND, _RECV, _SLOT


cdef class QueuePart(Slot):
    cdef public int64_t arrived_ps, credit_id, credit_index, credit_key, credit_ps, key, pa, read_ps, sent_ps, ready_ps
    cdef public int64_t cause, second, third, move, credit_number, credited_ps, credited_by, written_by, in_by, read_by, freed_by
    cdef public bint loaded, written
    cdef public PeQueue queue, sender
    cdef public Route route, back


cdef class PeQueue(Queue):
    cdef public PeIpcq peer
    cdef public PeQueue other
    cdef public object spec
    cdef public int64_t peer_pa, ring_pa, credit_bytes, wake_ps, chunk_ps
    cdef public double payload
    cdef public int64_t given_ps, given_by, left_ps, left_by, matched_ps, matched_by
    cdef public bint in_tcm
    cdef public list leaving
    cdef public Route route, credit_route, down
    cdef public Callee receiver
    cpdef int64_t carried(self, int64_t nbytes)


cdef class PeIpcq(Callee):
    cdef public Pe pe
    cdef public object engine, name, network, component
    cdef public list observers
    cdef public OpLog log
    cdef public PeFetchStore _ports
    cdef public Core core
    cdef public dict sets, setup_ps, _by_ring
    cdef public Inbox inbox
    cdef public int64_t _write_free, _read_free, _deciding, _written_by, _read_by, _write_port, _read_port
    @cython.locals(first=PeQueue, job=Receive)
    cpdef Receive receive(self, Recv command, PeProgram program, dict queues)
    @cython.locals(now=int64_t, message=Message)
    cpdef progress(self, PeQueue queue)
    @cython.locals(slot=QueuePart)
    cpdef _give_slot(self, PeQueue queue, Message message)
    @cython.locals(t=int64_t)
    cpdef _given(self, QueuePart slot, PeQueue queue, Message message)
    @cython.locals(slot=QueuePart)
    cpdef _leave(self, PeQueue queue)
    @cython.locals(arbiter=CArbiter, route=Route, cause=int64_t, second=int64_t)
    cpdef _depart(self, QueuePart slot, PeQueue queue)
    @cython.locals(slot=QueuePart)
    cpdef landed(self, arg)
    @cython.locals(now=int64_t, sender=PeQueue, begun=int64_t, service=int64_t, cause=int64_t, second=int64_t)
    cpdef reached(self, QueuePart slot)
    @cython.locals(sender=PeQueue, queue=PeQueue, by=int64_t)
    cpdef _in_slot(self, QueuePart slot)
    @cython.locals(now=int64_t, message=Message, sent_by=PeQueue, whole=int64_t)
    cpdef _arrive(self, PeQueue queue, QueuePart slot, int64_t by)
    cpdef post(self, Receive job)
    @cython.locals(now=int64_t, inbox=Inbox, job=Receive)
    cpdef match(self, bint settled=*)
    @cython.locals(now=int64_t, end=int64_t, message=Message, command=Recv, slot=QueuePart, cause=int64_t, second=int64_t, third=int64_t)
    cpdef _take(self, Receive job)
    @cython.locals(queue=PeQueue, t=int64_t)
    cpdef _taken(self, Receive job, QueuePart slot)
    @cython.locals(by=int64_t)
    cpdef _done(self, Receive job, QueuePart slot)
    cpdef _received(self, Receive job, int64_t end, int64_t by)
    @cython.locals(log=OpLog)
    cpdef int64_t _log_read(self, Receive job, QueuePart slot, int64_t end) except -1
    cpdef release(self, QueuePart slot, int64_t t, int64_t by)
    @cython.locals(queue=PeQueue, first=QueuePart, back=Route, key=int64_t, arbiter=CArbiter, receive=Receive, command=int64_t, freed=int64_t, number=int64_t)
    cpdef _release(self, QueuePart slot)
    @cython.locals(queue=PeQueue)
    cpdef credited(self, QueuePart slot)
