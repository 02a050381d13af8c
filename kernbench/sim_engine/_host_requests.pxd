cimport cython
from libc.stdint cimport int64_t

from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._core cimport Core as CCore
from kernbench.sim_engine._network cimport Network
from kernbench.sim_engine._op_log cimport OpLog
from kernbench.sim_engine._transaction cimport Route


cdef class ControlMessage(Callee):
    cdef OpLog log
    cdef CCore core
    cdef Route route
    cdef object fn
    cdef int64_t command, nbytes, number, sent_ps
    cdef readonly int64_t key
    @cython.locals(by=int64_t, t=int64_t)
    cpdef landed(self, arg)


@cython.locals(message=ControlMessage, network=Network)
cpdef post(engine, Route route, int64_t nbytes, fn, arg, int64_t command, int64_t by)


cdef class Broadcast:
    cdef public object done, engine
    cdef public dict cubes
    cdef public int64_t by, id, sent_ps, sip
    cdef dict _left
    cdef int64_t _cubes_left
    cpdef nbytes_of(self, cube=*, pe=*)
    cpdef stamp(self, int64_t t, int64_t by)
    cpdef comes(self, int64_t t, int64_t by)
    cpdef taken(self, cpu, int64_t by)
    cpdef answer(self, place, int64_t by)
    @cython.locals(network=Network)
    cpdef _reply(self, asker, answerer, fn, arg, int64_t by)
    cpdef log_row(self, kind, nbytes)


cdef class LaunchBroadcast(Broadcast):
    cdef public object args, grid, kernel, name, queues, ranks, task, world
    cdef public int64_t done_ps, end_ps, start_ps, target_start_ps
    cdef object _count, _step
    cdef int64_t _last_by, _last_ps, _number, _stamped_by, _stamped_ps
    @cython.locals(log=OpLog, now=int64_t, start=int64_t)
    cpdef taken(self, cpu, int64_t by)
    @cython.locals(log=OpLog, cause=int64_t, now=int64_t, second=int64_t, since=int64_t)
    cpdef int64_t begins(self, int64_t by) except -1
    cpdef program_done(self, program, int64_t by)


cdef class RangeMap(Broadcast):
    cdef public object owner, ranges
    cdef dict _made, _nbytes, _tellings, _told
    cpdef _map(self, cpu)


cdef class DryLaunch(Broadcast):
    cdef public int64_t last_ps
    cdef object _nbytes


cdef class QueueInstall(Broadcast):
    cdef public object key, wiring
    cdef dict _directions


cdef class HostCopy:
    cdef public object done, engine
    cdef public list pieces
    cdef public bint write
    cdef public int64_t by
    cdef object _taken
    cdef int64_t _bytes, _id, _left, _start
