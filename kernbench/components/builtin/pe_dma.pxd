cimport cython
from libc.stdint cimport int64_t

cdef class DmaAccess
cdef class AccessJob
cdef class DmaChannel
cdef class PeDma
cdef class Port
cdef class Source
cdef class TileReads
cdef class TileWrites
cdef class Traffic

from kernbench.components.builtin.pe_scheduler cimport TileGrid, TilePipeline, TileJob
from kernbench.components._command cimport Command
from kernbench.components._pe cimport Job, Pe, PeProgram
from kernbench.sim_engine._core cimport Arbiter as CArbiter, Core
from kernbench.sim_engine._causes cimport Cause, Moment
from kernbench.sim_engine._network cimport Network
from kernbench.sim_engine._op_log cimport OpLog
from kernbench.sim_engine._callee cimport Callee
from kernbench.sim_engine._extents cimport Extent
from kernbench.sim_engine._transaction cimport Route, Transaction

@cython.locals(lo=int64_t, hi=int64_t, at=int64_t, to_pa=int64_t, to_offset=int64_t, va=int64_t,
               nbytes=int64_t, payload=int64_t, bits=int)
cpdef list gathered(Pe pe, tuple runs)
@cython.locals(request=Extent)
cdef _join(dict by_node, str node_id, int64_t offset, int64_t payload, tuple piece, int64_t at, int bits)
@cython.locals(first=int64_t, last=int64_t)
cdef _touch(list lines, int64_t offset, int64_t nbytes, int bits)

cdef int64_t NONE, SENT
cdef int MEMORY, READING, READS, WRITES, WRITING
cdef Cause NOTHING
cdef int _LOAD, _STORE, _LOOKUP, _DMA_IN, _DMA_OUT, _READ, _WRITE
@cython.locals(cause=Cause, found=Cause, opener=Moment, since=int64_t, asked=int64_t, served=int64_t)
cdef Cause _path(int64_t command, int transit, int count, Transaction txn, int64_t now, OpLog log)


cdef class Source:
    cpdef int64_t next_ps(self) except -2
    cpdef Cause next_by(self)
    cpdef bint issue(self) except -1
    cpdef Cause landed(self, Transaction txn)


cdef class DmaChannel(Callee):
    cdef public Core core
    cdef public int limit, outstanding
    cdef public list queue
    cdef public int64_t _wake
    cdef public bint _progressing, _logs
    cdef public int64_t before_ps, _issued, _done
    cdef public list _ended
    cdef public Cause before, cause, second, third
    @cython.locals(end=Moment, ended_ps=int64_t, before=Cause, ended=Cause)
    cpdef _decide(self, int64_t t, Cause by)
    @cython.locals(source=Source, t=int64_t)
    cpdef progress(self)
    @cython.locals(txn=Transaction, source=Source, by=Cause, end=Moment)
    cpdef landed(self, arg)


cdef class Port:
    cdef public PeDma dma
    cdef public object memory, _on_read
    cdef public Network network
    cdef public Route route
    @cython.locals(route=Route, network=Network, arbiter=CArbiter)
    cpdef read(self, Transaction txn, int kind=*)
    @cython.locals(route=Route, arbiter=CArbiter)
    cpdef write(self, Transaction txn, int kind=*)


cdef class PeDma:
    cdef public Pe pe
    cdef public object component
    cdef public str node_id
    cdef public dict _ports
    cdef public CArbiter arbiter
    cdef public DmaChannel reader, writer
    cpdef Port port(self, str memory)
    @cython.locals(pe=Pe)
    cpdef list requests(self, tuple runs)
    cpdef AccessJob job(self, Command command, PeProgram program)


cdef class AccessJob(Job):
    cdef public object buffer
    cdef public list requests
    cpdef take(self, data, Extent request)
    cpdef bytes_of(self, Extent request)


