cimport cython
from libc.stdint cimport int64_t

cdef class Program

from kernbench.components._command cimport Value, Vector
from kernbench.triton_emu._handles cimport Tile


@cython.locals(sizes=tuple)
cpdef tuple shape_of(shape)
@cython.locals(t=Tile)
cdef _either(tiles, tuple shape)
@cython.locals(shape=tuple, t=Tile)
cdef tuple _shape(str name, tiles)
@cython.locals(t=Tile)
cdef bint _are_uniform(tiles) except -1


cdef class Program:
    cdef public object _submit, _block, _drop, _trace
    cdef public bint _data, _open
    cpdef Tile _fold(self, array, dtype)
    @cython.locals(tile=Tile)
    cdef Tile _known(self, Value value)
    cpdef Tile _constant(self, x)
    @cython.locals(constant=bint, t=Tile, out=Value, values=tuple, command=Vector, tile=Tile)
    cpdef Tile _vector(self, str name, tuple kinds, function, operands, tuple shape, dtype, operand_dtype, elements=*, bint fold=*)
    @cython.locals(out=Tile)
    cpdef Tile _by_element(self, str name, tuple kinds, function, operands, tuple shape, dtype, operand_dtype)
    @cython.locals(first=Tile, second=Tile, kinds=tuple, shape=tuple, operands=tuple)
    cpdef Tile _binary(self, str operation, a, b)
    cpdef Tile _scalar(self, x, dtype)
    @cython.locals(tile=Tile)
    cpdef tuple _unify(self, str name, operands, bint division=*)
    cpdef Tile _mixed(self, str name, tuple kinds, function, operands)
    cpdef Tile _permuted(self, str name, Tile x, tuple order)
    @cython.locals(x=Tile)
    cpdef _extreme(self, str name, function, input, axis, bint places, bint keep)
    cpdef Tile _reduce(self, str name, function, Tile x, axis, bint keep, dtype=*)
