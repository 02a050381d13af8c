"""What the host tells a device: which physical ranges a tensor's virtual addresses mean, PE by PE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernbench.runtime_api.layout import TensorShard

Range = tuple[int, int, int]


def map_ranges(
    va: int, shards: Sequence[TensorShard], pes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Sequence[Range]]:
    """Return the ranges (va, nbytes, pa) that each of `pes`, as (cube, pe), needs for a tensor at `va`.

    Of a replicated part a PE gets its own copy, else one in its cube (the lowest PE's), else the first. Ranges that
    continue each other in both kinds of memory are one.
    """
    copies: dict[int, list[TensorShard]] = {}
    for shard in sorted(shards, key=lambda s: (s.offset, s.cube, s.pe)):
        copies.setdefault(shard.offset, []).append(shard)
    pes = list(pes)
    if all(len(same) == 1 for same in copies.values()):
        ranges = _ranges(va, [same[0] for same in copies.values()])
        return dict.fromkeys(pes, ranges)
    nearest = [_Copies(same) for same in copies.values()]
    return {(cube, pe): _ranges(va, [part.nearest(cube, pe) for part in nearest]) for cube, pe in pes}


class _Copies:
    """The copies of one part of a tensor, by where they are."""

    def __init__(self, shards: Sequence[TensorShard]) -> None:
        self._by_pe = {(s.cube, s.pe): s for s in shards}
        self._by_cube = {s.cube: s for s in reversed(shards)}
        self._first = shards[0]

    def nearest(self, cube: int, pe: int) -> TensorShard:
        return self._by_pe.get((cube, pe)) or self._by_cube.get(cube, self._first)


def _ranges(va: int, shards: Iterable[TensorShard]) -> Sequence[Range]:
    out: list[Range] = []
    for s in shards:
        start = va + s.offset
        if out and out[-1][0] + out[-1][1] == start and out[-1][2] + out[-1][1] == s.pa:
            out[-1] = out[-1][0], out[-1][1] + s.nbytes, out[-1][2]
        else:
            out.append((start, s.nbytes, s.pa))
    return tuple(out)
