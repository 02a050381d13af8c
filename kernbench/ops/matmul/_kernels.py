"""The kernels of a matrix product, and its launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kernbench.components._command import Ref
from kernbench.config import MachineConfig
from kernbench.kernels.partition import mine
from kernbench.ops._access import block_of, load_places, store_places
from kernbench.ops._stored import Span, Stored
from kernbench.ops.matmul._placements import (
    BY_BLOCKS,
    BY_ROWS,
    SPLIT_K,
    TURNED,
    GroupPart,
    PlacementLike,
    Product,
    Sum,
    Task,
    cut,
    dealt_blocks,
    is_summed,
    room,
    split_columns,
    sums,
    task_of,
    tasks,
)
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology._naming import PeId
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu._places import Affine, Pieces
from kernbench.triton_emu.tl_context import TLContext

_BLOCK = 4096  # elements of C added up at a time


def matmul(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, *rest: Any, product: Product, parts: Mapping[PeId, Sequence[Task]],
    room: int, tl: TLContext,
) -> None:  # fmt: skip
    """Write alpha a @ b (+ beta bias) to c, each program its tasks.

    Operands of more than `room` bytes are streamed if possible. A pointer in `rest` is the bias; sizes are
    launch arguments that the program knows already.
    """
    bias = next((x for x in rest if isinstance(x, Pointer)), None)
    for task in mine(parts, tl):
        multiply(a_ptr, b_ptr, c_ptr, bias, product, task, room, tl)


def multiply(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, bias: Pointer | None, product: Product, task: Task, room: int,
    tl: TLContext,
) -> None:  # fmt: skip
    if task.packed is not None:
        _multiply_block(a_ptr, b_ptr, c_ptr, bias, product, task, tl)
        return
    by_rows, whole, above = task.inner == "b", task.is_composite, task.matrix * product.k
    outer, inner = (task.rows, task.columns) if by_rows else (task.columns, task.rows)
    most = room if whole else 1 << 62  # tl.dot takes tiles

    def read(of_rows: bool, span: Span, k: Span, most: int) -> Ref | Tile:
        if of_rows:
            return _read(a_ptr, product.a, span, k, most, tl)
        return _read(b_ptr, product.b, (above + k[0], k[1]), span, most, tl)

    for first in outer:
        held: dict[Span, Ref | Tile] = {}
        for second in inner:
            rows, columns = (first, second) if by_rows else (second, first)
            acc: Tile | None = None
            for k in task.depth if product.k else ():
                kept = held.get(k)
                if kept is None:
                    kept = read(by_rows, first, k, 0 if task.streamed else most)
                    if first[1] * product.k * product.itemsize <= room or whole:
                        held[k] = kept
                other = read(not by_rows, second, k, most)
                x, y = (kept, other) if by_rows else (other, kept)
                if whole:
                    added = [] if bias is None else [("bias", bias + columns[0])]
                    tl.composite("gemm", x, y, c_ptr + task.at(rows, columns), epilogue=added)
                else:
                    assert isinstance(x, Tile)
                    assert isinstance(y, Tile)
                    acc = tl.dot(x, y, acc)
            if whole:
                continue
            if acc is None:  # k = 0
                acc = tl.zeros((rows[1], columns[1]), tl.float32)
            if product.alpha != 1:
                acc = acc * product.alpha
            if bias is not None:
                acc = acc + _bias(bias, product, rows, columns, tl)
            acc = acc.to(c_ptr.dtype.element_ty)
            if task.place is not None:
                (top, _), (left, width), _ = task.hull
                place = task.place + (rows[0] - top) * width + columns[0] - left
                store_places(c_ptr, Affine(place, (rows[1], columns[1]), (width, 1)), acc, tl)
                continue
            assert product.c is not None
            _write(c_ptr, product.c, rows, columns, acc, tl)


def _multiply_block(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, bias: Pointer | None, product: Product, task: Task, tl: TLContext
) -> None:
    (rows, columns, k), (m, n) = task.hull, (product.batch * product.m, product.n)
    to: Affine | Pieces = Affine(task.part * m * n + rows[0] * n + columns[0], (rows[1], columns[1]), (n, 1))
    if product.c is not None:
        to = product.c.places(rows, columns)
    assert task.packed is not None
    a, b, c = task.packed
    x = block_of(a_ptr, a, product.a.places(rows, k), tl)
    y = block_of(b_ptr, b, product.b.places((task.matrix * product.k + k[0], k[1]), columns), tl)
    tl.composite("gemm", x, y, block_of(c_ptr, c, to, tl), [] if bias is None else [("bias", bias + columns[0])])


def grouped(
    a: Pointer, b: Pointer, ends: Pointer, out: Pointer, *, product: Product, placement: str,
    groups: Mapping[PeId, Sequence[GroupPart]], known: Sequence[int] | None, config: MachineConfig, tl: TLContext,
) -> None:  # fmt: skip
    """Multiply each group of rows of a by its matrix of the stack b, each program its parts of groups.

    Groups end before the rows at `ends`, or in `known`; the last rows may be in no group.
    """
    pe = int(tl.program_id(1)), int(tl.program_id(0))

    def end(group: int) -> int:
        if known is not None:
            return known[group]
        return min(int(tl.load(ends + group, shape=(1,))), product.m)

    if placement == BY_BLOCKS:
        ends_of = [end(group) for group in range(product.b.shape[0] // product.k)]
        spans = tuple([(first, last - first) for first, last in pairwise((0, *ends_of))])
        for task in dealt_blocks(config, product, spans).get(pe, ()):
            _multiply_block(a, b, out, None, product, task, tl)
        return
    for group, part, parts in mine(groups, tl):
        first = end(group - 1) if group else 0
        (row, height), columns = cut(placement, max(0, end(group) - first), product.n, part, parts)
        if height and columns[1]:
            own = replace(product, m=height)
            span, space = (first + row, height), room(config)
            task = task_of(config, own, placement, pe, group, span, columns, None, space)
            multiply(a, b, out, None, product, task, space, tl)


def _bias(pointer: Pointer, product: Product, rows: Span, columns: Span, tl: TLContext) -> Tile:
    assert product.bias is not None
    found = _read(pointer, product.bias, (0, 1) if product.bias.shape[0] == 1 else rows, columns, 1 << 62, tl)
    assert isinstance(found, Tile)
    found = found.to(tl.float32)
    return found if product.beta == 1 else found * product.beta


def _read(pointer: Pointer, matrix: Stored, rows: Span, columns: Span, room: int, tl: TLContext) -> Ref | Tile:
    """Load a block into TCM, or stream it if it is consecutive and larger than `room` bytes."""
    shape, first = (rows[1], columns[1]), matrix.first(rows, columns)
    if first is None:
        return tl.load(pointer + tl.constant(matrix.places(rows, columns)))
    fits = shape[0] * shape[1] * pointer.dtype.element_ty.itemsize <= room
    return tl.load(pointer + first, shape=shape) if fits else tl.ref(pointer + first, shape)


def _write(pointer: Pointer, matrix: Stored, rows: Span, columns: Span, block: Tile, tl: TLContext) -> None:
    first = matrix.first(rows, columns)
    if first is None:
        tl.store(pointer + tl.constant(matrix.places(rows, columns)), block)
    else:
        tl.store(pointer + first, block)


def add_up(
    parts_ptr: Pointer,
    out_ptr: Pointer,
    *rest: Any,
    parts: Mapping[PeId, Sequence[Sum]],
    product: Product,
    tl: TLContext,
) -> None:
    """Write alpha * sums of `parts` (+ beta bias) to out, each program its own."""
    bias = next((x for x in rest if isinstance(x, Pointer)), None)
    for own in mine(parts, tl):
        for at in range(0, own.n, _BLOCK):
            size = min(_BLOCK, own.n - at)
            total: Tile | None = None
            for source in own.sources:
                part = tl.load(parts_ptr + (source + at), shape=(size,))
                total = part if total is None else total + part
            assert total is not None
            if product.alpha != 1:
                total = total * product.alpha
            if bias is not None and product.bias is not None:
                added = load_places(bias, _places(product.bias, own, at, size), tl).to(tl.float32)
                total = total + (added if product.beta == 1 else added * product.beta)
            store_places(out_ptr, _places(product.c, own, at, size), total.to(out_ptr.dtype.element_ty), tl)


def _places(matrix: Stored | None, own: Sum, at: int, size: int) -> np.ndarray | Affine:
    """Places of elements of a sum in C, or in the bias."""
    if matrix is None:
        return Affine(own.place + at, (size,), (1,))
    row, column = divmod(own.start + at, own.columns[1])
    height = -(-(column + size) // own.columns[1])
    if matrix.shape[0] == 1:
        lines = np.broadcast_to(matrix.places((0, 1), own.columns).array(), (height, own.columns[1]))
    else:
        lines = matrix.places((row, height), own.columns).array()
    return lines.reshape(-1)[column : column + size]


class KernelLaunch(NamedTuple):
    """A launch of an operator: kernel, names of its tensors, size arguments, PEs, and its own name, if it has one."""

    kernel: Callable[..., None]
    tensors: tuple[str, ...]
    sizes: tuple[int, ...]
    pes: list[PeId]
    name: str = ""


def steps(config: MachineConfig, product: Product, placement: PlacementLike) -> list[KernelLaunch]:
    m, n, k = product.m, product.n, product.k
    first = tasks(config, product, placement)
    kernel = partial(matmul, product=product, parts=first, room=room(config))
    bias = () if product.bias is None else ("bias",)
    if not is_summed(config, product, placement):
        return [KernelLaunch(kernel, ("a", "b", "c", *bias), (m, k, n, room(config)), sorted(first))]
    adding = sums(config, product, placement)
    inside = replace(product, c=None, bias=None, alpha=1.0)
    kernel = partial(matmul, product=inside, parts=first, room=room(config))
    found = [KernelLaunch(kernel, ("a", "b", "sums"), (m, k, n, room(config)), sorted(first))]
    if placement == SPLIT_K:
        kernel = partial(add_up, parts=adding[0], product=inside)
        found.append(KernelLaunch(kernel, ("sums", "sums of cubes"), (m * n,), sorted(adding[0])))
    kernel = partial(add_up, parts=adding[-1], product=product)
    source = "sums of cubes" if placement == SPLIT_K else "sums"
    found.append(KernelLaunch(kernel, (source, "c", *bias), (m * n,), sorted(adding[-1])))
    return found


def partial_sums(config: MachineConfig, product: Product, placement: PlacementLike) -> dict[str, tuple[Span, DPPolicy]]:
    """Shapes and policies of split-K's partial sums: one per PE, and one per cube."""
    if not is_summed(config, product, placement):
        return {}
    size = product.batch * product.m
    if placement == BY_BLOCKS:
        return {"sums": ((len(product.parts_of_k(config)) * size, product.n), BY_ROWS)}
    found = {"sums": ((config.pes_per_sip, size * split_columns(config, product, placement)), BY_ROWS)}
    if placement == SPLIT_K:
        found["sums of cubes"] = (config.cubes_per_sip, size * product.n), TURNED
    return found
