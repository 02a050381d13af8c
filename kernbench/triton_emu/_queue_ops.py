"""send and recv: messages to other programs, through queues between PEs.

A message keeps its boundaries: one send matches one receive, however many slots the message takes. `send` never
blocks. Messages of one direction arrive in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from kernbench._dtypes import DType, DTypeLike, as_dtype, float16
from kernbench.components._command import Recv, Run, Send, Value
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Pending, Pointer, Tile
from kernbench.triton_emu._memory_ops import as_pointer
from kernbench.triton_emu._places import Shape
from kernbench.triton_emu._program import Program, shape_of


class Arrival(Pending):
    """A posted receive, for `tl.wait`; `tile` is None if the destination is memory."""

    def __init__(self, command: Recv, tile: Tile | None) -> None:
        self.command, self.tile = command, tile


def send(
    tl: Program, dir: str, src: Any, *, shape: int | Sequence[int] | None = None, dtype: DTypeLike | None = None
) -> None:
    """Send a message to the neighbour in direction `dir`. Never blocks.

    Parameters
    ----------
    dir : str
        The queue: "E", "parent", ... as the launch names them.
    src : Tile or Pointer or int
        A tile, whose value is taken now, or an address in memory. Memory is read as each part of the message leaves;
        a later store to it waits for that. An integer is a byte address and needs `dtype`.
    shape : int or sequence of int, optional
        Elements to send from memory; of a tile, the shape that it is expected to have.
    dtype : DType or str, optional
        Element type of the message. A tile of another type is cast first; a pointer is reinterpreted.

    Raises
    ------
    IpcqInvalidDirection
        If the program has no such queue.
    KernelError
        If `src` is neither tile nor pointer, or shapes do not match.
    """
    if not isinstance(src, Tile):
        if shape is None:
            raise KernelError(f"send: {src!r} is an address; say how many elements to send with shape=")
        runs, nbytes, kind = _run(tl, "send", src, shape_of(shape), dtype)
        tl._submit(Send("send", tag=dir, direction=dir, nbytes=nbytes, dtype=kind, runs=runs))
        return
    if shape is not None and shape_of(shape) != src.shape:
        raise KernelError(f"send: {src!r} does not have the shape {shape_of(shape)} that shape= asks for")
    _send(tl, dir, src if dtype is None else tl.cast(src, dtype))


def _send(tl: Program, dir: str, tile: Tile) -> None:
    if tile._tl is not tl:
        tl._own(tile)
    value = tile._held if tile._places is None else tile._value
    encode = tile.dtype.encode if tl._data else None
    command = Send.__new__(Send)
    command.opens("send", (value,), None, encode, dir)
    command.direction, command.nbytes, command.dtype = dir, value.nbytes, value.dtype
    tl._submit(command)


def recv(
    tl: Program,
    dir: str | None = None,
    *,
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    dst: Any = None,
) -> Tile | None:
    """Receive the next message from `dir`; block until it is there.

    A message of one slot stays in its slot while its tile is held: drop the tile early (`del`), so that the
    sender can continue. `came_from` of the tile is the direction it came from.

    Parameters
    ----------
    dir : str, optional
        The queue; without it, the earliest arrival of any, in turn where several are there.
    shape : int or sequence of int
        Shape of the tile; it must take exactly the bytes of the message.
    dtype : DType or str, optional
        Element type; default: that of `dst`, else f16.
    dst : Pointer or int, optional
        Address in memory that receives the message instead of a tile.

    Returns
    -------
    Tile or None
        The message, or None with `dst`.

    Raises
    ------
    IpcqInvalidDirection
        If the program has no such queue.
    KernelError
        If the message has another size.
    IpcqDeadlock
        If no program sends and nothing else can run.
    """
    if dst is not None:
        tl._block(_into_memory(tl, dir, shape_of(shape), dtype, dst))
        return None
    return _received(tl, dir, shape_of(shape), dtype, True)


def recv_async(
    tl: Program,
    dir: str | None = None,
    *,
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    dst: Any = None,
) -> Arrival:
    """Post a receive without waiting; `tl.wait` on the handle returns the result of `recv`. Parameters as of `recv`.

    Receives of one direction complete in the order in which they are posted.
    """
    if dst is not None:
        return Arrival(_into_memory(tl, dir, shape_of(shape), dtype, dst), None)
    tile = _receive(tl, dir, shape_of(shape), dtype, True)
    assert tile._recv is not None
    return Arrival(tile._recv, tile)


def recv_no_consume(
    tl: Program, dir: str | None = None, *, shape: int | Sequence[int], dtype: DTypeLike | None = None
) -> Tile:
    """Return the next message without removing it from the queue, for diagnosis. Blocks; parameters as of `recv`."""
    return _received(tl, dir, shape_of(shape), dtype, False)


def wait(tl: Program, *handles: Pending | Tile) -> Any:
    """Block until each of `handles` is complete: of a composite, of `recv_async`, or a tile.

    Returns
    -------
    Tile or tuple of Tile or None
        The received tiles, in order; None if no handle is of a receive.
    """
    tl._own(*handles)
    for handle in handles:
        if isinstance(handle, Pending):
            tl._block(handle.command)
        elif not isinstance(handle, Tile):
            raise KernelError(f"wait takes the handle of a composite or a tile, got {handle!r}")
        elif not handle._constant:
            tl._block(handle._value)
    tiles = tuple([h.tile for h in handles if isinstance(h, Arrival) and h.tile is not None])
    return tiles if len(tiles) > 1 else tiles[0] if tiles else None


def copy(tl: Program, x: Tile) -> Tile:
    """Return a copy of `x` in its own space: one simple operation.

    Copy a message of one slot before passing it on round a ring: the slot is then free before the copy has left, so a
    ring of full slots that all wait to be passed on cannot deadlock.
    """
    return tl._vector("copy", ("simple",), np.copy, (x,), x.shape, x.dtype, None)


def _receive(tl: Program, dir: str | None, sizes: Shape, dtype: DTypeLike | None, consume: bool) -> Tile:
    dt: DType = float16 if dtype is None else as_dtype(dtype)
    out = Value.__new__(Value)
    out.opens(sizes, dt)
    decode = partial(dt.decode, shape=sizes) if tl._data else None
    command = Recv.__new__(Recv)
    command.opens("recv", (), out, decode, dir or "any")
    command.direction, command.nbytes, command.consume, command.came_from = dir, out.nbytes, consume, ""
    tile = Tile.__new__(Tile)
    tile.opens(tl, out)
    tile._recv = command
    tl._submit(command)
    return tile


def _received(tl: Program, dir: str | None, sizes: Shape, dtype: DTypeLike | None, consume: bool) -> Tile:
    tile = _receive(tl, dir, sizes, dtype, consume)
    assert tile._recv is not None
    tl._block(tile._recv)
    return tile


def _into_memory(tl: Program, dir: str | None, sizes: Shape, dtype: DTypeLike | None, dst: Any) -> Recv:
    runs, nbytes, _ = _run(tl, "recv", dst, sizes, dtype)
    command = Recv("recv", tag=dir or "any", direction=dir, nbytes=nbytes, runs=runs)
    tl._submit(command)
    return command


def _run(
    tl: Program, name: str, pointer: Any, sizes: Shape, dtype: DTypeLike | None
) -> tuple[tuple[Run, ...], int, DType]:
    base: Pointer = as_pointer(tl, name, pointer, dtype)
    nbytes = prod(sizes) * base.element_ty.itemsize
    return (Run(base.va, nbytes, nbytes),), nbytes, base.element_ty
