"""An all-reduce over all devices by any algorithm of ccl.yaml, with its sums checked."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from kernbench.benches.registry import bench
from kernbench.ccl.algorithm import devices
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.config import AUTO
from kernbench.errors import ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import check
from kernbench.runtime_api.context import RuntimeContext

ALGORITHM = "intercube_allreduce"
EXACT_IN_F16 = 2048


@bench("ccl-allreduce", "all-reduce over all devices, with its sums checked")
def _run(
    torch: RuntimeContext,
    algorithm: Annotated[str, "an entry of ccl.yaml, pkg.mod:algorithm, or auto"] = ALGORITHM,
    n_elem: Annotated[int | None, "elements of each participant; by default those of ccl.yaml"] = None,
) -> None:
    """Device r contributes r + 1: once, from every cube or from every PE, by the algorithm's contribution.

    The sum is then sum(1..devices) times the contributions of a device: `n_cubes * sum(1..world)` of the intercube
    ones.
    """
    config = torch.engine.machine.config
    ccl = load_ccl_config(machine=config)
    # AUTO is resolved by `collective`, once the tensors exist, among the algorithms with torch's meaning.
    found = None if algorithm == AUTO else resolve_algorithm_config(algorithm, ccl, config)
    if found is not None and found.collective != "all_reduce":
        raise ConfigError(f"algorithm {algorithm!r} does {found.collective}; this bench checks an all_reduce")
    contribution = "rank" if found is None else found.contribution
    cubes = 1 if contribution == "rank" else config.cubes_per_sip
    pes = config.pes_per_cube if contribution == "pe" else 1
    own = [(cube, pe) for cube in range(cubes) for pe in range(pes)]
    sips = range(config.n_sips) if found is None else devices(found, config, own)
    n_elem = n_elem or (found and found.n_elem) or ccl.defaults.n_elem
    total = len(own) * sum(range(1, len(sips) + 1))
    dtype = torch.float16 if total <= EXACT_IN_F16 else torch.float32
    rows = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    tensors = [
        torch.full((len(own), n_elem), r + 1, dtype=dtype, device=f"ahbm:{sip}", dp=rows, name=f"x{r}")
        for r, sip in enumerate(sips)
    ]
    plan = torch.collective(tensors, found or AUTO, config=ccl)
    print(
        f"{plan.algorithm.name}: {plan.world_size} participants on {len(sips)} SIPs, {n_elem} elements of {dtype} "
        f"each; each {contribution}'s shard is one contribution"
    )
    for r, tensor in enumerate(tensors):
        expected = np.full((len(own), n_elem), total, np.float64) if torch.engine.data else None
        check(torch, f"device {r}: {len(own)} x sum(1..{len(sips)}) = {total}", tensor, expected)
