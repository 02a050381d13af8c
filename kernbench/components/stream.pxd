cimport cython
from libc.stdint cimport int64_t

cdef class Stream
cdef class TileReads
cdef class TileWrites

from kernbench.components.builtin.pe_dma cimport Channel, Port
from kernbench.components.jobs cimport TileJob
from kernbench.components.pipeline cimport Pipeline
from kernbench.components.source cimport Source
from kernbench.sim_engine.core cimport Core
from kernbench.sim_engine.op_log cimport OpLog
from kernbench.sim_engine.transfer cimport Transaction

cdef int _DMA_IN, _DMA_OUT, _READ, _WRITE


cdef class Stream:
    cdef public object pe, ref, grid
    cdef public bint strided
    cdef public Port home
    cdef public int64_t at
    cpdef list pieces(self, int64_t r, int64_t c)


cdef class TileReads(Source):
    cdef public TileJob job
    cdef public list operands
    cdef public dict complete
    cdef public int64_t buffers
    cdef Core _core
    cdef OpLog _log
    cdef Channel _reader
    cdef Pipeline _pipeline
    cdef int64_t _component, _tile, _m
    cdef dict _left
    cdef list _free, _along, _tiles, _pending
    cdef bint _arriving
    @cython.locals(kt=int64_t, buffers=int64_t, m=int64_t, n=int64_t, k=int64_t)
    cpdef _begin(self, int64_t out)
    @cython.locals(job=TileJob, i=int64_t, k=int64_t)
    cpdef _prepare(self)
    cpdef int64_t arrival(self, int64_t i) except -2
    cpdef freed(self, int64_t i, int64_t t)
    @cython.locals(job=TileJob, i=int64_t, t=int64_t, free=int64_t)
    cpdef int64_t next_ps(self) except -2
    @cython.locals(job=TileJob, pending=list, port=Port, now=int64_t, txn=Transaction)
    cpdef bint issue(self) except -1
    @cython.locals(txn=Transaction, i=int64_t, job=TileJob, now=int64_t, log=OpLog, left=int64_t)
    cpdef landed(self, arg)


cdef class TileWrites(Source):
    cdef public TileJob job
    cdef public Stream stream
    cdef Core _core
    cdef OpLog _log
    cdef Channel _writer
    cdef Pipeline _pipeline
    cdef int64_t _component, _out, _unacknowledged
    cdef list _pending
    cpdef int64_t next_ps(self) except -2
    @cython.locals(job=TileJob, port=Port, now=int64_t, txn=Transaction)
    cpdef bint issue(self) except -1
    @cython.locals(txn=Transaction, job=TileJob, now=int64_t, log=OpLog)
    cpdef landed(self, arg)
