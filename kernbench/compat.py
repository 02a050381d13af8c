"""Names of the reference design, with its signatures and meanings, for programs that were written for it.

The modules that such programs import call these functions; names with the same form here need no wrapper.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench._dtypes import DType, as_dtype
from kernbench._registry import hint
from kernbench.ccl.install import CclLike, load_ccl_config
from kernbench.ccl.install import resolve_algorithm_config as algorithm_of
from kernbench.config import AUTO
from kernbench.errors import ConfigError, PlacementError, quote
from kernbench.runtime_api._layout import TensorShard
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.topology.builder import resolve_topology

if TYPE_CHECKING:
    from kernbench.ccl.sfr_config import Wiring
    from kernbench.policy.address.allocator import PEMemAllocator
    from kernbench.policy.placement.dp import ShardSpec
    from kernbench.sim_engine.engine import GraphEngine

_Place = tuple[int, int, int]

# -- kernbench.ccl.install


def resolve_algorithm_config(config: CclLike, algorithm: str | None = None) -> dict[str, Any]:
    """Return the defaults of a ccl.yaml, overlaid by the entry of `algorithm` (default: that of the defaults).

    Slots not set there are those of the nearest topology.yaml. `auto` has no entry: its module chooses.
    """
    ccl = load_ccl_config(config)
    name = algorithm or ccl.defaults.algorithm
    if name == AUTO:
        entry: Mapping[str, Any] = {"module": "kernbench.ccl.tuner", "topology": AUTO}
    else:
        algorithm_of(name, ccl)  # raises if there is none of that name
        entry = ccl.algorithms[name]
    return {**_queues(resolve_topology().config.cube.pe.pe_ipcq), **ccl.defaults, **entry, "algorithm": name}


def _queues(ipcq: Any) -> dict[str, int]:
    return {
        "n_slots": ipcq.n_slots,
        "slot_size": ipcq.slot_bytes,
        "ipcq_credit_size_bytes": ipcq.credit_bytes,
    }


# -- kernbench.ccl.sfr_config

_EVERY_LAUNCH = ""  # key of the queues of launches that name none


def install_queues(engine: GraphEngine, wiring: Wiring, cfg: Mapping[str, Any] | None) -> None:
    """Reserve rings and install queues for all later launches that name none, in addition to those installed before."""
    given = load_ccl_config(None if cfg is None else {"defaults": _defaults(cfg)}).defaults
    setting = {**_queues(engine.machine.config.cube.pe.pe_ipcq), **given}
    nbytes = setting["n_slots"] * setting["slot_size"]
    rings = {
        (place, way): engine.allocators.ring(setting["buffer_kind"], place, nbytes)
        for place, neighbours in wiring.items()
        for way in neighbours
    }
    by_sip: dict[int, dict[tuple[int, int], list[QueueSpec]]] = {}
    for place, neighbours in wiring.items():
        by_sip.setdefault(place[0], {})[place[1:]] = [
            QueueSpec(
                direction=way,
                peer=peer,
                ring_pa=rings[place, way],
                peer_pa=rings[peer, back],
                kind=setting["buffer_kind"],
                n_slots=setting["n_slots"],
                slot_bytes=setting["slot_size"],
                credit_bytes=setting["ipcq_credit_size_bytes"],
                chunk_bytes=setting["vc_chunk_size"],
            )
            for way, (peer, back) in neighbours.items()
        ]
    key = f"sfr {engine.env.now}"
    for done in [engine.install(sip, specs, key) for sip, specs in by_sip.items()]:
        engine.wait(done)
    for place in wiring:
        sets: Any = engine.pe(*place).ipcq.sets
        sets.setdefault(_EVERY_LAUNCH, {}).update(sets.pop(key))


def _defaults(cfg: Mapping[str, Any]) -> dict[str, Any]:
    known = load_ccl_config({}).defaults
    queues = ("n_slots", "slot_size", "ipcq_credit_size_bytes")
    return {key: value for key, value in cfg.items() if (key in known or key in queues) and key != "algorithm"}


# -- kernbench.ccl.diagnostics

TRACE = "KERNBENCH_CCL_TRACE"
_traces: bool | None = None


def trace_enabled() -> bool:
    """Whether messages between PEs are traced: KERNBENCH_CCL_TRACE=1, read once."""
    return reload_trace_setting() if _traces is None else _traces


def reload_trace_setting() -> bool:
    global _traces  # noqa: PLW0603  one process has one environment
    _traces = os.environ.get(TRACE) == "1"
    return _traces


def log_send(*what: object, **fields: object) -> None:
    """Print a line about a message to stderr, if messages are traced; engines trace theirs themselves."""
    if trace_enabled():
        print("send", *what, *(f"{key}={value}" for key, value in fields.items()), file=sys.stderr)


# -- kernbench.runtime_api.tensor


@dataclass(frozen=True, slots=True)
class DeployedTensor:
    name: str
    shape: tuple[int, ...]
    dtype: DType
    shards: tuple[TensorShard, ...]
    mem_kind: str


def deploy_tensor(
    *, shape: Sequence[int], dtype: DType | str, placement: Sequence[ShardSpec],
    allocators: Mapping[_Place, PEMemAllocator], name: str = "tensor", mem_kind: str = "hbm",
) -> DeployedTensor:  # fmt: skip
    """Allocate memory for each shard of a placement; AllocationError, and nothing allocated, if one does not fit."""
    if mem_kind not in ("hbm", "tcm"):
        raise ConfigError(f"deploy_tensor: mem_kind = {quote(mem_kind)} is unknown; {hint(mem_kind, ('hbm', 'tcm'))}")
    shards: list[TensorShard] = []
    try:
        for spec in placement:
            place = spec.sip, spec.cube, spec.pe
            if place not in allocators:
                raise PlacementError(
                    f"deploy_tensor: {name}: allocators has none for (sip, cube, pe) = {place}; add it"
                )
            memory = allocators[place]
            pa = memory.alloc_hbm(spec.nbytes) if mem_kind == "hbm" else memory.alloc_tcm(spec.nbytes)
            shards.append(TensorShard(*place, pa, spec.offset_bytes, spec.nbytes, spec.index))
    except BaseException:
        for shard in shards:
            allocators[shard.sip, shard.cube, shard.pe].free(shard.pa)
        raise
    return DeployedTensor(name, tuple(shape), as_dtype(dtype), tuple(shards), mem_kind)


# -- kernbench.benches and kernbench probe

BENCHES = {"ipcq-allreduce": "ccl-allreduce", "matmul-composite": "matmul"}
BENCH_VARIABLES = {"algorithm": "CCL_ALGORITHM", "n_elem": "CCL_N_ELEM"}  # defaults of these parameters of a bench
PROBE_CASES = {"pe-local-hbm": "own-slice-read"}
