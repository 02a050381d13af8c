"""Collectives on many systems: which algorithm is fastest at which size, how far from the bounds, and what limits it.

Shards are where the algorithm's contribution has them: on PE 0 of cube 0 of each SIP (by rank), on PE 0 of every cube
(by cube), or on every PE (by PE).
"""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from kernbench.ccl.algorithm import Algorithm, plan
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.cost import Estimate
from kernbench.ccl.group import Place, Target
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import SHORT_LIST, Decision
from kernbench.config import AUTO, CclConfig, default_ccl_path
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, ConfigError, KernbenchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.registry import hint
from kernbench.runtime_api.collective import check, run, tuner_of
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.studies import ccl_points, ccl_report
from kernbench.studies.explore import SESSION_US, Choices, at_most, fits_slice
from kernbench.studies.study import LABELS, MACHINE, Parameter, Study
from kernbench.sweeps.keys import Row, machine_of
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.studies.study import Finding

VISIBLE = 0.01  # links busy for less are not kept
_PROGRAM = 10  # a program, with its launch and its queues, takes about as long to simulate as so many sends
_SETTINGS = ("n_slots", "slot_size", "buffer_kind", "root_cube", "options")  # what a point changes in an algorithm


def bus_factor(collective: str, n: int) -> float:
    """Return busbw / algbw for `n` contributions, as nccl-tests has it (doc/PERFORMANCE.md)."""
    match collective:
        case "all_reduce":
            return 2 * (n - 1) / n
        case "reduce_scatter" | "all_gather" | "all_to_all":
            return (n - 1) / n
        case "broadcast" | "reduce":
            return 1.0
    return 0.0


