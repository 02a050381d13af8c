cdef class Callee:
    cpdef landed(self, arg)
    cpdef woken(self, int what, arg)
