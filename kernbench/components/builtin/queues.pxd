cimport cython
from libc.stdint cimport int64_t

cdef class Message
cdef class Queue
cdef class Receive


cdef class Slot:
    cdef public Message message
    cdef public int64_t index, nbytes, number, order
    cdef public bint free
    @cython.locals(queue=Queue)
    cpdef fill(self, Message message)


cdef class Queue:
    cdef public object name, peer_name
    cdef public int64_t arrived, credits, n_slots, released, sent, slot_bytes, taken
    cdef public list held, inbox, outbox
    @cython.locals(held=list, freed=list, first=Slot)
    cpdef list release(self, Slot slot)


# `pe` leads back here, to classes that derive from those above.
from kernbench.components._command cimport Recv, Send
from kernbench.components._pe cimport Job


@cython.final
cdef class Message(Job):
    cdef public object array, data, dtype
    cdef public Receive receive
    cdef public int64_t arrived, left, nbytes, parts, start_ps
    cdef public Queue queue
    cdef public list slots
    cpdef opens(self, pe, Send command, program, Queue queue)
    cpdef take_value(self)
    cpdef bytes(self)


@cython.final
cdef class Receive(Job):
    cdef public int64_t asked, left
    cdef public Message message
    cdef public Queue queue
    cdef public tuple queues
    cpdef opens(self, pe, Recv command, program, tuple queues)
    @cython.locals(message=Message)
    cpdef Slot next_part(self)
    cpdef complete(self)


cdef class Inbox:
    cdef public list waiting
    cdef public int64_t unclaimed
    cdef public bint undecided
    cdef public Queue _served
    @cython.locals(message=Message, queue=Queue)
    cpdef Message message(self, pe, Send command, program, dict queues)
    @cython.locals(first=Queue, n_slots=int64_t, slot_bytes=int64_t, receive=Receive, among=tuple)
    cpdef Receive receive(self, pe, Recv command, program, dict queues)
    cpdef Queue _named(self, dict queues, name)
    @cython.locals(message=Message)
    cpdef arrive(self, Queue queue, Slot slot, int64_t order)
    @cython.locals(receive=Receive, queues=tuple, queue=Queue, first=Queue, found=list, passed=set, waiting=list, at=Py_ssize_t)
    cpdef list match(self, int64_t now, bint settled)
    @cython.locals(command=Recv, message=Message)
    cpdef bint _claim(self, Receive receive, Queue queue) except -1
