from libc.stdint cimport int64_t
from libcpp.vector cimport vector
from cpython.ref cimport PyObject

cdef struct Seg:
    int64_t a
    int64_t d

cdef struct Entry:
    int64_t t
    int64_t p
    int64_t k
    int kind
    PyObject* x
    PyObject* y

cdef struct Joined:
    int64_t a
    int64_t p
    int64_t k
    PyObject* train

cdef class Train
cdef class Link

cdef class Callee:
    cpdef landed(self, arg)
    cpdef woken(self, int what, arg)

cdef class Ahead:
    cdef Train train
    cdef int k
    cdef int64_t number, tail

cdef class Flit:
    cdef Train train
    cdef int k
    cdef int64_t number

cdef class Open:
    cdef vector[Joined] joined
    cdef list feeders
    cdef void push(self, int64_t a, int64_t p, int64_t k, Train tr)
    cdef Train pop(self, int64_t* a, int64_t* p, int64_t* k)

cdef class Link:
    cdef readonly str src, dst
    cdef readonly double bw_gbs
    cdef public int64_t lat, priority, base, free, last, flit_ps
    cdef public object hook, times, held, tell, coming
    cdef public bint merges
    cdef public int64_t wary
    cdef Ahead ahead_
    cdef object under
    cdef Open open_
    cdef int64_t ps(self, int64_t size)
    cdef void put_under(self, int64_t now)
    cdef Open opened(self)

cdef class Train:
    cdef tuple links
    cdef int k
    cdef int64_t n, size, number, told
    cdef object fn, arg
    cdef bint each
    cdef vector[Seg] lines
    cdef vector[Seg] out
    cdef vector[int] ends
    cdef vector[int64_t] found
    cdef Train child, rest, before
    cdef Train front(self)
    cdef Seg* view(self, int k, int* m) noexcept
    cdef Train part_from(self, int k)
    cdef Train split(self, int64_t j, int64_t number, int64_t* back)
    cpdef int64_t cut(self, int64_t keep)
    cdef int64_t ccut(self, int64_t keep)

cdef class FinishAt:
    cdef Link link
    cdef int64_t p, k

cdef class Landing:
    cdef Link link
    cdef int64_t k
    cdef Train train

cdef class Core:
    cdef vector[Entry] heap
    cdef public int64_t now
    cdef public int64_t events, reservations, number
    cdef int64_t lt, lp, lk
    cdef int64_t eid
    cdef public bint whole, run_ahead
    cdef public object flag
    cdef object start_, told_
    cdef public dict d
    cdef vector[Seg] tmp
    cdef int64_t nxt(self) noexcept
    cdef void push(self, int64_t t, int64_t p, int64_t k, int kind, x, y)
    cdef void pop(self, Entry* top) noexcept
    cpdef call_at(self, int64_t t, fn, arg=*)
    cpdef wake_at(self, int64_t t, Callee callee, int what, arg)
    cpdef call_last(self, int64_t t, fn, arg=*)
    cdef void reached(self, int64_t t, int64_t p, int64_t k) noexcept
    cdef int make_way(self, Link link, int64_t t, int64_t p, int64_t k) except -1
    cdef int again(self, Train train, int64_t j, int64_t number) except -1
    cdef int join(self, Train train) except -1
    cdef void finish_at(self, int64_t t, int64_t p, int64_t k, Link link)
    cdef int finish(self, FinishAt f) except -1
    cdef int serve(self, Link link, int64_t pt, int64_t pp, int64_t pk) except -1
    cdef void landing(self, Link link, int64_t order, Train train, int64_t t)
    cdef int advance(self, Train train) except -1
    cdef int take(self, Train train, int k) except -1
    cdef int hop(self, Flit flit) except -1
    cdef int land(self, Landing x) except -1
    cdef int arrive_last(self, Train train) except -1
    cdef int end(self, Train train) except -1
    cpdef Train put(self, tuple links, int64_t count, int64_t size, int64_t key, object fn, object arg, bint each)
