"""Published pipeline schedules, made without torch."""

from __future__ import annotations

from collections.abc import Callable

from kernbench._registry import hint
from kernbench.errors import ConfigError

# Rank, ranks, microbatches and stages of a rank.
_Order = Callable[[int, int, int, int], list[str]]


def _gpipe(rank: int, p: int, m: int, v: int) -> list[str]:
    return [f"{rank}{kind}{i}" for kind in "FB" for i in range(m)]


def _one_f_one_b(rank: int, p: int, m: int, v: int) -> list[str]:
    ahead = min(m, p - 1 - rank)
    steady = [f"{rank}{kind}{i + ahead * (kind == 'F')}" for i in range(m - ahead) for kind in "FB"]
    return [f"{rank}F{i}" for i in range(ahead)] + steady + [f"{rank}B{i}" for i in range(m - ahead, m)]


def _interleaved(rank: int, p: int, m: int, v: int) -> list[str]:
    def action(kind: str, k: int) -> str:
        chunk = k // p % v
        chunk = chunk if kind == "F" else v - 1 - chunk
        return f"{chunk * p + rank}{kind}{k // (p * v) * p + k % p}"

    total = m * v
    ahead = min(total, (v - 1) * p + 2 * (p - 1 - rank))
    steady = [action(kind, k + ahead * (kind == "F")) for k in range(total - ahead) for kind in "FB"]
    return [action("F", k) for k in range(ahead)] + steady + [action("B", k) for k in range(total - ahead, total)]


def _zb_h1(rank: int, p: int, m: int, v: int) -> list[str]:
    """As 1F1B, with the gradients of weights put off by `rank` microbatches: they fill the bubble at the end."""
    found, done = [], 0
    for action in _one_f_one_b(rank, p, m, v):
        stage, kind, i = action.partition("B")
        found.append(f"{stage}I{i}" if kind else action)
        if kind and int(i) >= rank:
            found.append(f"{rank}W{done}")
            done += 1
    return found + [f"{rank}W{i}" for i in range(done, m)]


_SCHEDULES: dict[str, _Order] = {
    "GPipe": _gpipe, "1F1B": _one_f_one_b, "Interleaved1F1B": _interleaved, "ZB-H1": _zb_h1,
}  # fmt: skip


def orders(schedule: str, ranks: int, microbatches: int, stages_per_rank: int = 1) -> dict[int, list[str]]:
    """Return a published schedule as the actions of each rank, in order.

    Parameters
    ----------
    schedule : {"GPipe", "1F1B", "Interleaved1F1B", "ZB-H1"}
        Torch's names, and ZB-H1 of Qi et al. (2023), with the memory of 1F1B.
    ranks : int
        Ranks of the pipeline.
    microbatches : int
        Parts of the batch; for "Interleaved1F1B" a multiple of `ranks`.
    stages_per_rank : int
        Stages of each rank (virtual pipeline stages), for "Interleaved1F1B": rank r has the stages r, r + ranks, ...

    Returns
    -------
    dict of int to list of str
        Ready for `run`; may be changed.

    Raises
    ------
    ConfigError
        If the schedule is unknown, or is not defined for these numbers.

    Notes
    -----
    GPipe: Huang et al., 2019. 1F1B and Interleaved1F1B: Narayanan et al., "Efficient large-scale language model
    training on GPU clusters using Megatron-LM", 2021. ZB-H1: Qi et al., "Zero bubble pipeline parallelism", 2023.

    Examples
    --------
    >>> orders("1F1B", ranks=2, microbatches=2)
    {0: ['0F0', '0F1', '0B0', '0B1'], 1: ['1F0', '1B0', '1F1', '1B1']}
    """
    if schedule not in _SCHEDULES:
        raise ConfigError(f"schedule = {schedule!r} is unknown; {hint(schedule, _SCHEDULES)}")
    numbers = {"ranks": ranks, "microbatches": microbatches, "stages_per_rank": stages_per_rank}
    faults = [f"{name} = {n} must be at least 1" for name, n in numbers.items() if n < 1]
    interleaved = schedule == "Interleaved1F1B"
    if not faults and interleaved and microbatches % ranks:
        faults.append(f"microbatches = {microbatches} must be a multiple of ranks = {ranks} for {schedule}")
    if not interleaved and stages_per_rank > 1:
        faults.append(f"stages_per_rank = {stages_per_rank}: {schedule} has one stage a rank; use Interleaved1F1B")
    if faults:
        raise ConfigError(faults)
    order = _SCHEDULES[schedule]
    return {rank: order(rank, ranks, microbatches, stages_per_rank) for rank in range(ranks)}
