cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._core cimport Core as CCore
from kernbench.sim_engine._transaction cimport Reply as CReply, Route as CRoute, Transaction as CTransaction


cdef class Network:
    cdef public object graph, tie_seed, routers
    cdef public CCore core
    cdef public int64_t flit_bytes, command_bytes
    cdef public dict links
    cdef public list routes
    cdef object _router
    cdef dict _by_ends, _there, _back, _first, _hooks, _kinds
    cdef tuple _names
    cdef bint _split
    cpdef CRoute route(self, src, dst)
    @cython.locals(found=list)
    cdef CRoute _make(self, parts, int message_class=*)
    @cython.locals(known=dict)
    cdef tuple _links_of(self, part, int message_class)
    cpdef CRoute back(self, CRoute route)
    @cython.locals(n=int64_t)
    cpdef send(self, CRoute route, int64_t nbytes, int64_t key, fn, arg, bint each=*)
    cpdef read(self, CTransaction txn, CRoute route, memory)
    cpdef write(self, CTransaction txn, CRoute route, memory)
    cpdef begin(self, CTransaction txn, CRoute route)
    cpdef train(self, CRoute route, int64_t n, int64_t size, int64_t key, fn, arg)
    @cython.locals(n=int64_t, txn=CTransaction, last=bint, size=int64_t)
    cpdef reply(self, CReply reply, memory)
    cpdef acknowledge(self, CTransaction txn)
