cimport cython
from libc.stdint cimport int64_t

from kernbench.components._pe cimport Pe as CPe
from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._core cimport Core
from kernbench.sim_engine._host_requests cimport Broadcast as CBroadcast
from kernbench.sim_engine._op_log cimport OpLog


cdef int _DECODED, _START


cdef class _Server:
    cdef Core core
    cdef OpLog log
    cdef int64_t free, free_by, place
    cdef int64_t take(self, int64_t service_ps, int64_t command, int64_t by) except -1


cdef class _Relay:
    cdef public object engine, name
    cdef public int64_t service_ps
    cdef _Server _server
    cpdef on_broadcast(self, message, int64_t by)
    cpdef forward(self, message, int64_t by)


cdef class IoCpu(_Relay):
    pass


cdef class MCpu(_Relay):
    pass


cdef class PeCpu(Callee):
    cdef public object engine, mmu, name
    cdef public tuple place
    cdef public int64_t command_ps
    cdef CPe _pe
    cdef _Server _server
    cpdef on_broadcast(self, message, int64_t by)
    cpdef start_at(self, int64_t t, launch, int64_t by)
