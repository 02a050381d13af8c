"""One collective over all SIPs of a machine, its values checked, by any entry of ccl.yaml."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from kernbench._dtypes import as_dtype
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.config import AUTO
from kernbench.errors import ArgumentError, ConfigError, VerificationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine

_CUT = ("reduce_scatter", "all_to_all")  # these divide a rank's tensor into a part for each rank


def collective(
    torch: RuntimeContext, *, collective: str = "all_reduce", algorithm: str = AUTO, nbytes: int = 65536,
    dtype: str = "f16",
) -> None:  # fmt: skip
    """Run one collective over all SIPs of the machine, a rank on each, and check its values.

    Parameters
    ----------
    torch : RuntimeContext
    collective : str
        all_reduce, broadcast, reduce, reduce_scatter, all_gather, all_to_all or barrier.
    algorithm : str
        An entry of ccl.yaml for it, or "auto": the best of a short list that is simulated.
    nbytes : int
        Size of each rank's contribution; for an algorithm with contributions of cubes or PEs, of each shard.
    dtype : str
        Of the elements.

    Raises
    ------
    ConfigError
        If the machine cannot run it; each fault begins with the name of the parameter.
    VerificationError
        If a rank ends with other values than numpy.

    Examples
    --------
    >>> from functools import partial
    >>> import kernbench as kb
    >>> machine = kb.load("preset:small", overrides=["system.sips.count=2"])
    >>> kb.run(partial(collective, collective="broadcast", nbytes=256), machine, data=True).ok
    True
    """
    machine = torch.engine.machine
    n, cubes, pes = planned(machine, collective, algorithm, nbytes, dtype)
    world, kind = machine.config.n_sips, as_dtype(dtype)
    shards, dp = cubes * pes, DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    given = np.random.default_rng(n).integers(-4, 5, (world, shards, n)).astype(np.float32)  # sums are exact

    def rank_program(rank: int) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm", pg_options=None if algorithm == AUTO else {collective: algorithm})
        if collective == "barrier":
            dist.barrier()
            return
        x = _tensor(torch, given[rank], kind, dp)
        out = _outcome(torch, dist, collective, x, world, kind, dp)
        torch.ahbm.synchronize(rank)
        check(rank, out)

    def check(rank: int, out: Any) -> None:
        expected = _expected(collective, given, rank)
        if torch.engine.data and expected is not None:
            if not np.array_equal(out.numpy().astype(np.float32).reshape(expected.shape), expected):
                raise VerificationError(f"{collective} by {algorithm}: rank {rank} ends with other values than numpy")
            torch.checks += 1

    if collective != "all_to_all":
        torch.multiprocessing.spawn(rank_program, nprocs=world)
        return
    # Without an algorithm of ccl.yaml, the ranks exchange messages of torch.distributed.
    pairs = []
    for rank in range(world):
        with torch.ahbm.device(rank):
            x = _tensor(torch, given[rank].ravel(), kind, dp)
            pairs.append((x, torch.empty(*x.shape, dtype=kind, device="ahbm", dp=dp)))
    torch.collective(pairs, algorithm)
    for rank, (_, out) in enumerate(pairs):
        torch.ahbm.synchronize(rank)
        check(rank, out)


def planned(machine: Machine, collective: str, algorithm: str, nbytes: int, dtype: str) -> tuple[int, int, int]:
    """Elements of a shard, and the cubes and PEs per cube of a rank that have one; a ConfigError with all faults."""
    config, itemsize = machine.config, as_dtype(dtype).itemsize
    faults = []
    if config.n_sips < 2:
        faults.append(f"sips = {config.n_sips} must be at least 2: a collective joins SIPs")
    if nbytes % (unit := itemsize * (config.n_sips if collective in _CUT else 1)):
        faults.append(f"nbytes = {nbytes} must be a multiple of {unit}: of the bytes of an element for each rank")
    largest = config.cube.hbm.slice_bytes(config.pes_per_cube) // (2 * config.n_sips)
    if nbytes > largest:
        faults.append(f"nbytes = {nbytes} must be at most {largest}: so much fits an HBM slice with its result")
    if faults:
        raise ConfigError(faults)
    chosen = None if algorithm == AUTO else resolve_algorithm_config(algorithm, load_ccl_config(), config)
    over = "rank" if chosen is None else chosen.contribution
    cubes = 1 if over == "rank" else config.cubes_per_sip
    pes = config.pes_per_cube if over == "pe" else 1
    if chosen is not None:
        if chosen.collective != collective:
            raise ConfigError(f"algorithm = {algorithm!r} must be one for {collective}, not {chosen.collective}")
        try:
            plan(chosen, config, list(range(config.n_sips)), list(product(range(cubes), range(pes))))
        except (ConfigError, ArgumentError) as error:
            raise ConfigError(f"algorithm = {algorithm!r} does not run here: {error}") from error
    return nbytes // itemsize, cubes, pes


def _tensor(torch: RuntimeContext, values: np.ndarray, kind: Any, dp: DPPolicy) -> Any:
    where: dict[str, Any] = {"dtype": kind, "device": "ahbm", "dp": dp}
    if torch.engine.data:
        return torch.tensor(values.astype(kind.numpy), **where)
    return torch.empty(*values.shape, **where)


def _outcome(torch: RuntimeContext, dist: Any, collective: str, x: Any, world: int, kind: Any, dp: DPPolicy) -> Any:
    """Run a collective on this rank's tensor, of shape (shards, elements); return the tensor with the result."""
    match collective:
        case "all_reduce":
            dist.all_reduce(x)
        case "broadcast":
            dist.broadcast(x, src=0)
        case "reduce":
            dist.reduce(x, dst=0)
        case _:
            flat = x.view(-1)
            n = flat.shape[0]
            cut = collective == "reduce_scatter"
            out = torch.empty(n // world if cut else n * world, dtype=kind, device="ahbm", dp=dp)
            (dist.reduce_scatter_single if cut else dist.all_gather_single)(out, flat)
            return out
    return x


def _expected(collective: str, given: np.ndarray, rank: int) -> np.ndarray | None:
    """Compute the values of a rank with numpy; None if undefined. `given` has shape (ranks, shards, elements)."""
    flat = given.reshape(len(given), -1)
    own = np.array_split(flat, len(given), axis=1)[rank]  # the part of each rank's tensor for this one
    found: dict[str, np.ndarray] = {
        "all_reduce": np.broadcast_to(given.sum(axis=(0, 1)), given[rank].shape),
        "broadcast": given[0],
        "all_gather": flat.ravel(),
        "reduce_scatter": own.sum(axis=0),
        "all_to_all": own.ravel(),
    }
    return given.sum(axis=0) if collective == "reduce" and rank == 0 else found.get(collective)
