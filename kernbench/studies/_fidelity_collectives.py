"""Collectives of devices, timed as nccl-tests does: one by one, or in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernbench._dtypes import as_dtype
from kernbench._units import KIB, MIB
from kernbench.config import MachineConfig
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.builder import Machine

MOST_BYTES = 4 * MIB  # of a collective that is called three times in a row: larger ones take minutes to simulate
_SPREAD = 64 * KIB  # bytes of each cube from which on a rank's tensor is spread over all cubes


def timed_collective(name: str, machine: Machine, **parameters: Any) -> float:
    """Time of a collective as nccl-tests measures it [ns]: the mean of calls that the host issues at once.

    With `calls` graph, of those of one graph; with difference, how much longer it takes without the graph.
    """
    took: dict[int, float] = {}
    run_program(machine, partial(_ranks, name=name, took=took, **parameters), log="off", data=False)
    return max(took.values())


def _ranks(torch: RuntimeContext, **call: Any) -> None:
    torch.multiprocessing.spawn(partial(_rank, **call), args=(torch,), nprocs=call["ranks"])


def _rank(
    rank: int, torch: RuntimeContext, *, name: str, took: dict[int, float], bytes: int, ranks: int,
    dtype: str = "f32", algorithm: str = "", cubes: int = 0, pes: int = 1, devices_per_thread: int = 1,
    calls: str = "eager", call_us: float = 0,
) -> None:  # fmt: skip
    dist, kind = torch.distributed, as_dtype(dtype)
    dist.init_process_group("ahbm", pg_options={name: algorithm} if algorithm else None)
    cubes = cubes or _cubes(torch.engine.machine.config, bytes)
    dp = DPPolicy(cube="column_wise", pe="column_wise", num_cubes=cubes, num_pes=pes)

    def tensors(elements: int) -> list[Tensor]:
        sizes = (elements * ranks, elements, elements * ranks)
        return [torch.empty(n, dtype=kind, device="ahbm", dp=dp) for n in sizes]

    def timed(n: int, given: Sequence[Tensor], graph: bool) -> float:
        def issue() -> None:
            for _ in range(n):
                CALLS[name](dist, *given)

        run = issue
        if graph:
            with torch.ahbm.graph() as captured:
                issue()
            run = captured.replay
        dist.barrier()
        torch.ahbm.synchronize()
        start = torch.engine.now_ns
        run()
        torch.ahbm.synchronize()
        return float(torch.engine.now_ns - start)

    elements = max(1, bytes // kind.itemsize // ranks)
    long = bytes > MOST_BYTES and not call_us
    some = tensors(cubes * pes if long else elements)

    def mean(graph: bool) -> float:
        one, three = timed(1, some, graph), timed(3, some, graph)
        each = (three - one) / 2
        if long:  # of one call; the host prepares as much meanwhile as with short ones
            hidden, one = one - each, timed(1, tensors(elements), graph)
            each = one - hidden
        return (one + (_ITERATIONS - 1) * each) / _ITERATIONS

    timed(1, some, graph=False)  # the first call installs queues
    took[rank] = mean(graph=False) - mean(graph=True) if calls == "difference" else mean(calls == "graph")


_ITERATIONS = 20  # of nccl-tests, by default: the host prepares a call while the devices are busy with those before
# nccl-tests counts the bytes of the larger side.
CALLS: dict[str, Callable[[Any, Tensor, Tensor, Tensor], object]] = {
    "all_reduce": lambda dist, whole, part, other: dist.all_reduce(whole, async_op=True),
    "broadcast": lambda dist, whole, part, other: dist.broadcast(whole, 0, async_op=True),
    "reduce": lambda dist, whole, part, other: dist.reduce(whole, 0, async_op=True),
    "all_gather": lambda dist, whole, part, other: dist.all_gather_into_tensor(whole, part, async_op=True),
    "reduce_scatter": lambda dist, whole, part, other: dist.reduce_scatter_tensor(part, whole, async_op=True),
    "all_to_all": lambda dist, whole, part, other: dist.all_to_all_single(other, whole, async_op=True),
}


def _cubes(config: MachineConfig, nbytes: int) -> int:
    return config.cubes_per_sip if nbytes >= _SPREAD * config.cubes_per_sip else 1
