cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine.core cimport Core
from kernbench.components.command cimport Value, Command, Send, Recv
from kernbench.components.jobs cimport Job, Engines
from kernbench.components.builtin.pe_cpu cimport Program
from kernbench.components.builtin.pe_ipcq cimport PeIpcq
from kernbench.components.builtin.pe_dma cimport PeDma
from kernbench.components.queues cimport Slot
cdef class Pe(Engines):
    cdef public object engine, mmu, name, config, gather, gemm, math, fetch_store, tcm, scheduler, pipeline, order
    cdef public tuple place
    cdef public PeDma dma
    cdef public PeIpcq ipcq
    cdef public dict placed, _jobs
    @cython.locals(output=Value, value=Value)
    cpdef completed(self, Command command, int64_t t)
    cpdef Job job(self, Command command, Program program=*)
    @cython.locals(command=Command, value=Value)
    cpdef add(self, Job job, int64_t issued)
    cpdef _order(self, Job job, mine)
    @cython.locals(slot=Slot)
    cpdef free(self, Value value, int64_t t)
