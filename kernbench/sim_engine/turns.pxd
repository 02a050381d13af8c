cimport cython
from libc.stdint cimport int64_t
from kernbench.sim_engine.core cimport Core, Link as CLink, Train as CTrain
from kernbench.sim_engine.link cimport Route
cdef int64_t _FLIT
@cython.freelist(64)
cdef class _Message:
    cdef public object fn, arg
    cdef public Route route
    cdef public int64_t count, size, key
    cdef public int kind
    cdef public bint each
cdef class Turns:
    cdef public object fabric
    cdef public Core core
    cdef public CLink link
    cdef public int64_t nbytes, chunk, _turn_ps, _count, _start
    cdef public int _last, _waits
    cdef public bint _whole
    cdef public list _busy_until
    cdef public tuple _waiting
    cdef public _Message _granted
    cdef public CTrain _train
    cpdef send(self, int kind, Route route, int64_t nbytes, int64_t key, object fn, object arg, bint each=*)
    @cython.locals(now=int64_t, message=_Message)
    cpdef start(self, int kind, Route route, int64_t count, int64_t size, int64_t key, object fn, object arg, bint each)
    @cython.locals(t=int64_t)
    cpdef _next_turn(self)
    @cython.locals(last=_Message, kind=int)
    cpdef _turn(self, int64_t t)
    @cython.locals(route=Route, free=int64_t, now=int64_t)
    cpdef _grant(self, _Message message)
    cpdef bint _alternate(self, _Message first, object others) except? 0
    @cython.locals(route=Route)
    cpdef CTrain _put(self, _Message message, int64_t count, tuple lines=*)
    cpdef _cut(self)
