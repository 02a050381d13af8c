"""The grid of a launch: its sizes, which PE runs which of its programs, and a program by its number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernbench.errors import quote
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.topology._naming import PeId
from kernbench.triton import _arguments as arguments
from kernbench.triton._language import Language
from kernbench.triton._owner import Body, owners
from kernbench.triton._translate import Binder
from kernbench.triton_emu.tl_context import TLContext

ASSIGNMENTS = ("round-robin", "blocks", "owner")

_Grid = tuple[int, int, int]


def grid_of(grid: Any, arguments: dict[str, Any], name: str) -> _Grid:
    sizes = grid(arguments) if callable(grid) else grid
    sizes = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    try:
        whole = tuple(int(n.__index__()) for n in sizes)
    except AttributeError:
        whole = ()
    if not 1 <= len(whole) <= 3 or min(whole) < 0:
        raise TypeError(f"launch of {name!r}: grid = {quote(sizes)} must be one to three integers >= 0")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def programs_by_pe(
    placement: str, name: str, body: Body, count: int, targets: list[PeId], tensors: list[DeviceTensor],
    settle: Callable[[], bool],
) -> list[Sequence[int]]:  # fmt: skip
    """Return the numbers of the programs that each target runs; `settle` as for `owners`."""
    n = len(targets)
    if placement == "round-robin":
        return [range(i, count, n) for i in range(n)]
    if placement == "blocks":
        size = -(-count // n)
        return [range(i * size, min(count, (i + 1) * size)) for i in range(n)]
    return owners(name, body, count, targets, tensors, settle)


def body_of(
    function: Any, values: dict[str, Any], known: frozenset[str], sizes: _Grid, tl: TLContext
) -> Callable[[int], None]:
    lang = Language(tl, sizes)
    binder = Binder(lang)
    kernel = binder.function(function)
    given = {k: arguments.inside(v, k in known, lang, binder) for k, v in values.items()}
    x, y, _ = sizes

    def run(number: int) -> None:
        lang.move((number % x, number // x % y, number // (x * y)))
        kernel(**given)

    return run


def tl_program(
    function: Any, values: dict[str, Any], known: frozenset[str], sizes: _Grid, targets: list[PeId],
    shares: list[Sequence[int]],
) -> Callable[..., None]:  # fmt: skip
    def program(*, tl: TLContext) -> None:
        pe, cube, _ = (int(tl.program_id(axis)) for axis in range(3))
        mine = shares[targets.index((cube, pe))]
        if mine:
            run = body_of(function, values, known, sizes, tl)
            for number in mine:
                run(number)

    program.__name__ = program.__qualname__ = function.__name__
    return program
