"""The transfer of keys and values between two replicas, over the simulated network."""

from __future__ import annotations

from functools import lru_cache

from kernbench.ops.matmul import BY_ROWS
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.topology.builder import Machine

_SIZES = (64 * 1024, 256 * 1024)  # bytes of a SIP that are simulated (chosen)


@lru_cache(maxsize=8)
def transfer_line(machine: Machine, tp: int) -> tuple[float, float]:
    """Return latency [ns] and time per byte of a SIP [ns] of a transfer from each of `tp` SIPs to one of the next `tp`.

    All SIPs send at once; two sizes are simulated, and times are linear in the size.
    """
    sips = {"system.sips": {"count": 2 * tp, "topology": "ring_1d"}}
    whole = machine if machine.config.n_sips >= 2 * tp else machine.with_(sips)
    first, second = (_simulated_ns(whole, tp, nbytes) for nbytes in _SIZES)
    per_byte = (second - first) / (_SIZES[1] - _SIZES[0])
    return max(0.0, first - per_byte * _SIZES[0]), per_byte


def _simulated_ns(machine: Machine, tp: int, nbytes: int) -> float:
    def program(rank: int, torch: RuntimeContext) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm")
        x = torch.empty(nbytes // 2048, 1024, dtype=torch.float16, device="ahbm", dp=BY_ROWS)
        if rank < tp:
            dist.send(x, rank + tp)
        else:
            dist.recv(x, rank - tp)

    with session(machine, log="off") as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=2 * tp)
    return torch.result.latency_ns
