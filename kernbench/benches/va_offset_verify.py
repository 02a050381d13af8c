"""Each PE reads another PE's shard as tensor base + shard offset: a check of placement and address translation."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import check, operand
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TLContext

_ELEMENTS = 512  # per PE


def take_next(src: Any, dst: Any, n: int, *, tl: TLContext) -> None:
    """Copy the next PE's `n` elements of `src` (cyclically) into this PE's part of `dst`."""
    pes = tl.num_programs(0) * tl.num_programs(1)
    pe = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(dst + pe * n, tl.load(src + (pe + 1) % pes * n, shape=(n,)))


@bench("va-offset-verify", "every PE of two cubes copies the next PE's shard, addressed as base + shard offset")
def _run(torch: RuntimeContext) -> None:
    """One row for each PE; the result is the input moved up by a row."""
    config = torch.engine.machine.config
    cubes, pes = min(2, config.cubes_per_sip), config.pes_per_cube
    rows = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    src, values = operand(torch, "src", (cubes * pes, _ELEMENTS), torch.float16, rows)
    dst = torch.zeros(cubes * pes, _ELEMENTS, dtype=torch.float16, dp=rows, name="dst")
    torch.launch("take-next", take_next, src, dst, _ELEMENTS)
    check(torch, "dst = src moved up by a row", dst, None if values is None else np.roll(values(), -1, axis=0))
