cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine._transaction cimport Route
from kernbench.sim_engine._transaction cimport Transaction

from kernbench.sim_engine._causes cimport Cause
from kernbench.sim_engine._log_table cimport LogTable
from kernbench.sim_engine._waits cimport Waits

cdef int64_t HELD, MOVE, NONE, ROW, STAGES, STEP
cdef int _DEEPEST


cdef class OpLog:
    cdef public str level
    cdef public bint operation, tiles
    cdef public dict components, places, openers
    cdef public Waits waits
    cpdef opened(self, int64_t key, int64_t asked, Cause cause)
    cdef public list routes, _commands
    cdef public LogTable rows, moves, stages, steps, paths, allocations, order
    cdef int64_t _entered
    cpdef int64_t command(self, info) except -1
    @cython.locals(after=int64_t[::1], i=int64_t)
    cpdef after(self, int64_t command, int64_t first)
    cpdef int64_t place(self, str name) except -1
    cpdef int64_t route(self, Route route) except -1
    @cython.locals(rows=int64_t[::1], number=int64_t, i=int64_t)
    cpdef int64_t row(self, int64_t start, int64_t end, int64_t component, int64_t kind, int64_t command, int64_t nbytes, int64_t flops, int64_t tile, int64_t cause=*, int64_t second=*, int64_t third=*) except -1
    @cython.locals(rows=int64_t[::1], number=int64_t)
    cpdef left(self, int64_t row, int64_t room, bint held)
    @cython.locals(moves=int64_t[::1], number=int64_t, i=int64_t)
    cpdef int64_t sent(self, int64_t cause=*, int64_t second=*, int64_t third=*, int64_t fourth=*) except -1
    @cython.locals(moves=int64_t[::1], i=int64_t)
    cpdef int64_t move(self, int64_t number, int64_t start, int64_t end, Route route, int64_t nbytes, int64_t command, int64_t tile, int64_t kind, int64_t key, int64_t arrived=*, int64_t since=*, int64_t opener=*, int64_t served=*, int64_t held=*) except -1
    @cython.locals(steps=int64_t[::1], number=int64_t, i=int64_t)
    cpdef int64_t step(self, int64_t end, int64_t ps, int64_t place, int64_t kind, int64_t command, int64_t of=*, int64_t cause=*, int64_t second=*, int64_t third=*) except -1
    @cython.locals(paths=int64_t[::1], number=int64_t, i=int64_t, before=int64_t, part=int)
    cpdef int64_t event(self, Cause cause) except -1
    cpdef Cause then(self, Cause cause, int64_t command, int part, int64_t ps)
    @cython.locals(stages=int64_t[::1], i=int64_t)
    cpdef stage(self, int64_t command, int64_t kind, int64_t start, int64_t end, int64_t busy, int64_t n, int64_t nbytes=*, int64_t route=*)
    @cython.locals(rows=int64_t[::1], i=int64_t)
    cpdef allocated(self, int64_t t, int64_t place, int64_t nbytes)
    cpdef int64_t transfer(self, int64_t start, int64_t end, Transaction txn, int64_t command, int64_t tile, int64_t kind) except -1
