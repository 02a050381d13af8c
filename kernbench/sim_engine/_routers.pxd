cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core, Flit, Link
from kernbench.sim_engine._callee cimport Callee

cdef int _ACTIVE, _CLASSES, _IDLE, _NONE, _WAITS
cdef int64_t _NEVER

cdef class Router
cdef class Routers

cdef int _turn(int number, int pointer, int n) noexcept


@cython.final
cdef class RouterLink:
    cdef Link server
    cdef Router router
    cdef int64_t free
    cdef int accept, grant, into, next_vc, offered, output, taken, turns, vc, wire


@cython.final
cdef class Router:
    cdef list outputs
    cdef int[::1] busy
    cdef int64_t due
    cdef int inputs, n_busy, vc
    cdef bint listed


@cython.final
cdef class InjectionQueue:
    cdef RouterLink output
    cdef int[::1] first, last, vc
    cdef int64_t due
    cdef int last_class


cdef class Leg(Callee):
    cdef Routers routers
    cdef InjectionQueue source
    cdef dict early
    cdef int64_t base, entered, extra_ps, last_ps, left, priority
    cdef int hop, k, message_class
    cdef public bint ordered
    cdef public int packet_flits
    @cython.locals(position=int)
    cpdef landed(self, flit)
    cdef int leave(self, int64_t number, Flit flit, int64_t t_ps) except -1
    cdef int deliver(self, Flit flit, int64_t t_ps) except -1


@cython.final
cdef class Routers:
    cdef Core core
    cdef int64_t cycle_ps, number
    cdef int depth, hops, n, routing, switch_allocation, traversal, unused, vc_allocation, vcs
    cdef list busy, flits, legs, link_of, routers, sending, sources
    cdef set scheduled
    cdef int[::1] accept, asked, at, flit, following, grant, head, high, hop, low, next, offered, oldest, out, state, tail, taken, wants
    cdef int64_t[::1] arrival, entered_ps, free, position, ready
    cpdef int add_router(self, int inputs, outputs) except -1
    @cython.locals(router=Router)
    cpdef join(self, int src, int output, int dst, int into)
    @cython.locals(output=RouterLink)
    cpdef int add_source(self, int router, int into, int wire, Link link) except -1
    @cython.locals(first=int, end=int, i=int, router=Router)
    cdef int add_hops(self, RouterLink link, hops) except -1
    @cython.locals(first=int, end=int, vc=int, link=RouterLink)
    cdef RouterLink _add_link(self, int output, int wire, Link server)
    @cython.locals(v=int)
    cdef int _connect(self, RouterLink link, Router router, int into) except -1
    @cython.locals(source=InjectionQueue, output=RouterLink, c=int, i=int)
    cdef int enter(self, Leg leg, Flit flit, bint head, bint tail) except -1
    @cython.locals(i=int)
    cdef int _number(self, Leg leg, Flit flit) except -1
    cdef int _schedule(self, int64_t t) except -1
    @cython.locals(router=Router, source=InjectionQueue, due=int64_t, n=int)
    cpdef cycle(self, int64_t t)
    @cython.locals(i=int, n=int, vc=int, due=int64_t)
    cdef int _await(self, Router router, int64_t t) except -1
    @cython.locals(place=int, link=RouterLink, router=Router)
    cdef int _put(self, int i, int vc, int64_t arrival) except -1
    cdef int _begin(self, int i, int vc, int64_t t) except -1
    cdef int _after(self, int place, int vc) noexcept
    @cython.locals(n_in=int, n_out=int, asking=bint, i=int, vc=int, hop=int, out=int, other=int, pointer=int, best=int, least=int, turns=int)
    cdef int _allocate_vcs(self, Router router, int64_t t) except -1
    @cython.locals(n_in=int, n_out=int, n=int, i=int, vc=int, output=RouterLink, into=RouterLink, turns=int)
    cdef int _allocate_switch(self, Router router, int64_t t) except -1
    @cython.locals(place=int, out=int, i=int, tail=bint, since_ps=int64_t, arrival=int64_t)
    cdef int _send(self, RouterLink into, int vc, RouterLink output, int64_t t) except -1
    @cython.locals(leg=Leg, flit=Flit)
    cdef int _leave(self, int i, int64_t t_ps) except -1
    @cython.locals(ps=int64_t, cycles=int64_t)
    cdef int _serve(self, RouterLink link, int i, int64_t since_ps, int64_t t, int least) except -1
    @cython.locals(output=RouterLink, server=Link, each=int, n=int, c=int, i=int, vc=int, low=int, v=int)
    cdef int _send_from(self, InjectionQueue source, int64_t t) except -1
