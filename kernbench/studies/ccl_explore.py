"""All-reduce over the SIPs of a machine, for the explorer: any algorithm of ccl.yaml, or the one it would choose."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal

import numpy as np

from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.plan import plan
from kernbench.ccl.tuner import Decision, Tuner
from kernbench.config import AUTO
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective import SEEN
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.studies.ccl_run import check
from kernbench.studies.explore import SESSION_US, Choices, at_most, fits_slice
from kernbench.topology.builder import Machine


def _algorithms(_: Machine) -> list[str]:
    return [AUTO, *names(load_ccl_config(), "all_reduce")]


def explore(
    torch: RuntimeContext,
    *,
    algorithm: Annotated[str, "of ccl.yaml; auto: the best by closed form", Choices(_algorithms)] = AUTO,
    elements: Annotated[int, "of each SIP's tensor"] = 16384,
    cubes: Annotated[int, "of each SIP that hold a shard"] = 1,
    pes: Annotated[int, "of each cube that hold a shard"] = 1,
    dtype: Annotated[Literal["f16", "bf16", "f32"], "of the elements"] = "f16",
) -> Decision | str:
    """All-reduce of one tensor per SIP, over all SIPs of the machine."""
    kind, dp = as_dtype(dtype), DPPolicy(cube="column_wise", pe="column_wise", num_cubes=cubes, num_pes=pes)
    config = torch.engine.machine.config
    if config.n_sips < 2:
        raise ArgumentError("system.sips.count = 1 must be >= 2: one SIP has nobody to reduce with")
    rng = np.random.default_rng(elements)
    values = rng.integers(-4, 5, (config.n_sips, elements)).astype(np.float32)  # small whole numbers: sums are exact
    tensors = []
    for sip, own in enumerate(values.astype(kind.numpy)):
        where: dict[str, Any] = {"dtype": kind, "dp": dp, "device": f"ahbm:{sip}", "name": f"sip{sip}"}
        tensor = torch.tensor(own, **where) if torch.engine.data else torch.empty(elements, **where)
        assert isinstance(tensor, DeviceTensor)
        tensors.append(tensor)
    planned = torch.collective(tensors, algorithm)
    for sip in range(config.n_sips):  # of a tree, some devices end later than the first
        torch.ahbm.synchronize(sip)
    if torch.engine.data:
        shards = {(shard.sip, shard.cube, shard.pe): shard for tensor in tensors for shard in tensor.shards}
        own = {place: values[place[0]][shard.index] for place, shard in shards.items()}
        check(torch.engine, planned, {place: shard.pa for place, shard in shards.items()}, own, kind)
        torch.checks += 1
    return _decision(torch.engine.machine, tensors) if algorithm == AUTO else repr(planned).strip("<>")


def explore_cost(
    machine: Machine, data: bool, *, algorithm: str, elements: int, cubes: int, pes: int, dtype: str
) -> float:
    """Return the host time of `explore` [us]: programs, messages, and with data the reference sum."""
    config, itemsize, shards = machine.config, as_dtype(dtype).itemsize, cubes * pes
    faults = at_most(machine, cubes=cubes, pes=pes)
    if config.n_sips < 2:
        faults.append("system.sips.count = 1 must be >= 2: one SIP has nobody to reduce with")
    faults += fits_slice(machine, "elements", elements, -(-elements // shards) * itemsize)
    if faults:
        raise ConfigError(faults)
    lane, slot = config.n_sips, config.cube.pe.pe_ipcq.slot_bytes
    if algorithm != AUTO:
        chosen = resolve_algorithm_config(algorithm, load_ccl_config())
        if chosen.contribution != "rank" and elements % shards:
            raise ConfigError(f"elements = {elements} must be a multiple of cubes x pes = {shards} for {algorithm}")
        try:
            lane = plan(chosen, config, range(config.n_sips), list(product(range(cubes), range(pes)))).world_size
        except ConfigError as error:
            raise ConfigError(f"algorithm = {algorithm!r} does not run here: {error}") from error
        slot = chosen.slot_size or slot
    programs = config.n_sips * shards
    parts = 1 + elements * itemsize // shards // lane // slot
    values = 0.1 * elements * config.n_sips if data else 0.0
    return 3 * SESSION_US + programs * (4000 + 60 * lane * parts) + values


def _decision(machine: Machine, tensors: list[DeviceTensor]) -> Decision:
    """Return why "auto" chose what it chose."""
    config, first = load_ccl_config(), tensors[0]
    known = [resolve_algorithm_config(name, config) for name in names(config, contribution="rank")]
    nbytes = max(shard.nbytes for shard in first.shards)
    few = sorted({(shard.cube, shard.pe) for shard in first.shards})[:SEEN]
    return Tuner(machine, known).choose("all_reduce", nbytes, places=few, itemsize=first.dtype.itemsize)
