cimport cython
from libc.stdint cimport int64_t
cdef class Job
from kernbench.sim_engine.callee cimport Callee
from kernbench.components.command cimport Value, Command
cdef class Engines:
    cdef public bint data
    @cython.locals(output=Value, value=Value)
    cpdef completed(self, Command command, int64_t t)
    cpdef pump(self)
cdef class Issuer(Callee):
    cpdef completed(self, int64_t t)
    cpdef _wake(self, int64_t t)
cdef class Job:
    cdef public Engines pe
    cdef public Command command
    cdef public Issuer program
    cdef public int64_t ready, id
    cdef public int waiting
    cdef public bint loaded, stays
    cpdef begins(self, Engines pe, Command command, Issuer program)
    cpdef enter(self)
    cpdef go(self)
    @cython.locals(done=object)
    cpdef after(self, what)
    cpdef _released(self, int64_t t)
    cpdef result(self)
    @cython.locals(command=Command, output=Value)
    cpdef finish(self, int64_t t)
