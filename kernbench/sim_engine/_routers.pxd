"""What `_routers.pyx` declares."""

from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core, Flit, Link
from kernbench.sim_engine._transaction cimport Callee


cdef struct Held:  # a flit inside the network, or in front of it
    int hop, next
    bint first, last
    int64_t number, since_ps


cdef struct Vc:
    int head, n, state, out, out_vc, accept  # `out` is a sender
    bint listed
    int64_t ready


cdef struct Input:
    int router, upstream, next_vc, accept


cdef struct Sender:  # into a buffer: an output of a router, or a source
    int router, into, wire, grant  # `into` is an input, -1 outside
    int64_t free


cdef struct Source:
    int sender, last_class
    bint listed
    int first[2]
    int last[2]
    int vcs[2]


cdef struct Router:
    int input, inputs, output, outputs, n_busy
    bint listed
    int* busy  # the VCs of its inputs that have flits


cdef struct Event:  # a flit that reaches an input, or (held < 0) a credit that reaches a sender
    int to, vc, held


cdef struct Bucket:
    Event* at
    int n, room


cdef class Routers


cdef class Leg(Callee):
    cdef readonly Routers routers
    cdef readonly int source, message_class, k
    cdef readonly int64_t priority, base, extra_ps, last_ps
    cdef public bint ordered
    cdef public int packet_flits
    cdef int64_t entered, left
    cdef dict early
    cdef int n
    cdef int* outs
    cdef int* low
    cdef int* high
    cpdef landed(self, flit)
    cdef int leave(self, int i, int64_t t_ps) except -1


cdef class Routers:
    cdef readonly Core core
    cdef readonly int number, vcs, depth
    cdef readonly int64_t cycle_ps
    cdef int n, routing, vc_allocation, switch_allocation, traversal
    cdef list links, flits
    cdef Held* held
    cdef int n_held, room_held, spare
    cdef list held_legs
    cdef Vc* channels
    cdef int* fifo
    cdef Input* inputs
    cdef Sender* senders
    cdef int* credits
    cdef char* taken
    cdef int* vc_grants
    cdef Source* sources
    cdef Router* routers
    cdef int n_inputs, room_inputs, n_senders, room_senders, n_sources, room_sources, n_routers, room_routers
    cdef int* busy
    cdef int n_busy, room_busy
    cdef int* sending
    cdef int n_sending, room_sending
    cdef Bucket* wheel
    cdef int span
    cdef int64_t now, events
    cdef set scheduled
    cdef int* best
    cdef int* waiting
    cdef int* asked
    cdef int* winner
    cdef int room_ports
    cdef int _sender(self, int router, int wire, link) except -1
    cdef int wake(self, int source) except -1
    cdef int schedule(self, int64_t t) except -1
    cdef int post(self, int64_t t, int to, int vc, int held) except -1
    cdef int take(self, int into, int vc, int held, int64_t t) except -1
    cdef int begin(self, int channel, int64_t ready) except -1
    cdef int allocate_vcs(self, Router* router, int64_t t) except -1
    cdef int allocate_switch(self, Router* router, int64_t t) except -1
    cdef int send(self, int channel, int64_t t) except -1
    cdef int serve(self, int sender, int held, int64_t t, int least) except -1
    cdef int send_from(self, Source* source, int64_t t) except -1
