cimport cython
from libc.stdint cimport int64_t

cdef class Pipeline
cdef class TileJob
cdef class VectorJob

from kernbench.components.builtin.pe_dma cimport TileReads, TileWrites
from kernbench.components._pe cimport Job
from kernbench.sim_engine._op_log cimport OpLog

cdef int _FETCH, _GEMM, _MATH, _STORE, _COMPOSITE


cdef class Ring:
    cdef public int64_t size, put_, got
    cdef public list freed, filled
    cpdef int64_t room(self)
    @cython.locals(i=int64_t)
    cpdef put(self, int64_t t)
    cpdef int64_t first(self)
    cpdef take(self, int64_t t)


cdef class Stage:
    cdef public str name
    cdef public int64_t component, free, busy_ps, end, since, before
    cdef public bint held, live
    cdef public Ring leaving
    cdef public object queue
    cdef public int64_t recent
    cdef public int64_t[::1] spans
    @cython.locals(i=int64_t)
    cpdef serve(self, int64_t start, int64_t end)
    @cython.locals(spans=int64_t[::1], ahead=int64_t, i=int64_t)
    cpdef int64_t busy_by(self, int64_t now)
    cpdef begin(self, int64_t start)
    @cython.locals(ring=Ring, room=int64_t)
    cpdef bint leave(self) except -1


cdef class Pipeline:
    cdef public OpLog log
    cdef public Stage fetch, gemm, math, store
    cdef public Ring fetch_gemm, fetch_math, gemm_math, gemm_store, math_store, store_dma
    cdef public TileJob _storing
    cdef public bint _moving, _again
    @cython.locals(moved=cython.bint, held=cython.bint)
    cpdef advance(self)
    @cython.locals(stage=Stage, log=OpLog, moved=cython.bint, job=TileJob, i=int64_t, landed=int64_t, ring=Ring, room=int64_t, start=int64_t, k=int64_t, nbytes=int64_t, service=int64_t, end=int64_t)
    cpdef bint _fetch(self) except -1
    @cython.locals(stage=Stage, ring=Ring, moved=cython.bint)
    cpdef bint _gemm(self) except -1
    @cython.locals(stage=Stage, log=OpLog, i=int64_t, k=int64_t, start=int64_t, end=int64_t)
    cpdef _multiply(self, TileJob job, int64_t ready)
    @cython.locals(stage=Stage, log=OpLog, moved=cython.bint, job=TileJob, ring=Ring, start=int64_t, end=int64_t, ready=int64_t, o=int64_t, service=int64_t)
    cpdef bint _math(self) except -1
    @cython.locals(stage=Stage, log=OpLog, moved=cython.bint, job=TileJob, ring=Ring, start=int64_t, end=int64_t, ready=int64_t, o=int64_t, service=int64_t)
    cpdef bint _store(self) except -1


cdef class VectorJob(Job):
    cdef public int64_t service_ps


cdef class TileJob(Job):
    cdef public object plan, vector_ps
    cdef public bint matrix
    cdef public int64_t fetched, kt, multiplied, n, outputs, planned_ps, start_ps, stored, tile_ps, vectored
    cdef public list fetches, products
    cdef public TileReads reads
    cdef public TileWrites writes
    cpdef int64_t planned(self, int64_t i) except -2
    cpdef int64_t operands_ps(self, int64_t i) except -2
    cpdef fetch_left(self, int64_t i, int64_t start, int64_t end)
    cpdef int64_t tile_of(self, int64_t o) except -2
    cpdef store_left(self, int64_t t)
    cpdef written(self, int64_t t)
    cpdef window(self, int64_t end)
