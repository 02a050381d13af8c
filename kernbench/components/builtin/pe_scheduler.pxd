cimport cython
from libc.stdint cimport int64_t

cdef class TilePipeline
cdef class StageServer
cdef class TileGrid
cdef class OutputTile
cdef class PeScheduler
cdef class TilePlan
cdef class TileJob
cdef class VectorJob

from kernbench.components.builtin.pe_dma cimport TileReads, TileWrites
from kernbench.components._command cimport Command, Dot, Value, Vector
from kernbench.components._pe cimport Job, Pe, PeProgram
from kernbench.sim_engine._causes cimport Cause, Moment
from kernbench.sim_engine._op_log cimport OpLog

cdef int64_t BEGIN, NONE
cdef int FETCHING, GEMM, MATH, PLAN, STORE
cdef Cause NOTHING
cdef int _FETCH, _GEMM, _MATH, _STORE, _COMPOSITE, _LOOKUP


cdef class TileGrid:
    cdef public int64_t rows, cols, tile_rows, tile_cols, itemsize
    cpdef int64_t height(self, int64_t r) except? -1
    cpdef int64_t width(self, int64_t c) except? -1
    cpdef int64_t elements(self, int64_t r, int64_t c) except? -1
    cpdef int64_t offset(self, int64_t r, int64_t c, int64_t rows) noexcept


cdef class BufferRing:
    cdef public int64_t size, put_, got
    cdef public list since
    cdef Moment room(self)
    @cython.locals(at=Moment)
    cdef put(self, int64_t t, Cause by)
    @cython.locals(at=Moment)
    cdef int64_t first(self) except -2
    @cython.locals(at=Moment)
    cdef Cause first_by(self)
    @cython.locals(at=Moment)
    cdef take(self, int64_t t, Cause by)


cdef class StageServer:
    cdef public str name
    cdef public OpLog log
    cdef public int64_t component, kind, free, busy_ps, start, end, since, before
    cdef public int part
    cdef public Cause at, began, free_by
    cdef public bint live
    cdef public BufferRing leaving
    cdef public TileJob job
    cdef public list queue
    cdef public int64_t recent
    cdef public int64_t[::1] spans
    @cython.locals(start=int64_t, end=int64_t, row=int64_t, cause=Cause, other=Cause, log=OpLog)
    cpdef step(self, int64_t ready, Cause by, int64_t service, int64_t command, int64_t nbytes, int64_t flops, int64_t tile, bint first)
    @cython.locals(i=int64_t)
    cpdef _note(self, int64_t start, int64_t end)
    @cython.locals(spans=int64_t[::1], ahead=int64_t, i=int64_t)
    cpdef int64_t busy_by(self, int64_t now)
    cpdef done(self)
    @cython.locals(ring=BufferRing, room=Moment, end=int64_t)
    cpdef bint leave(self) except -1


cdef class TilePipeline:
    cdef public OpLog log
    cdef public StageServer fetch, gemm, math, store
    cdef public BufferRing fetch_gemm, fetch_math, gemm_math, gemm_store, math_store, store_dma
    cdef public bint _moving, _again
    @cython.locals(moved=cython.bint, held=cython.bint, fetch=StageServer, gemm=StageServer, math=StageServer, store=StageServer)
    cpdef advance(self)
    @cython.locals(moved=cython.bint, work=Job, job=TileJob, ready=int64_t)
    cpdef bint _run(self, StageServer stage) except -1


cdef class VectorJob(Job):
    cdef public int64_t service_ps
    cdef opens(self, Pe pe, Vector command, PeProgram program)
    cpdef int64_t ready_at(self, stage) except -2
    @cython.locals(engine=StageServer)
    cpdef serve(self, stage, int64_t ready)


cdef class TileJob(Job):
    cdef public TilePlan plan
    cdef public bint matrix, vector
    cdef public int64_t fetched, kt, multiplied, n, outputs, planned_ps, start_ps, stored, tile_ps, vectored
    cdef public OutputTile fetching, multiplying
    cdef public TileReads reads
    cdef public TileWrites writes
    cdef public Cause planned_by
    cpdef int64_t planned(self, int64_t i) except -2
    @cython.locals(log=OpLog)
    cpdef Cause plan_of(self, int64_t i)
    @cython.locals(pipeline=TilePipeline)
    cpdef BufferRing _source(self, StageServer stage)
    @cython.locals(at=StageServer)
    cpdef int64_t ready_at(self, stage) except -2
    @cython.locals(at=StageServer)
    cpdef serve(self, stage, int64_t ready)
    @cython.locals(pipeline=TilePipeline, ring=BufferRing, by=Cause, last=cython.bint, o=int64_t, tile=OutputTile)
    cpdef _compute(self, StageServer stage, int64_t ready)
    @cython.locals(i=int64_t, k=int64_t, nbytes=int64_t, service=int64_t, by=Cause, pipeline=TilePipeline, tile=OutputTile)
    cpdef _fetch(self, StageServer stage, int64_t ready)
    @cython.locals(i=int64_t, k=int64_t, pipeline=TilePipeline, tile=OutputTile)
    cpdef bint _multiply(self, StageServer stage, int64_t ready, Cause by) except -1
    cpdef _ended(self, StageServer stage, int64_t n)
    cpdef int64_t tile_of(self, int64_t o) except -2
    cpdef left(self, StageServer stage)
    cpdef written(self, int64_t t, Cause by)
    @cython.locals(log=OpLog, start=int64_t)
    cpdef int64_t _window(self, int64_t end, Cause by) except -1


cdef class OutputTile:
    cdef public int64_t nbytes, store_ps, vector_ps
    cdef public list fetched, fetch_ps, product_ps, flops


cdef class TilePlan:
    cdef public object pe, dtype, engine, sizes, tile
    cdef public TileGrid out
    cdef public tuple work
    cdef public bint matrix, vector
    cdef public int64_t mt, kt, nt, n
    cdef public list operands, _outputs
    @cython.locals(m=int64_t, n=int64_t, kind=Py_ssize_t, found=OutputTile)
    cpdef OutputTile output(self, int64_t o)


cdef class PeScheduler:
    cdef public Pe pe
    cdef public int64_t component, tile_ps, _free, _free_by, _lookup_ps
    cdef object _other_tiles
    cdef dict _plans
    cdef public list queue
    cdef public TilePipeline pipeline
    @cython.locals(job=TileJob, log=OpLog, start=int64_t, cause=int64_t, other=int64_t, planned=int64_t)
    cpdef advance(self)
    @cython.locals(vector=VectorJob)
    cpdef Job job(self, Command command, PeProgram program)
    @cython.locals(a=Value, b=Value, acc=Value, plan=TilePlan)
    cdef TilePlan _dot(self, Dot command)
