cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine._transaction cimport Route
from kernbench.sim_engine._transaction cimport Transaction

cdef int64_t _ROWS, _WIDTH, _MOVE_WIDTH, _STAGE_WIDTH


cdef class OpLog:
    cdef public str level
    cdef public bint operation, tiles
    cdef public dict components
    cdef public list routes, issued, after, _commands, _blocks, _move_blocks, _stage_blocks
    cdef int64_t[::1] _rows, _moves, _stages
    cdef int64_t _free, _moves_free, _stages_free, _entered
    cpdef int64_t route(self, Route route) except -1
    @cython.locals(rows=int64_t[::1], i=int64_t)
    cpdef row(self, int64_t start, int64_t end, int64_t component, int64_t kind, int64_t command, int64_t nbytes, int64_t flops, int64_t tile)
    @cython.locals(moves=int64_t[::1], i=int64_t)
    cpdef move(self, int64_t start, int64_t end, Route route, int64_t nbytes, int64_t command, int64_t tile, int64_t kind, int64_t key, int64_t arrived=*, int64_t since=*, int64_t opener=*, int64_t served=*)
    @cython.locals(stages=int64_t[::1], i=int64_t)
    cpdef stage(self, int64_t command, int64_t kind, int64_t start, int64_t end, int64_t busy, int64_t n, int64_t nbytes=*, int64_t route=*)
    cpdef transfer(self, int64_t start, int64_t end, Transaction txn, int64_t command, int64_t tile, int64_t kind)
