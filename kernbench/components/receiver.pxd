cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine.transfer cimport Callee
from kernbench.sim_engine.core cimport Core
from kernbench.components.command cimport Value, Command, Send, Recv
from kernbench.components.queues cimport Slot, Queue, Message, RecvJob
from kernbench.components.pe cimport Pe
from kernbench.components.builtin.pe_ipcq cimport PeIpcq
from kernbench.components.builtin.pe_fetch_store cimport PeFetchStore
cdef class Receiver(Callee):
    cdef public PeIpcq ipcq
    cdef public Pe pe
    cdef public object engine, log
    cdef public list waiting
    cdef public Core core
    cdef public dict setup_ps
    cdef public int64_t unclaimed, _read_free, _looking
    cdef public PeFetchStore _ports
    cdef public Queue _served
    @cython.locals(now=int64_t)
    cpdef post(self, RecvJob job)
    @cython.locals(now=int64_t, job=RecvJob, queues=tuple, able=cython.bint, first=Queue)
    cpdef look(self, _)
    @cython.locals(command=Recv, message=Message)
    cpdef _claim(self, RecvJob job, Queue queue)
    @cython.locals(now=int64_t, end=int64_t, message=Message, command=Recv, slot=Slot)
    cpdef take(self, RecvJob job)
    @cython.locals(command=Recv)
    cpdef _done(self, RecvJob job, Slot slot)
    @cython.locals(command=Recv)
    cpdef _received(self, RecvJob job, int64_t end)
    cpdef _log_read(self, RecvJob job, Slot slot, int64_t end)
