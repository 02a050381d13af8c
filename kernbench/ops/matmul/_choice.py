"""The choice of a placement for a matrix product, and its reason."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter

from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError
from kernbench.ops._stored import Stored
from kernbench.ops.matmul._cost import estimate, move_ns
from kernbench.ops.matmul._placements import (
    BY_BLOCKS,
    BY_ROWS,
    PLACEMENTS,
    SPLITS,
    PlacementLike,
    Product,
    named,
    read_from,
)
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology.builder import Machine

USES = 16  # products that share the cost of moving B, which is kept where it is moved (chosen)
NEAR = 1.3  # placements within this factor of the lowest estimate may be faster (chosen)


@dataclass(frozen=True)
class Choice:
    """The placement of a product, and its reason.

    Attributes
    ----------
    placement : str or DPPolicy
        Which PE computes which part of C.
    a, b : tuple of DPPolicy
        Policies by which A and B are moved before, in order.
    estimate_ns : float
        Closed-form estimate [ns], without the time to move B, which is done once.
    limiter : str
        The largest contribution to the estimate.
    estimates_ns : mapping
        Closed-form estimate of each placement with unmoved operands [ns].
    wanted : bool
        Whether the user chose the placement.
    simulated_ns : mapping
        Simulated times [ns] by `words` of the choice.
    """

    placement: PlacementLike
    a: tuple[DPPolicy, ...]
    b: tuple[DPPolicy, ...]
    estimate_ns: float
    limiter: str
    estimates_ns: Mapping[str, float]
    wanted: bool
    simulated_ns: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        moved = " and ".join(name for name, places in (("A", self.a), ("B", self.b)) if places)
        return named(self.placement) + (f", {moved} moved" if moved else "")

    @property
    def why(self) -> str:
        if self.simulated_ns:
            times = "; ".join(f"{words} {ns:,.0f} ns" for words, ns in self.simulated_ns.items())
            return f"least simulated time of those with the least estimates: {times}"
        if self.wanted:
            return "as asked for"
        return f"least estimate, {self.estimate_ns:,.0f} ns, most of it {self.limiter}"


@lru_cache(maxsize=256)
def choose_placement(
    machine: Machine, product: Product, placement: PlacementLike | None = None, fixed: bool = False, uses: float = USES
) -> Choice:
    """Choose the placement with the lowest estimate, or the one requested, and the moves of operands.

    A is moved if that pays for one product, B if it pays for `uses` products, as the copy is kept. With `uses` 0 it
    is not moved. With `fixed`, the result of a product on one PE is stored as C is, not on that PE. Raises
    ArgumentError for an unknown placement, and for split-K with k = 0.
    """
    return _ranked(machine, product, placement, fixed, uses)[0][1]


def grouped_placement(machine: Machine, product: Product, groups: int) -> str:
    """Return the placement with the lowest estimate for groups of rows, each with its matrix, as if they were equal."""
    if product.fits_blocks(machine.config):
        return BY_BLOCKS
    equal = replace(product, m=max(1, product.m // groups), batch=groups)
    names = [name for name in PLACEMENTS if name not in (*SPLITS, "replicated")]
    return min(names, key=lambda name: estimate(machine, equal, name)[0])


def near(machine: Machine, product: Product, fixed: bool, uses: float) -> list[Choice]:
    found = _ranked(machine, product, None, fixed, uses)
    return [choice for ns, choice in found if ns <= NEAR * found[0][0]]


def _ranked(
    machine: Machine, product: Product, placement: PlacementLike | None, fixed: bool, uses: float
) -> list[tuple[float, Choice]]:
    """Choices with their estimates [ns], lowest first, of all placements or of the requested one."""
    if placement in SPLITS and not product.k:
        raise ArgumentError(f"placement {placement!r}: k = 0, so there is no sum to split; leave the placement out")
    estimates: dict[str, float] = {}
    ranked: list[tuple[float, Choice]] = []
    moves = _Moves(machine, product, uses)
    for name in [placement] if placement is not None else _candidates(machine.config, product):
        for (a, at_a, a_ns), (b, at_b, b_ns) in itertools.product(moves.of(name, 0), moves.of(name, 1)):
            asked = replace(product, a=at_a, b=at_b, c=None if name == "replicated" and not fixed else product.c)
            ns, limiter = estimate(machine, asked, name)
            if not (a or b):
                estimates[named(name)] = ns
            ns += a_ns + len(a) * product.host_ns
            choice = Choice(name, a, b, ns, limiter, estimates, placement is not None)
            ranked.append((ns + (b_ns / uses if b else 0), choice))
    return sorted(ranked, key=itemgetter(0))


def _candidates(config: MachineConfig, product: Product) -> list[PlacementLike]:
    if product.fits_blocks(config):
        return [BY_BLOCKS]
    one = product.batch == 1 and product.k > 0
    return [name for name in PLACEMENTS if one or name not in SPLITS]


Moves = tuple[tuple[DPPolicy, ...], Stored, float]  # moves in order, the storage after them, their time [ns]


class _Moves:
    """Possible moves of a product's operands; estimates are cached."""

    def __init__(self, machine: Machine, product: Product, uses: float) -> None:
        self._machine, self._product, self._uses = machine, product, uses
        self._found: dict[tuple[int, DPPolicy], Moves] = {}

    def of(self, placement: PlacementLike, operand: int) -> list[Moves]:
        """List moves of A (0) or B (1): none, or to a placement that suits the reads."""
        product = self._product
        matrix = (product.a, product.b)[operand]
        found: list[Moves] = [((), matrix, 0.0)]
        stays = product.batch > 1 or not product.k or (operand == 1 and not self._uses)
        if not stays and placement not in ("rows", "replicated", BY_BLOCKS):
            targets = read_from(self._machine.config, product.m, placement)[operand]
            found += [moves for target in targets if (moves := self._to(operand, matrix, target))[1] != matrix]
        return found

    def _to(self, operand: int, matrix: Stored, target: DPPolicy) -> Moves:
        if (operand, target) not in self._found:
            machine, at = self._machine, Stored.of(self._machine.config, matrix.shape, target)
            found: list[Moves] = [((target,), at, move_ns(machine, matrix, at))]
            if target != BY_ROWS:  # elements on one PE are first spread by rows, in whole lines
                rows = Stored.of(machine.config, matrix.shape, BY_ROWS)
                found.append(((BY_ROWS, target), at, move_ns(machine, matrix, rows) + move_ns(machine, rows, at)))
            self._found[operand, target] = min(found, key=lambda moves: moves[2])
        return self._found[operand, target]
