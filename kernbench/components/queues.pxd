cimport cython
from libc.stdint cimport int64_t
cdef class Slot
cdef class Queue
cdef class Message
cdef class RecvJob
from kernbench.sim_engine.transfer cimport Route
from kernbench.components.command cimport Value, Command, Send, Recv
from kernbench.components.jobs cimport Job
from kernbench.components.pe cimport Pe
from kernbench.components.builtin.pe_cpu cimport Program
from kernbench.components.builtin.pe_ipcq cimport PeIpcq
from kernbench.components.receiver cimport Receiver
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
