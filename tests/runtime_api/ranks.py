"""Run a program on every rank of a small machine, and get what each returns."""

from __future__ import annotations

from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


def on_ranks(program, n=2, *, torch=None, data=True, **options):
    """Return [program(torch, rank), ...] of `n` ranks; the process group is open in each."""
    if torch is None:
        with session(small(max(n, 2)), data=data) as torch:
            return on_ranks(program, n, torch=torch, **options)
    results = [None] * n

    def rank_program(rank):
        torch.distributed.init_process_group("ahbm", **options)
        results[rank] = program(torch, rank)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(rank_program, nprocs=n)
    return results