cdef class DmaAccess(Source):
    cdef public AccessJob job
    cdef public DmaChannel channel
    cdef public Pe pe
    cdef public bint writes
    cdef public int64_t left, sent, start_ps
    cdef public list requests
    cdef Cause _looked_up
    cpdef Cause next_by(self)
    @cython.locals(now=int64_t, request=Extent, txn=Transaction, port=Port, log=OpLog, channel=DmaChannel)
    cpdef bint issue(self) except -1
    @cython.locals(now=int64_t, log=OpLog, nbytes=int64_t, by=int64_t, whole=int64_t)
    cpdef Cause landed(self, Transaction txn)
    cpdef _update(self)


cdef class MatrixStream:
    cdef public Pe pe
    cdef public TileGrid grid
    cdef public bint strided
    cdef public str home
    cdef public int64_t va, at, start, end, pa
    @cython.locals(grid=TileGrid, rows=int64_t, offset=int64_t, nbytes=int64_t, va=int64_t, extent=Extent)
    cpdef list extents(self, int64_t r, int64_t c)


cdef class Traffic:
    cdef public TileJob job
    cdef public DmaChannel channel
    cdef public OpLog log
    cdef public int64_t kind, since_ps, n, left, nbytes, took_ps
    cdef public bint whole
    @cython.locals(channel=DmaChannel, log=OpLog, now=int64_t, cause=Cause, txn=Transaction)
    cpdef Transaction asked(self, Source source, Extent extent, int64_t tile, Cause other)
    @cython.locals(job=TileJob, log=OpLog, now=int64_t, reads=bint, end=int64_t, by=Cause)
    cpdef Cause landed(self, Transaction txn)


cdef class TileBuffers:
    cdef int64_t left, complete_ps, free_ps
    cdef Cause complete_by, free_by


cdef class TileReads(Source):
    cdef public TileJob job
    cdef public int64_t buffers
    cdef MatrixStream _a, _b
    cdef Core _core
    cdef TilePipeline _pipeline
    cdef int64_t _tile, _m
    cdef list _others, _tiles, _row, _column, _once, _pending
    cdef int64_t _next, _ring, _shared, _freed
    cdef PeDma _dma
    cdef Cause _fourth
    cdef bint _arriving
    cdef Traffic _traffic
    @cython.locals(kt=int64_t, nt=int64_t, m=int64_t, n=int64_t, k=int64_t, a=MatrixStream, b=MatrixStream)
    cpdef _begin(self, int64_t out)
    @cython.locals(job=TileJob, i=int64_t, k=int64_t, pending=list, tile=TileBuffers)
    cpdef _prepare(self)
    cpdef int64_t _before(self) except? -1
    @cython.locals(tile=TileBuffers)
    cpdef int64_t arrival(self, int64_t i) except -2
    @cython.locals(by=Cause, tile=TileBuffers)
    cpdef Cause arrived_by(self, int64_t i)
    @cython.locals(tile=TileBuffers)
    cpdef freed(self, int64_t t, Cause by)
    @cython.locals(job=TileJob, i=int64_t, before=int64_t, tile=TileBuffers)
    cpdef Cause next_by(self)
    @cython.locals(job=TileJob, i=int64_t, t=int64_t, before=int64_t, tile=TileBuffers)
    cpdef int64_t next_ps(self) except -2
    @cython.locals(job=TileJob, extent=Extent, txn=Transaction)
    cpdef bint issue(self) except -1
    @cython.locals(i=int64_t, by=Cause, tile=TileBuffers)
    cpdef Cause landed(self, Transaction txn)


cdef class TileWrites(Source):
    cdef public TileJob job
    cdef public MatrixStream stream
    cdef Core _core
    cdef PeDma _dma
    cdef TilePipeline _pipeline
    cdef int64_t _out, _unacknowledged, _since
    cdef Cause _by
    cpdef Cause next_by(self)
    cdef list _pending
    cdef Traffic _traffic
    cpdef int64_t next_ps(self) except -2
    @cython.locals(job=TileJob, extent=Extent, nt=int64_t, first=cython.bint, txn=Transaction)
    cpdef bint issue(self) except -1
    @cython.locals(by=Cause)
    cpdef Cause landed(self, Transaction txn)
