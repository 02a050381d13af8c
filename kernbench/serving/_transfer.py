"""The transfer of keys and values between two replicas, over the simulated network."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kernbench.ops.matmul import BY_ROWS
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.topology.builder import Machine

# Bytes of a SIP that are simulated (chosen): closer where protocols change, and up to where the rate stays.
_SIZES = tuple(2**i for i in (12, 16, 18, 20, 21, 22, 24))


def transfer_ns(machine: Machine, tp: int, nbytes: int) -> float:
    """Return the time of a transfer of `nbytes` from each of `tp` SIPs to one of the next `tp`, all at once [ns].

    Between simulated sizes, times are linear; above the largest, they grow as between the last two.
    """
    times = _times(machine, tp)
    if nbytes <= _SIZES[-1]:
        return float(np.interp(nbytes, _SIZES, times))
    return times[-1] + (times[-1] - times[-2]) / (_SIZES[-1] - _SIZES[-2]) * (nbytes - _SIZES[-1])


@lru_cache(maxsize=8)
def _times(machine: Machine, tp: int) -> tuple[float, ...]:
    sips = {"system.sips": {"count": 2 * tp, "topology": "ring_1d"}}
    whole = machine if machine.config.n_sips >= 2 * tp else machine.with_(sips)
    return tuple(_simulated_ns(whole, tp, nbytes) for nbytes in _SIZES)


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
