cimport cython
from libc.stdint cimport int64_t


cdef class TranslationTable:
    cdef public list ends, owners, pas, starts


cdef class PeMMU:
    cdef public str name
    cdef TranslationTable _table
    @cython.locals(table=TranslationTable, starts=list, ends=list, pas=list, i=Py_ssize_t, size=int64_t)
    cpdef list translate(self, va, nbytes)
    @cython.locals(table=TranslationTable, i=Py_ssize_t)
    cpdef tuple range_of(self, va)
