"""Barrier over a binary tree: a byte goes up when everybody below has come, and comes down when all have.

Queues: parent, child_left, child_right, as the binary heap has them.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.levels import heap_tree
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(*, n_elem: int, world_size: int) -> tuple[()]:
    """Return no arguments: there are no data."""
    return ()


def kernel(*_pointers: Pointer, tl: TLContext) -> None:
    """Return when every participant has come here."""
    tree = heap_tree(tl.program_id(2), tl.num_programs(2))
    token = tl.zeros((1,), tl.int8)
    for child in tree.children:
        tl.recv(child, shape=1, dtype=tl.int8)
    if tree.parent is not None:
        tl.send(tree.parent, token)
        tl.recv(tree.parent, shape=1, dtype=tl.int8)
    for child in tree.children:
        tl.send(child, token)
