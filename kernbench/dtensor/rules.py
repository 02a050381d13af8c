"""What an operation makes of the placements of its operands, one mesh axis at a time; forward only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.dtensor.placements import Partial, Placement, Replicate, Shard

Rule = tuple[tuple[Placement, ...], Placement]  # what the operands have to be, and what the result is then
Bytes = Callable[[int, Placement, Placement], float]

R, P = Replicate(), Partial()
MATMUL: tuple[Rule, ...] = (
    ((R, R), R),
    ((Shard(0), R), Shard(0)),
    ((R, Shard(1)), Shard(1)),
    ((Shard(1), Shard(0)), P),
    ((P, R), P),
    ((R, P), P),
)


def elementwise(ndim: int, operands: int, linear: bool) -> tuple[Rule, ...]:
    """Return the rules of an operation that works element by element on `operands` tensors of one shape.

    `linear`: the operation of summands sums to the operation of the sums, as for adding.
    """
    same: list[Placement] = [R, *(Shard(dim) for dim in range(ndim)), *([P] if linear else [])]
    return tuple(((placement,) * operands, placement) for placement in same)


def multiply(ndim: int) -> tuple[Rule, ...]:
    """Return the rules of an element-wise product: one factor may be a summand."""
    return (*elementwise(ndim, 2, linear=False), ((P, R), P), ((R, P), P))


def moved(source: Placement, target: Placement, nbytes: float, ranks: int) -> float:
    """Return the bytes that a rank sends to change one operand of `nbytes` in all; infinite where there is no way.

    A local step is free; a ring's share is counted for the rest.
    """
    if source == target or isinstance(source, Replicate):
        return 0.0
    if isinstance(target, Partial):
        return float("inf")
    share = nbytes * (ranks - 1) / ranks
    match source, target:
        case Shard(), Shard():
            return share / ranks
        case Partial(), Replicate():
            return 2 * share
    return share


def choose(
    rules: Sequence[Rule], operands: Sequence[Placement], nbytes: Sequence[float], ranks: int
) -> tuple[tuple[Placement, ...], Placement]:
    """Return the rule to which the operands come with fewest bytes moved; the first of equals.

    >>> choose(MATMUL, (Shard(1), R), (1.0, 1.0), 4)
    ((Shard(dim=1), Shard(dim=0)), Partial(sum))
    """

    def cost(rule: Rule) -> float:
        return sum(moved(a, b, n, ranks) for a, b, n in zip(operands, rule[0], nbytes, strict=True))

    exact = [rule for rule in rules if rule[0] == tuple(operands)]
    return exact[0] if exact else min(rules, key=cost)