class Case:
    """A collective before it runs: its plan, its closed form, its bounds, and how much there is to simulate.

    Parameters
    ----------
    machine : Machine
    algorithm : Algorithm
    targets : sequence of (cube, PE)
        The PEs of each SIP that have a shard; empty: as the algorithm's contribution says.
    itemsize : int
        Bytes of an element.
    """

    def __init__(
        self, machine: Machine, algorithm: Algorithm, targets: Sequence[Target] = (), itemsize: int = 2
    ) -> None:
        config = machine.config
        cubes = 1 if algorithm.contribution == "rank" else config.cubes_per_sip
        pes = config.pes_per_cube if algorithm.contribution == "pe" else 1
        self.machine, self._itemsize = machine, itemsize
        self.plan = plan(algorithm, config, range(config.n_sips), list(targets or product(range(cubes), range(pes))))

    @cached_property
    def form(self) -> Estimate:
        """The closed form."""
        return Estimate(self.plan, self.machine, self._itemsize)

    @property
    def bounds(self) -> Bounds:
        """The lower bounds, which all algorithms on the same PEs have in common."""
        return _bounds(self.machine, tuple(self.plan.programs), self.plan.algorithm.contribution)

    def work(self, nbytes: int) -> int:
        """Estimate how much there is to simulate, so that the longest case starts first.

        Notes
        -----
        Messages sent, and parts of them received, count one each; a program counts `_PROGRAM`. An algorithm without a
        form is taken to send two vectors from each program, part by part.
        """
        slot = self.plan.algorithm.slot_size
        assert slot is not None
        programs = len(self.plan.programs)
        if not self.form.known:
            return programs * (_PROGRAM + 4 * -(-nbytes // slot))
        sent = [(x.messages * sum(x.channels.values()), -(-x.nbytes // slot)) for x in self.form.sent(nbytes)]
        return _PROGRAM * programs + sum(messages * (1 + parts) for messages, parts in sent)


def case_of(
    machine: Machine,
    *,
    algorithm: str,
    dtype: str = "f16",
    cubes: int = 0,
    pes: int = 0,
    entry: Mapping[str, Any] | None = None,
    own: Mapping[str, str] | None = None,
    **settings: Any,
) -> Case:
    """Return the case of a point, made once per process for all its sizes.

    Raises
    ------
    ConfigError
        If the machine does not admit the algorithm.
    """
    changed = {name: value for name, value in settings.items() if value is not None}
    entry = load_ccl_config().to_spec() if entry is None and own is None else entry
    return _case(machine, json.dumps([algorithm, dtype, cubes, pes, entry, own, changed], sort_keys=True))


@lru_cache(maxsize=256)
def _case(machine: Machine, text: str) -> Case:
    algorithm, dtype, cubes, pes, entry, own, changed = json.loads(text)
    found = _resolved(algorithm, entry, own)
    targets = list(product(range(cubes or 1), range(pes or 1))) if cubes or pes else []
    return Case(machine, replace(found, **changed), targets, as_dtype(dtype).itemsize)


def _resolved(algorithm: str, entry: Mapping[str, Any] | None, own: Mapping[str, str] | None) -> Algorithm:
    if own is None:
        return resolve_algorithm_config(algorithm, entry)
    known = {found.name: found for found in algorithms(own["file"])}
    if algorithm not in known:
        raise ConfigError(f"{own['file']}: algorithm {algorithm!r} is unknown; {hint(algorithm, known)}")
    return known[algorithm]


@lru_cache(maxsize=64)
def _bounds(machine: Machine, members: tuple[Place, ...], contribution: str) -> Bounds:
    return Bounds(machine, list(members), contribution)


def algorithms(path: str | Path) -> list[Algorithm]:
    """Return the algorithms that a Python file defines, each in a variable or in a list.

    Parameters
    ----------
    path : str or Path
        A file that calls `kernbench.ccl.algorithm.algorithm` on its kernels.

    Raises
    ------
    ConfigError
        If there is no such file, no algorithm in it, or two of one name.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"own = {str(path)!r} is no file; give the path of a Python file with algorithms")
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
    """Collectives on many systems: time by size, compared with a lower bound and with a closed form."""

    name, title = "ccl", "Collectives"
    method = (
        "Each row is one collective on an idle machine, from the first program's start to the last one's end. Queues "
        "are installed before; shards are in HBM before and after. The lower bound is the largest of what latency, a "
        "cut of the machine, all traffic together, the vector engines and the memories allow: no algorithm between the "
        "same PEs can be faster. The closed form of an algorithm is its steps and sizes over the machine's latencies, "
        "bandwidths, windows of slots, vector engines and memories; nothing in it is fitted. Bus bandwidth is that of "
        "nccl-tests. Unless a row says otherwise a queue has the slots of the machine file, so that times are not the "
        "best for long vectors; all-reduces of 1 MiB by cube and those of lists have slots of one chunk."
    )
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
    columns: ClassVar = ccl_report.COLUMNS
    charts: ClassVar = ccl_report.CHARTS

    def check(self, machine: Machine, **parameters: Any) -> list[str]:
        """Refuse parameters of which no algorithm admits any point."""
        points, refused = _admitted(machine, parameters)
        if points:
            return []
        return [f"{name}: {why}" for name, why in refused.items()] or ["no size is given; give by_rank at least one"]

    def points(self, machine: Machine, **parameters: Any) -> list[Row]:
        """Return the points of all slices that the algorithms admit."""
        return _admitted(machine, parameters)[0]

    def refused(self, machine: Machine, **parameters: Any) -> dict[str, str]:
        """Return the algorithms that do not admit a system, with the reason."""
        return _admitted(machine, parameters)[1]

    def work(self, machine: Machine, *, nbytes: int, **point: Any) -> float:
        """Return about how many messages there are to simulate."""
        return case_of(machine, **_settings(point)).work(nbytes)

    def simulate(
        self,
        machine: Machine,
        *,
        algorithm: str = ccl_points.RING,
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
        """Run one collective over all SIPs of the machine and return its row.

        Parameters
        ----------
        machine : Machine
        algorithm : str
            An entry of ccl.yaml, or a user-defined one.
        nbytes : int
            Bytes of a shard (on its larger side).
        dtype : str
            Type of the elements.
        cubes, pes : int
            Cubes of each SIP, and PEs of each cube, that have a shard; 0: as the contribution says.
        n_slots, slot_size, buffer_kind, root_cube, options
            What differs from the entry.
        links : bool
            Whether the row keeps how busy each link was.
        entry : mapping
            Content of the ccl.yaml to use; default: the nearest one.
        own : mapping
            `file` and its hash `sha256`, of a user-defined algorithm; its values are compared with numpy's. If it
            fails, the row says why in `failed`.

        Raises
        ------
        ConfigError
            If the machine does not admit the algorithm.
        """
        changed = {
            "n_slots": n_slots, "slot_size": slot_size, "buffer_kind": buffer_kind, "root_cube": root_cube,
            "options": options,
        }  # fmt: skip
        case = case_of(machine, algorithm=algorithm, dtype=dtype, cubes=cubes, pes=pes, entry=entry, own=own, **changed)
        planned, config = case.plan, machine.config
        used, itemsize, n = planned.algorithm, as_dtype(dtype).itemsize, planned.world_size
        bound = case.bounds.of(used.collective, nbytes, itemsize)
        row: Row = {
            "bound_ns": bound.ns, "closed_form_ns": case.form.ns(nbytes) if case.form.known else None,
            "bound_by": bound.by, "collective": used.collective, "contribution": used.contribution,
            "algorithm": algorithm, "buffer_kind": used.buffer_kind, "n_slots": used.n_slots,
            "slot_size": used.slot_size, "root_cube": used.root_cube,
            "sip_topology": config.system.sips.topology, "n_sips": config.n_sips, "contributions": n,
            "programs": len(planned.programs), "n_elem": nbytes // itemsize, "dtype": dtype, "bytes_per_pe": nbytes,
            "bytes_per_sip": nbytes * len(planned.programs) // config.n_sips,
        }  # fmt: skip
        if own is not None:
            row["own"] = Path(own["file"]).name
        try:
            ran = run(machine, planned, nbytes, dtype=dtype, data=own is not None)
        except KernbenchError as error:
            if own is None:
                raise
            return row | {"failed": str(error).splitlines()[0]}
        algbw = nbytes * len(planned.programs) / n / ran.latency_ns  # a contribution is on so many PEs
        link, busy = ran.hottest
        kept = {name: round(share, 4) for name, share in ran.links.items() if share >= VISIBLE} if links else {}
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
            check(torch.engine, planned, {place: shard.pa for place, shard in shards.items()}, given, kind)
            torch.checks += 1
        return _decision(torch.engine.machine, tensors) if algorithm == AUTO else repr(planned).strip("<>")

    def cost(
        self, machine: Machine, data: bool, *, algorithm: str, elements: int, cubes: int, pes: int, dtype: str
    ) -> float:
        """Return the host time of `program` [us]: programs, messages, and with data the reference sum."""
        config, itemsize, shards = machine.config, as_dtype(dtype).itemsize, cubes * pes
        faults = at_most(machine, cubes=cubes, pes=pes)
        if config.n_sips < 2:
            faults.append("system.sips.count = 1 must be >= 2: an all-reduce over SIPs needs two")
        faults += fits_slice(machine, "elements", elements, -(-elements // shards) * itemsize)
        if faults:
            raise ConfigError(faults)
        lane, slot = config.n_sips, config.cube.pe.pe_ipcq.slot_bytes
        if algorithm != AUTO:
            chosen = resolve_algorithm_config(algorithm, load_ccl_config())
            if chosen.contribution != "rank" and elements % shards:
                raise ConfigError(f"elements = {elements} must be a multiple of cubes x pes = {shards} for {algorithm}")
            try:
                lane = Case(machine, chosen, list(product(range(cubes), range(pes)))).plan.world_size
            except ConfigError as error:
                raise ConfigError(f"algorithm = {algorithm!r} does not run here: {error}") from error
            slot = chosen.slot_size or slot
        programs = config.n_sips * shards
        parts = 1 + elements * itemsize // shards // lane // slot
        values = 0.1 * elements * config.n_sips if data else 0.0
        runs = 1 + SHORT_LIST * (algorithm == AUTO)
        return 3 * SESSION_US + runs * programs * (4000 + 60 * lane * parts) + values

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """Return what the rows say."""
        return ccl_report.findings(rows)

    def tables(self, rows: Sequence[Row]) -> dict[str, pd.DataFrame]:
        """Return the tables of the page."""
        return ccl_report.tables(rows)


def _admitted(machine: Machine, parameters: Mapping[str, Any]) -> tuple[list[Row], dict[str, str]]:
    """Return the points, each with the entry of its algorithm, and why algorithms do not admit the others."""
    file = parameters["own"]
    config, mine = load_ccl_config(parameters["ccl_file"] or default_ccl_path()), algorithms(file) if file else []
    points: list[Row] = []
    refused: dict[str, str] = {}
    for point in ccl_points.points(config, machine.config, mine, parameters):
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
    """Return what the case of a point follows from: all but its size."""
    return {key: value for key, value in point.items() if key not in (MACHINE, LABELS, "nbytes", "links")}


def _identity(point: Mapping[str, Any]) -> Row:
    """Return what the time of a point follows from: points that differ in nothing else share a run."""
    return {key: value for key, value in point.items() if key not in (LABELS, "links")}


def _decision(machine: Machine, tensors: list[DeviceTensor]) -> Decision:
    """Return why "auto" chose what it chose."""
    first = tensors[0]
    nbytes, places = max(shard.nbytes for shard in first.shards), list(first.pes)
    return tuner_of(machine).choose("all_reduce", nbytes, places=places, itemsize=first.dtype.itemsize)
