"""`torch.distributed.ReduceOp`: how the values of ranks are joined."""

from __future__ import annotations

from enum import Enum

from kernbench.errors import quote
from kernbench.registry import hint


class ReduceOp(Enum):
    """How the values of ranks are joined, element by element; those of 16 bits in f32.

    `AVG` is the sum over the ranks of the group, divided by their number. Wherever torch takes one, its name will do:
    `op="sum"`.
    """

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, op: ReduceOp | str) -> ReduceOp:
        """Return `op`, or what its name means.

        Raises
        ------
        ValueError
            If there is no such operation.
        """
        if isinstance(op, cls):
            return op
        try:
            return cls(str(op).lower())
        except ValueError:
            known = [each.value for each in cls]
            raise ValueError(f"op = {quote(op)} is no reduction; {hint(str(op).lower(), known)}") from None
