cimport cython
from libc.stdint cimport int64_t

cdef class Job
cdef class Pe
cdef class PeProgram

from kernbench.components._command cimport Command, Composite, Dot, Load, Recv, Send, Store, Value, Vector
from kernbench.sim_engine._core cimport Core
from kernbench.sim_engine._extents cimport Extents
from kernbench.sim_engine._op_log cimport OpLog
from kernbench.sim_engine._callee cimport Callee


cdef class Job:
    cdef public Pe pe
    cdef public Command command
    cdef public PeProgram program
    cdef public int64_t ready, ready_by, issued_by, id
    cdef public int waiting
    cdef public bint loaded, stays
    cpdef begins(self, Pe pe, Command command, PeProgram program)
    cpdef enter(self)
    cpdef go(self)
    cpdef after(self, Value value)
    cpdef _released(self, int64_t t, int64_t by)
    cpdef result(self)
    cpdef int64_t ready_at(self, stage) except -2
    cpdef serve(self, stage, int64_t ready)
    @cython.locals(command=Command, output=Value, program=PeProgram, waiters=tuple)
    cpdef finish(self, int64_t t, int64_t by)


# These modules derive classes from Job, so it is declared first.
from kernbench.components.builtin.pe_dma cimport PeDma
from kernbench.components.builtin.pe_ipcq cimport PeIpcq, QueuePart
from kernbench.components.builtin.pe_scheduler cimport TilePipeline, PeScheduler
from kernbench.components.builtin.pe_math cimport PeMath
from kernbench.components.builtin.pe_tcm cimport PeTcm, Space


cdef int _ISSUE, _END, _PULSE_EVERY
cdef tuple _engine_work(Command command)


cdef class _Piece:
    cdef public object start, end
    cdef public Command writer
    cdef public dict readers


cdef class AccessOrder:
    cdef list _starts, _pieces
    cdef dict _spans, _reads, _writes
    @cython.locals(piece=_Piece, i=Py_ssize_t, pieces=list, first=dict)
    cpdef list _enter(self, Command command, spans)
    @cython.locals(piece=_Piece, i=Py_ssize_t, kept=Py_ssize_t, pieces=list)
    cpdef remove(self, Command command)
    @cython.locals(piece=_Piece, i=Py_ssize_t)
    cpdef Py_ssize_t _cut(self, at) except -1
    cpdef _insert(self, Py_ssize_t i, _Piece piece)


cdef class PeProgram(Callee):
    cdef public object launch, engine, task, races, waits_for, _greenlet, _hub, _enter, _leave
    cdef public Pe pe
    cdef public Core core
    cdef public bint data, ended, short, synchronizes
    cdef public dict queues
    cdef public int64_t command_ps, commands, issued, last, unfinished, since
    cdef public int64_t last_by, _cause, _second, _third, _woken_by, _end_by, _launch_id
    cpdef _follow(self, int64_t t, int64_t by)
    cpdef resume(self, _)
    @cython.locals(job=Job)
    cpdef submit(self, Command command)
    @cython.locals(at=int64_t, tcm=PeTcm)
    cpdef _place(self, Value output, Job job)
    @cython.locals(command=Command, value=Value, t=int64_t, by=int64_t)
    cpdef block(self, on)
    cpdef _check_caller(self)
    cpdef completed(self, int64_t t, int64_t by)
    cpdef _wake(self, int64_t t, int64_t by)
    cpdef _wait(self, what)
    cpdef drop(self, Value value)
    @cython.locals(end=int64_t, cause=int64_t, second=int64_t, log=OpLog)
    cpdef _maybe_end(self, int64_t t, int64_t by)


cdef class Pe:
    cdef public object engine, mmu, name, config, gather, gemm, fetch_store
    cdef public AccessOrder order
    cdef public PeMath math
    cdef public PeTcm tcm
    cdef public Extents extents
    cdef public PeScheduler scheduler
    cdef public TilePipeline pipeline
    cdef public Core core
    cdef public OpLog log
    cdef public bint data
    cdef public int64_t cpu, mmu_place, tcm_place
    cdef public tuple place
    cdef public PeDma dma
    cdef public PeIpcq ipcq
    cdef public dict placed, logged
    @cython.locals(output=Value, value=Value)
    cpdef completed(self, Command command, int64_t t)
    cpdef Job job(self, Command command, PeProgram program=*)
    @cython.locals(command=Command, value=Value)
    cpdef add(self, Job job, int64_t issued)
    @cython.locals(other=Command)
    cpdef _order(self, Job job, mine)
    @cython.locals(command=Command, log=OpLog, program=PeProgram, other=Command, value=Value, fields=tuple, made_by=int64_t)
    cpdef _log(self, Job job, int64_t issued, list first)
    @cython.locals(scheduler=PeScheduler, dma=PeDma)
    cpdef progress(self)
    @cython.locals(slot=QueuePart, space=Space)
    cpdef free(self, Value value, int64_t t, int64_t by)
