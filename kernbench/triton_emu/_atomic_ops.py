"""Atomic operations: a store updates the memory when it ends, and a load returns the previous value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench._dtypes import DType
from kernbench.components._command import Load, Store, Value
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import PointerTile, Tile
from kernbench.triton_emu._memory_ops import Access, access_of, as_pointer, block
from kernbench.triton_emu._program import Function, Program, broadcast_shape

_SEMANTICS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("gpu", "cta", "sys")


def _updated(access: Access, dtype: DType, function: Function, memory: np.ndarray, operands: list[np.ndarray]) -> Any:
    """Return (new distinct elements, previous value of each); repeated addresses are updated one after the other."""
    if access.inverse is None:
        return dtype.round(function(memory, *operands)), memory
    where = access.inverse
    order = np.argsort(where, kind="stable")
    first = np.searchsorted(where[order], where[order])
    turn = np.empty_like(order)
    turn[order] = np.arange(order.size) - first
    memory, found = memory.copy(), np.empty(where.size, memory.dtype)
    for number in range(int(turn.max()) + 1):
        now = turn == number
        found[now] = memory[where[now]]
        memory[where[now]] = dtype.round(function(found[now], *[x[now] for x in operands]))
    return memory, found


def _atomic(
    tl: Program,
    name: str,
    function: Function,
    pointer: Any,
    values: tuple[Any, ...],
    mask: Any,
    sem: str | None,
    scope: str | None,
    *,
    integer: bool = False,
) -> Tile:
    if sem not in (None, *_SEMANTICS):
        raise KernelError(f"{name}: sem={sem!r} is unknown; known: {', '.join(_SEMANTICS)}")
    if scope not in (None, *_SCOPES):
        raise KernelError(f"{name}: scope={scope!r} is unknown; known: {', '.join(_SCOPES)}")
    pointers = pointer if isinstance(pointer, PointerTile) else block(tl, as_pointer(tl, name, pointer, None), ())
    dt, shape = pointers.element_ty, pointers.shape
    if integer and dt.is_floating_point:
        raise KernelError(f"{name} takes integers, {pointers!r} points to {dt}")
    tiles = [tl.cast(value, dt) for value in values]
    tl._own(*tiles)
    for tile in tiles:
        if broadcast_shape(name, shape, tile.shape) != shape:
            raise KernelError(f"{name}: {tile!r} does not broadcast to {pointers!r}")
    access = access_of(tl, name, pointers, mask)
    if not access.runs:
        return tl._fold(np.zeros(shape, dt.carrier), dt)
    shapes, out = [tile.shape for tile in tiles], Value(shape, dt)
    found: list[np.ndarray] = []

    def update(raw: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        flat = [np.broadcast_to(a.reshape(s), shape).reshape(-1) for a, s in zip(arrays, shapes, strict=True)]
        flat = flat if access.mask is None else [a[access.mask] for a in flat]
        with np.errstate(all="ignore"):
            memory, old = _updated(access, dt, function, dt.decode(raw, -1), flat)
        found.append(old)
        return dt.encode(memory)

    def result(_raw: np.ndarray) -> np.ndarray:
        old = np.zeros(shape, dt.carrier)
        old.reshape(-1)[slice(None) if access.mask is None else access.mask] = found.pop()
        return old

    runs = access.at(pointers.base.va, dt.itemsize)
    store = Store(name, tuple([tile._value for tile in tiles]), None, update, 0, "", runs, True)
    load = Load(name, (), out, result, 0, "", runs, True)
    store.atomic = load.atomic = True
    store.releases = sem in (None, "acq_rel", "release")
    tl._submit(store)
    tl._submit(load)
    return Tile(tl, out)


def _operation(name: str, function: Function, what: str, *, integer: bool = False) -> Callable[..., Tile]:
    def operation(
        tl: Program, pointer: Any, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None
    ) -> Tile:
        return _atomic(tl, name, function, pointer, (val,), mask, sem, scope, integer=integer)

    operation.__name__ = name
    operation.__doc__ = f"""{what} in memory, as one step; return what was there before (0 where masked off).

    Parameters
    ----------
    pointer : Pointer or PointerTile
        Where; of several elements at one address, each finds what the one before has left.
    val : Tile or number
        The operand, cast to the pointer's element type.
    mask : Tile or bool, optional
        Which elements to update; its values are needed at once.
    sem : str, optional
        "acq_rel" (default) and "release" wait for all earlier stores of the program; "relaxed" and "acquire" do not.
    scope : str, optional
        Hint of Triton, without effect.

    Raises
    ------
    KernelError
        If shapes or types do not fit.
    """
    return operation


atomic_add = _operation("atomic_add", np.add, "Add")
atomic_max = _operation("atomic_max", np.fmax, "Take the larger value")
atomic_min = _operation("atomic_min", np.fmin, "Take the smaller value")
atomic_and = _operation("atomic_and", np.bitwise_and, "Take the bitwise and", integer=True)
atomic_or = _operation("atomic_or", np.bitwise_or, "Take the bitwise or", integer=True)
atomic_xor = _operation("atomic_xor", np.bitwise_xor, "Take the bitwise exclusive or", integer=True)
atomic_xchg = _operation("atomic_xchg", lambda _old, new: new, "Exchange the value")
atomic_store = atomic_xchg


def atomic_cas(tl: Program, pointer: Any, cmp: Any, val: Any, sem: str | None = None, scope: str | None = None) -> Tile:
    """Replace the value in memory by `val` where it equals `cmp`, atomically; otherwise as `atomic_add`."""

    def swap(old: np.ndarray, expected: np.ndarray, new: np.ndarray) -> np.ndarray:
        return np.where(old == expected, new, old)

    return _atomic(tl, "atomic_cas", swap, pointer, (cmp, val), None, sem, scope)


def atomic_load(tl: Program, pointer: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> Tile:
    """Return the values in memory, read atomically: `atomic_add` of 0."""
    return atomic_add(tl, pointer, 0, mask, sem, scope)
