cimport cython
from libc.stdint cimport int64_t

cdef class Program

from kernbench.components._command cimport Value
from kernbench.triton_emu._handles cimport Tile


@cython.locals(sizes=tuple)
cpdef tuple shape_of(shape)
@cython.locals(t=Tile)
cdef _either(tiles, tuple shape)


cdef class Program:
    cdef public object _submit, _block, _drop, _trace
    cdef public bint _data, _open
    cpdef Tile _fold(self, array, dtype)
    cpdef Tile _constant(self, x)
    @cython.locals(constant=bint, t=Tile, out=Value, values=tuple)
    cpdef Tile _vector(self, str name, tuple kinds, function, operands, tuple shape, dtype, operand_dtype, elements=*, bint fold=*)
    @cython.locals(out=Tile)
    cpdef Tile _by_element(self, str name, tuple kinds, function, operands, tuple shape, dtype, operand_dtype)
    @cython.locals(first=Tile, second=Tile, kinds=tuple, shape=tuple)
    cpdef Tile _binary(self, str name, a, b)
    cpdef Tile _scalar(self, x, dtype)
    @cython.locals(tile=Tile)
    cpdef tuple _unify(self, str name, operands, bint division=*)
    cpdef Tile _mixed(self, str name, tuple kinds, function, operands)
