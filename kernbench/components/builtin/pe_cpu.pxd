cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine.core cimport Core
from kernbench.components.command cimport Value, Command
from kernbench.components.jobs cimport Job, Issuer
from kernbench.components.pe cimport Pe
cdef class Program(Issuer):
    cdef public object cpu, launch, engine, task, races, waits_for, _greenlet, _hub
    cdef public Pe pe
    cdef public Core core
    cdef public bint data, ended, short
    cdef public dict queues
    cdef public int64_t command_ps, commands, issued, last, unfinished, since
    cpdef resume(self, _)
    @cython.locals(job=Job)
    cpdef submit(self, Command command)
    cpdef _place(self, Value output, Job job)
    cpdef block(self, on)
    cpdef _check_caller(self)
    cpdef _wait(self, what)
    cpdef drop(self, Value value)
    cpdef _maybe_end(self, int64_t t)
