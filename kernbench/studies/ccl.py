"""Collectives on many systems: which algorithm is fastest at which size, how far from the bounds, and what limits it.

Shards are where the algorithm's contribution has them: on PE 0 of cube 0 of each SIP (by rank), on PE 0 of every cube
(by cube), or on every PE (by PE).
"""

from __future__ import annotations

import csv
import hashlib
import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

import kernbench.studies.ccl_report as report
from kernbench._dtypes import as_dtype
from kernbench._registry import hint
from kernbench.ccl._bus_bandwidth import bus_factor
from kernbench.ccl.algorithm import Algorithm, plan
from kernbench.ccl.alpha_beta import Estimate, alpha_beta
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import Decision
from kernbench.config import AUTO, CclConfig, MachineConfig, default_ccl_path
from kernbench.errors import ArgumentError, ConfigError, KernbenchError
from kernbench.points._keys import Row, machine_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.collective import check_results, run_collective, simulator, tuner_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.study import LABELS, MACHINE, Choices, Parameter, Study, at_most, fits_slice, scaled, sips_of
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine

# (count, topology) or (count, topology, w, h), as `system.sips` of a machine file has them.
_System = Sequence[Any]

SIX = (6, "torus_2d", 3, 2)
INTERCUBE = "intercube_allreduce"
_RING = "ring_allreduce_tcm"
ONE_EACH = (_RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce", "double_tree_allreduce")
LISTED = (_RING, "torus_allreduce", "halving_doubling_allreduce", "tree_allreduce")
CHUNK, LONG = 32 << 10, 128 << 10  # of lists; long vectors go in chunks twice as long
SMALL_SLOT = 1024

# Packaged lists, and the types in which they count bytes.
_FILES = {"deepbench": "deepbench_allreduce.csv", "llama3-70b": "llama3_70b_allreduce.csv"}
_TYPES = {"deepbench": "f32", "llama3-70b": "bf16"}
_VISIBLE = 0.01  # links busy for less are not kept
_PROGRAM = 10  # a program, with its launch and its queues, takes about as long to simulate as so many sends
_SETTINGS = ("n_slots", "slot_size", "buffer_kind", "root_cube", "options")  # what a point changes in an algorithm


# What halves each resource (doubles a latency): factors of fields of the machine file; none first.
_HALVED: dict[str, dict[str, float]] = {
    report.UNCHANGED: {},
    "link between SIPs": {"system.sip_link.bw_gbs": 0.5},
    "latency between SIPs": {"system.sip_link.latency_ns": 2},
    "UCIe": {"cube.ucie.bw_gbs": 0.5},
    "latency of UCIe ports": {"cube.ucie.port_ns": 2},
    "slots": {"cube.pe.pe_ipcq.n_slots": 0.5},
    "HBM": {"cube.hbm.channel_bw_gbs": 0.5},
    "vector engine": {"cube.pe.pe_math.clock_ghz": 0.5},
    "issue of commands": {"cube.pe.pe_cpu.command_ns": 2},
}


class PlannedCollective:
    def __init__(
        self, machine: Machine, algorithm: Algorithm, targets: Sequence[PeId] = (), itemsize: int = 2,
        nbytes: int | None = None, call_bytes: int | None = None,
    ) -> None:  # fmt: skip
        config = machine.config
        cubes = 1 if algorithm.contribution == "rank" else config.cubes_per_sip
        pes = config.pes_per_cube if algorithm.contribution == "pe" else 1
        self.machine, self._itemsize = machine, itemsize
        places = list(targets or product(range(cubes), range(pes)))
        call_bytes = call_bytes or (None if nbytes is None else nbytes * len(places))
        self.plan = plan(algorithm, config, range(config.n_sips), places, call_bytes)

    @cached_property
    def estimate(self) -> Estimate:
        return Estimate(self.plan, alpha_beta(self.machine, simulator(self.machine)), self._itemsize)

    @property
    def bounds(self) -> Bounds:
        """Lower bounds, which all algorithms on the same PEs share."""
        model = alpha_beta(self.machine, simulator(self.machine))
        return model.bounds(self.plan.programs, self.plan.algorithm.contribution)

    def work(self, nbytes: int) -> int:
        """Relative simulation effort, so that the longest case starts first."""
        slot = self.plan.algorithm.slot_size
        assert slot is not None
        programs = len(self.plan.programs)
        if not self.estimate.known:
            return programs * (_PROGRAM + 4 * -(-nbytes // slot))
        sent = [(x.messages * x.connections, -(-x.nbytes // slot)) for x in self.estimate.sent(nbytes)]
        return _PROGRAM * programs + sum(messages * (1 + parts) for messages, parts in sent)


def case_of(
    machine: Machine,
    *,
    algorithm: str,
    dtype: str = "f16",
    cubes: int = 0,
    pes: int = 0,
    nbytes: int | None = None,
    call_bytes: int | None = None,
    entry: Mapping[str, Any] | None = None,
    own: Mapping[str, str] | None = None,
    **settings: Any,
) -> PlannedCollective:
    """Cache cases per process: for all sizes of a point, if the machine has no protocols that these choose.

    `call_bytes` are those of a device, which choose the protocol; those of all shards unless given.
    """
    changed = {name: value for name, value in settings.items() if value is not None}
    entry = load_ccl_config().to_spec() if entry is None and own is None else entry
    ipcq = machine.config.cube.pe.pe_ipcq
    size = [nbytes, call_bytes] if ipcq.ll.up_to_bytes or ipcq.ll128.up_to_bytes else [None, None]
    return _case(machine, json.dumps([algorithm, dtype, cubes, pes, *size, entry, own, changed], sort_keys=True))


@lru_cache(maxsize=256)
def _case(machine: Machine, text: str) -> PlannedCollective:
    algorithm, dtype, cubes, pes, nbytes, call_bytes, entry, own, changed = json.loads(text)
    found = _resolved(algorithm, entry, own)
    targets = list(product(range(cubes or 1), range(pes or 1))) if cubes or pes else []
    itemsize = as_dtype(dtype).itemsize
    return PlannedCollective(machine, replace(found, **changed), targets, itemsize, nbytes, call_bytes)


def _resolved(algorithm: str, entry: Mapping[str, Any] | None, own: Mapping[str, str] | None) -> Algorithm:
    if own is None:
        return resolve_algorithm_config(algorithm, entry)
    known = {found.name: found for found in algorithms(own["file"])}
    if algorithm not in known:
        raise ConfigError(f"{own['file']}: algorithm {algorithm!r} is unknown; {hint(algorithm, known)}")
    return known[algorithm]


def algorithms(path: str | Path) -> list[Algorithm]:
    """Load the algorithms that a Python file defines, each in a variable or in a list."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"own = {str(path)!r} is not a file; give the path of a Python file with algorithms")
    left = [value for name, value in runpy.run_path(str(file)).items() if not name.startswith("_")]
    each = [item for value in left for item in (value if isinstance(value, list | tuple) else [value])]
    found = {id(item): item for item in each if isinstance(item, Algorithm)}
    if not found:
        raise ConfigError(
            f"{file.name}: has no algorithm; make one of each kernel, as in "
            "mine = kernbench.ccl.algorithm.algorithm(kernel)"
        )
    known = [item.name for item in found.values()]
    twice = next((name for name in known if known.count(name) > 1), None)
    if twice:
        raise ConfigError(f"{file.name}: two algorithms are called {twice!r}; give one another name=")
    return list(found.values())


def _choices(_: Machine) -> list[str]:
    return [AUTO, *names(load_ccl_config(), "all_reduce")]


class CclStudy(Study):
    """Collectives on many systems: time by size, compared with a lower bound and with the alpha-beta model."""

    name, title = "ccl", "Collectives"
    parameters: ClassVar = {
        "ccl_file": Parameter("", "ccl.yaml whose algorithms are compared; empty: the packaged one"),
        "own": Parameter("", "Python file with user-defined algorithms"),
        "by_rank": Parameter([], "systems and sizes of all-reduces of one PE of each SIP"),
        "by_cube": Parameter([], "systems and sizes of all-reduces of one PE of each cube"),
        "by_pe": Parameter([], "systems and sizes of all-reduces of all PEs"),
        "others": Parameter({"systems": [], "sizes": []}, "systems and sizes of the other collectives"),
        "kinds": Parameter([], "sizes with queues in TCM, SRAM and HBM", "B"),
        "root_bytes": Parameter(2048, "size with each cube as the root", "B"),
        "more_sips": Parameter({"counts": [], "topology": "ring_1d", "sizes": []}, "growing numbers of SIPs"),
        "more_slots": Parameter({"counts": [], "nbytes": 65536}, "growing numbers of slots"),
        "halved": Parameter([], "sizes with each resource halved", "B"),
        "real": Parameter({"lists": [], "system": [2, "ring_1d"]}, "all-reduces of real programs"),
        "marks": Parameter([], "sizes of the reference design's figures", "B"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings, files = staticmethod(report.tables), staticmethod(report.findings), staticmethod(report.files)

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        points, refused = _admitted(machine, parameters)
        if points:
            return []
        return [f"{name}: {why}" for name, why in refused.items()] or ["no size is given; give by_rank at least one"]

    def points(self, machine: Machine, **parameters: Any) -> list[Row]:
        return _admitted(machine, parameters)[0]

    def refused(self, machine: Machine, **parameters: Any) -> dict[str, str]:
        return _admitted(machine, parameters)[1]

    def work(self, machine: Machine, *, nbytes: int, **point: Any) -> float:
        return case_of(machine, **_settings(point)).work(nbytes)

    def simulate(
        self,
        machine: Machine,
        *,
        algorithm: str = _RING,
        nbytes: int = 16384,
        dtype: str = "f16",
        cubes: int = 0,
        pes: int = 0,
        n_slots: int | None = None,
        slot_size: int | None = None,
        buffer_kind: str | None = None,
        root_cube: int | str | None = None,
        options: Mapping[str, Any] | None = None,
        links: bool = False,
        entry: Mapping[str, Any] | None = None,
        own: Mapping[str, str] | None = None,
    ) -> Row:
        """Run one collective over all SIPs of the machine.

        `nbytes` is the size of a shard, on its larger side. `cubes` of each SIP and `pes` of each cube have a shard; 0:
        as the algorithm's contribution says. `n_slots` to `options` override the entry `algorithm` of the ccl.yaml,
        whose content is `entry` (default: the nearest one). With `links`, the row contains how busy each link was.
        `own` has the `file` of a user-defined algorithm and its hash `sha256`; its values are compared with numpy's,
        and `failed` says why it fails.
        """
        changed = {
            "n_slots": n_slots, "slot_size": slot_size, "buffer_kind": buffer_kind, "root_cube": root_cube,
            "options": options,
        }  # fmt: skip
        case = case_of(
            machine, algorithm=algorithm, dtype=dtype, cubes=cubes, pes=pes, nbytes=nbytes, call_bytes=None,
            entry=entry, own=own, **changed,
        )  # fmt: skip
        planned, config = case.plan, machine.config
        used, itemsize, n = planned.algorithm, as_dtype(dtype).itemsize, len(planned.shards[0])
        shards = sum(map(len, planned.shards))
        bound = case.bounds.of(used.collective, nbytes, itemsize)
        row: Row = {
            "bound_ns": bound.ns, "estimate_ns": case.estimate.ns(nbytes) if case.estimate.known else None,
            "bound_by": bound.by, "collective": used.collective, "contribution": used.contribution,
            "algorithm": algorithm, "buffer_kind": used.buffer_kind, "n_slots": used.n_slots,
            "slot_size": used.slot_size, "root_cube": used.root_cube,
            "sip_topology": config.system.sips.topology, "n_sips": config.n_sips, "contributions": n,
            "programs": len(planned.programs), "n_elem": nbytes // itemsize, "dtype": dtype, "bytes_per_pe": nbytes,
            "bytes_per_sip": nbytes * shards // config.n_sips,
        }  # fmt: skip
        if own is not None:
            row["own"] = Path(own["file"]).name
        try:
            ran = run_collective(machine, planned, nbytes, dtype=dtype, data=own is not None)
        except KernbenchError as error:
            if own is None:
                raise
            return row | {"failed": str(error).splitlines()[0]}
        algbw = nbytes * shards / n / ran.latency_ns  # a contribution is on so many PEs
        link, busy = ran.hottest
        kept = {name: round(share, 4) for name, share in ran.links.items() if share >= _VISIBLE} if links else {}
        times = {"latency_ns": ran.latency_ns, "busbw_gbs": algbw * bus_factor(used.collective, n)}
        row |= {"algbw_gbs": algbw, "hottest_link": link, "hottest_busy": busy}
        return times | row | ({"links": kept} if kept else {})

    def program(
        self,
        torch: RuntimeContext,
        *,
        algorithm: Annotated[
            str, "of ccl.yaml; auto: the best of a short list that is simulated", Choices(_choices)
        ] = AUTO,
        elements: Annotated[int, "of each SIP's tensor"] = 16384,
        cubes: Annotated[int, "of each SIP that hold a shard"] = 1,
        pes: Annotated[int, "of each cube that hold a shard"] = 1,
        dtype: Annotated[Literal["f16", "bf16", "f32"], "of the elements"] = "f16",
    ) -> Decision | str:
        """All-reduce of one tensor per SIP, over all SIPs of the machine."""
        kind, dp = as_dtype(dtype), DPPolicy(cube="column_wise", pe="column_wise", num_cubes=cubes, num_pes=pes)
        config = torch.engine.machine.config
        if config.n_sips < 2:
            raise ArgumentError("system.sips.count = 1 must be >= 2: an all-reduce over SIPs needs two")
        rng = np.random.default_rng(elements)
        values = rng.integers(-4, 5, (config.n_sips, elements)).astype(np.float32)  # whole numbers: sums are exact
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
            given = {place: values[place[0]][shard.index] for place, shard in shards.items()}
            check_results(torch.engine, planned, {place: shard.pa for place, shard in shards.items()}, given, kind)
            torch.checks += 1
        return _decision(torch.engine.machine, tensors) if algorithm == AUTO else repr(planned).strip("<>")

    def faults(self, machine: Machine, *, algorithm: str, elements: int, cubes: int, pes: int, dtype: str) -> list[str]:
        shards = cubes * pes
        faults = at_most(machine, cubes=cubes, pes=pes)
        if machine.config.n_sips < 2:
            faults.append("system.sips.count = 1 must be >= 2: an all-reduce over SIPs needs two")
        faults += fits_slice(machine, "elements", elements, -(-elements // shards) * as_dtype(dtype).itemsize)
        if faults or algorithm == AUTO:
            return faults
        chosen = resolve_algorithm_config(algorithm, load_ccl_config())
        if chosen.contribution != "rank" and elements % shards:
            return [f"elements = {elements} must be a multiple of cubes x pes = {shards} for {algorithm}"]
        try:
            PlannedCollective(machine, chosen, list(product(range(cubes), range(pes))))
        except ConfigError as error:
            return [f"algorithm = {algorithm!r} does not run here: {error}"]
        return []


def _admitted(machine: Machine, parameters: Mapping[str, Any]) -> tuple[list[Row], dict[str, str]]:
    """Points, each with the entry of its algorithm, and why algorithms do not admit the others."""
    file = parameters["own"]
    config, mine = load_ccl_config(parameters["ccl_file"] or default_ccl_path()), algorithms(file) if file else []
    points: list[Row] = []
    refused: dict[str, str] = {}
    for point in _asked(config, machine.config, mine, parameters):
        name, there = point["algorithm"], machine_of(machine.spec, point[MACHINE])
        if name in [algorithm.name for algorithm in mine]:
            content = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            point["own"] = {"file": str(Path(file).resolve()), "sha256": content}
        elif name in config.algorithms:
            part = CclConfig(defaults=config.defaults, algorithms={name: config.algorithms[name]})
            point["entry"] = part.to_spec()
        else:
            raise ArgumentError(f"algorithm {name!r} is unknown; {hint(name, config.algorithms)}")
        plain = _resolved(name, point.get("entry"), point.get("own")).on(there.config)
        point = {key: value for key, value in point.items() if key not in _SETTINGS or getattr(plain, key) != value}
        try:
            case_of(there, **_settings(point))
        except ConfigError as error:
            sips = there.config.system.sips
            # The message begins with the name of the algorithm.
            refused[f"{name} on {there.config.n_sips} SIPs, {sips.topology}"] = str(error).partition(": ")[2]
        else:
            points.append(point)
    kept = [_identity(point) for point in points if point.get("links")]
    return [point | {"links": True} if _identity(point) in kept else point for point in points], refused


def _settings(point: Mapping[str, Any]) -> Row:
    return {key: value for key, value in point.items() if key not in (MACHINE, LABELS, "nbytes", "links")}


def _identity(point: Mapping[str, Any]) -> Row:
    """Key of what the time of a point depends on; points with one key share a run."""
    return {key: value for key, value in point.items() if key not in (LABELS, "links")}


def _decision(machine: Machine, tensors: list[DeviceTensor]) -> Decision:
    first = tensors[0]
    nbytes, places = max(shard.nbytes for shard in first.shards), list(first.pes)
    return tuner_of(machine).choose("all_reduce", nbytes, places=places, itemsize=first.dtype.itemsize)


def _asked(config: CclConfig, machine: MachineConfig, own: Sequence[Algorithm], given: Mapping[str, Any]) -> list[Row]:
    """Points of all slices, including those that an algorithm does not admit."""
    return [
        *_sizes(config, machine, own, given),
        *_others(config, own, given["others"]),
        *_kinds(given["kinds"]),
        *_roots(machine, given),
        *_scaling(**given["more_sips"]),
        *(
            _point(report.SLOTS, SIX, _RING, given["more_slots"]["nbytes"], n_slots=n)
            for n in given["more_slots"]["counts"]
        ),
        *_limits(machine, given["halved"]),
        *_lists(machine, given["real"]),
        *_marks(machine, given["marks"]),
    ]  # fmt: skip


def _sizes(config: CclConfig, machine: MachineConfig, own: Sequence[Algorithm], given: Mapping[str, Any]) -> list[Row]:
    return [
        _point(report.SIZES, system, name, nbytes, **({"slot_size": grid["slot_size"]} if "slot_size" in grid else {}))
        for contribution in ("rank", "cube", "pe")
        for grid in given[f"by_{contribution}"]
        for system in grid["systems"]
        for name in [
            *(
                n for n in names(config, "all_reduce", contribution)
                if config.setting(n, "buffer_kind") == "tcm" and config.algorithms[n].topology != "through_switch"
            ),
            *(a.name for a in own if (a.collective, a.contribution) == ("all_reduce", contribution)),
        ]
        for nbytes in grid["sizes"]
    ]  # fmt: skip


def _others(config: CclConfig, own: Sequence[Algorithm], grid: Mapping[str, Any]) -> list[Row]:
    known = {n: config.algorithms[n].collective for n in names(config) if config.setting(n, "buffer_kind") == "tcm"}
    known |= {algorithm.name: algorithm.collective for algorithm in own}
    return [
        _point(report.OTHERS, system, name, nbytes)
        for system in grid["systems"]
        for name, collective in known.items()
        if collective != "all_reduce"
        for nbytes in ([2] if collective == "barrier" else grid["sizes"])
    ]


def _kinds(sizes: Sequence[int]) -> list[Row]:
    return [
        _point(report.KINDS, SIX, name, nbytes, buffer_kind=kind)
        for name in (INTERCUBE, _RING)
        for kind in ("tcm", "sram", "hbm")
        for nbytes in sizes
    ]


def _roots(machine: MachineConfig, given: Mapping[str, Any]) -> list[Row]:
    systems = given["by_cube"][0]["systems"][:1] if given["by_cube"] else []
    return [
        _point(report.ROOTS, system, INTERCUBE, given["root_bytes"], root_cube=cube)
        for system in systems
        for cube in range(machine.cubes_per_sip)
    ]


def _scaling(counts: Sequence[int], topology: str, sizes: Sequence[int]) -> list[Row]:
    """Growing numbers of SIPs, one PE each; grids are as square as possible."""
    if 1 in counts:
        raise ArgumentError("more_sips.counts: 1 must be >= 2: an all-reduce over SIPs needs two")
    return [
        _point(report.SCALING, _system(n, topology), name, nbytes)
        for n in counts
        for name in ONE_EACH
        for nbytes in sizes
    ]


def _limits(machine: MachineConfig, sizes: Sequence[int]) -> list[Row]:
    return [
        _point(report.LIMITS, SIX, name, nbytes, what=what, changes=scaled(machine, factors))
        for name in (_RING, "tree_allreduce")
        for nbytes in sizes
        for what, factors in _HALVED.items()
    ]


def _lists(machine: MachineConfig, real: Mapping[str, Any]) -> list[Row]:
    """All-reduces of lists: a rank's vector is on PE 0 of all cubes of its SIP, a slot holds a chunk."""
    made, most = [], real.get("max_bytes")
    for size in (size for name in real["lists"] for size in sizes(name) if most is None or size.nbytes <= most):
        item = as_dtype(size.dtype).itemsize
        part = -(-size.nbytes // (machine.cubes_per_sip * item)) * item
        chunk: Row = {"slot_size": CHUNK}
        if part >= LONG:
            chunk = {"slot_size": 2 * CHUNK, "options": {"chunk_bytes": 2 * CHUNK}}
        made += [
            _point(
                report.LISTS, real["system"], name, part, what=f"{size.list} {size.name}", dtype=size.dtype,
                cubes=machine.cubes_per_sip, pes=1, **chunk,
            )
            for name in LISTED
        ]  # fmt: skip
    return made


def _marks(machine: MachineConfig, sizes: Sequence[int]) -> list[Row]:
    """All-reduces of the reference design's figures: by cube, and at one size in other memories."""
    other = report.OTHER_KINDS
    kinds = ("sram", "hbm") if other in sizes else ()
    halved = list(_HALVED.items())[1:] if other in sizes else []
    variants: list[tuple[int, Row]] = [*((n, {}) for n in sizes), *((other, {"buffer_kind": kind}) for kind in kinds)]
    small: Row = {"what": report.SMALL, "slot_size": SMALL_SLOT}
    return [
        *(_point(report.MARKS, SIX, INTERCUBE, n, links=n == max(sizes), **kind) for n, kind in variants),
        *(_point(report.MARKS, SIX, INTERCUBE, n, **small, **kind) for n, kind in variants),
        *(
            _point(report.MARKS, SIX, INTERCUBE, other, what=what, changes=scaled(machine, factors))
            for what, factors in halved
        ),
    ]


def _system(n: int, topology: str) -> _System:
    sides = sips_of(topology, n)
    return (n, topology, *(sides[key] for key in "whd" if n > 1 and sides[key]))


def _point(
    slice_name: str,
    system: _System,
    algorithm: str,
    nbytes: int,
    *,
    what: str = "",
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Row:
    n, topology, *grid = system
    sips = {"count": n, "topology": topology, "w": None, "h": None} | dict(zip("whd", grid, strict=False))
    return {
        "labels": {"slice": slice_name, "what": what},
        "machine": {f"system.sips.{key}": value for key, value in sips.items()} | dict(changes or {}),
        "algorithm": algorithm,
        "nbytes": nbytes,
        **{name: value for name, value in settings.items() if value is not False},
    }


@dataclass(frozen=True, slots=True)
class _Size:
    """An all-reduce of a list: `nbytes` of every rank, in elements of `dtype`."""

    list: str
    name: str
    nbytes: int
    dtype: str


def sizes(name: str) -> list[_Size]:
    """Sizes of a list: "deepbench", or "llama3-70b" (tensor parallelism, by tokens in flight).

    >>> sizes("llama3-70b")[0]
    _Size(list='llama3-70b', name='1 token', nbytes=16384, dtype='bf16')
    """
    if name not in _FILES:
        raise ArgumentError(f"list {name!r} is unknown; {hint(name, _FILES)}")
    text = (files("kernbench.studies") / "data" / _FILES[name]).read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [_Size(name, _title(row), int(row["bytes"]), _TYPES[name]) for row in rows]


def _title(row: dict[str, str]) -> str:
    if "tokens" in row:
        return f"{row['tokens']} token{'s' if row['tokens'] != '1' else ''}"
    return f"{int(row['elements_fp32']):,} elements"
