cimport cython
from libc.stdint cimport int64_t
from kernbench.components.builtin.pe_dma cimport Channel
from kernbench.components.jobs cimport Job
from kernbench.sim_engine.op_log cimport OpLog
from kernbench.sim_engine.transfer cimport Transaction

cdef int _LOAD, _STORE


@cython.freelist(64)
cdef class Request:
    cdef public str node_id
    cdef public int64_t offset, nbytes
    cdef public list pieces, at, lines


cdef class AccessJob(Job):
    cdef public object buffer
    cdef public Channel channel
    cdef public int kind, move
    cdef public int64_t left, sent, start_ps
    cdef public list requests
    cpdef asks(self, command, Channel channel, int kind, int move)
    cpdef ask(self, Transaction txn, Request request)
    @cython.locals(now=int64_t, request=Request, txn=Transaction)
    cpdef bint issue(self) except -1
    @cython.locals(now=int64_t, log=OpLog, txn=Transaction, nbytes=int64_t)
    cpdef landed(self, arg)


cdef class LoadJob(AccessJob):
    cpdef _take(self, data, Request request)


cdef class StoreJob(AccessJob):
    cpdef _bytes(self, Request request)
