cimport cython
from libc.stdint cimport int64_t

cdef class Message
cdef class Queue
cdef class Receive


cdef class Slot:
    cdef public Message message
    cdef public int64_t index, nbytes, number, order
    cdef public bint free
    cpdef fill(self, Message message, int64_t number, int64_t slot_bytes)


cdef class Queue:
    cdef public object name, peer_name
    cdef public int64_t arrived, credits, n_slots, passed, released, sent, slot_bytes, taken
    cdef public list outbox, ring, slots
    cpdef Slot slot(self)
    @cython.locals(slot=Slot, at=int64_t)
    cpdef Slot fill(self, Message message)
    cpdef Slot held(self, int64_t number)
    @cython.locals(first=Slot, before=int64_t)
    cpdef int64_t release(self, Slot slot) except -1


# `pe` leads back here, to classes that derive from those above.
from kernbench.components._command cimport Recv, Send
from kernbench.components._pe cimport Job


@cython.final
cdef class Message(Job):
    cdef public object array, data, dtype
    cdef public Receive receive
    cdef public int64_t arrived, first, left, nbytes, parts, start_ps
    cdef public Queue queue
    cpdef opens(self, pe, Send command, program, Queue queue)
    cpdef take_value(self)
    cpdef bytes(self)


@cython.final
cdef class Receive(Job):
    cdef public int64_t asked, left
    cdef public Message message
    cdef public Queue queue
    cdef public tuple queues
    cpdef opens(self, pe, Recv command, program, Queue queue, tuple queues)
    @cython.locals(message=Message)
    cpdef Slot next_part(self)
    cpdef complete(self)


cdef class Inbox:
    cdef public list waiting
    cdef public int64_t unclaimed
    cdef int64_t _pass
    cdef public bint undecided
    cdef public Queue _served
    @cython.locals(message=Message, queue=Queue)
    cpdef Message message(self, pe, Send command, program, dict queues)
    @cython.locals(queue=Queue, first=Queue, n_slots=int64_t, slot_bytes=int64_t, receive=Receive, among=tuple)
    cpdef Receive receive(self, pe, Recv command, program, dict queues)
    cpdef Queue _named(self, dict queues, name)
    @cython.locals(message=Message)
    cpdef arrive(self, Queue queue, Slot slot, int64_t order)
    @cython.locals(receive=Receive, queue=Queue, waiting=list, at=Py_ssize_t)
    cpdef Receive match(self, int64_t now, bint settled)
    @cython.locals(queue=Queue)
    cdef bint _is_passed(self, Receive receive) except -1
    @cython.locals(queue=Queue)
    cdef _passes(self, Receive receive)
    @cython.locals(command=Recv, message=Message)
    cpdef bint _claim(self, Receive receive, Queue queue) except -1
