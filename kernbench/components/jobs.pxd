cimport cython
from libc.stdint cimport int64_t

cdef class Job
cdef class TileJob
cdef class VectorJob

from kernbench.components.command cimport Command, Value
from kernbench.components.source cimport Source
from kernbench.components.stream cimport TileReads, TileWrites
from kernbench.sim_engine.transfer cimport Callee
from kernbench.sim_engine.core cimport Core
from kernbench.sim_engine.op_log cimport OpLog

cdef int _COMPOSITE


cdef class Engines:
    cdef public Core core
    cdef public OpLog log
    cdef public bint data
    @cython.locals(output=Value, value=Value)
    cpdef completed(self, Command command, int64_t t)
    cpdef pump(self)


cdef class Issuer(Callee):
    cpdef completed(self, int64_t t)
    cpdef _wake(self, int64_t t)


cdef class Job(Source):
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


cdef class VectorJob(Job):
    cdef public int64_t service_ps


cdef class TileJob(Job):
    cdef public object plan, vector_ps
    cdef public bint matrix
    cdef public int64_t fetched, gemm_ps, kt, multiplied, n, outputs, planned_ps, start_ps, stored, tile_ps, vectored
    cdef public list fetches
    cdef public TileReads reads
    cdef public TileWrites writes
    cpdef int64_t planned(self, int64_t i) except -2
    cpdef int64_t operands_ps(self, int64_t i) except -2
    cpdef fetch_left(self, int64_t i, int64_t start, int64_t end)
    cpdef int64_t tile_of(self, int64_t o) except -2
    cpdef store_left(self, int64_t t)
    cpdef written(self, int64_t t)
    cpdef window(self, int64_t end)
