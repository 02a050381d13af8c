"""Collectives on many machines: which algorithm wins at which size, how far from the bounds, and what decides it.

A case is one collective by one algorithm on some SIPs. Shards lie where the algorithm's contribution has them: on PE 0
of cube 0 of each SIP (by rank), on PE 0 of every cube (by cube), or on every PE (by PE).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernbench.ccl.algorithm import Algorithm
from kernbench.ccl.install import CclLike, load_ccl_config, resolve_algorithm_config
from kernbench.ccl.lane import Target
from kernbench.config import CclConfig
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, ConfigError, KernbenchError
from kernbench.registry import hint
from kernbench.studies.ccl_ready import Ready
from kernbench.studies.ccl_run import run
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.results import read_results, write_results
from kernbench.topology.builder import Machine, resolve_topology

FILE = "ccl.json"
SUMMARY = "summary.csv"
KINDS = "buffer_kinds.csv"
VISIBLE = 0.01  # links busy for less are not drawn

# Parts of a vector that count as bus traffic, as nccl-tests has it (doc/PERFORMANCE.md).
_BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "barrier": lambda n: 0.0,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One collective.

    Attributes
    ----------
    slice : str
        What it is asked for.
    n_sips, topology, w, h : int, str, int or None, int or None
        The SIPs, as `system.sips` has them.
    algorithm : str
        An entry of ccl.yaml, or one of the algorithms that `sweep` was given.
    nbytes : int
        Bytes of a shard (on its larger side).
    dtype : str
        Their type.
    cubes, pes : int
        Cubes of each SIP, and PEs of each cube, that have a shard; 0: as the contribution says.
    changes : mapping
        What is different from the entry: n_slots, slot_size, buffer_kind, root_cube.
    overrides : mapping
        What is different from the machine.
    links : bool
        Whether the row keeps how busy each link was.
    what : str
        A name that figures print.
    """

    slice: str
    n_sips: int
    topology: str
    algorithm: str
    nbytes: int
    dtype: str = "f16"
    w: int | None = None
    h: int | None = None
    cubes: int = 0
    pes: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    links: bool = False
    what: str = ""

    def machine(self, base: Machine) -> Machine:
        """Return the machine with this many SIPs, joined so: the same one for the same machine."""
        sips = {"count": self.n_sips, "topology": self.topology, "w": self.w, "h": self.h}
        return machine_of(
            base.spec, {f"system.sips.{key}": value for key, value in sips.items()} | dict(self.overrides)
        )


def sweep(
    machine: Machine | str | None,
    cases: Sequence[Case],
    *,
    config: CclLike | None = None,
    own: Sequence[Algorithm] = (),
    workers: int = 1,
    folder: Path | None = None,
) -> tuple[list[Row], dict[str, str]]:
    """Run cases; return a row for each that the algorithm admits, and for the others why it does not.

    Parameters
    ----------
    machine
        As for `kb.load`; its SIPs are changed to those of each case.
    cases
        What to run.
    config
        The ccl.yaml that algorithms are looked up in.
    own
        Further algorithms, by their names; they are run in this process, and not kept. The sums of an all-reduce are
        compared with numpy's.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If an algorithm is unknown; nothing has been run then.
    """
    base, ccl = resolve_topology(machine), load_ccl_config(config)
    mine = {algorithm.name: algorithm for algorithm in own}
    known = [*mine, *ccl.algorithms]
    unknown = [case.algorithm for case in cases if case.algorithm not in known]
    if unknown:
        raise ArgumentError(f"algorithm {unknown[0]!r} is unknown; {hint(unknown[0], known)}")
    ahead: dict[int, Ready] = {}
    points: dict[str, Row] = {}
    work: dict[str, int] = {}
    shared: dict[int, str] = {}
    found: dict[str, Row] = {}
    refused: dict[str, str] = {}
    for i, case in enumerate(cases):
        there, own_one = case.machine(base), mine.get(case.algorithm)
        entries = {} if own_one else {case.algorithm: ccl.algorithms[case.algorithm]}
        part = CclConfig(defaults=ccl.defaults, algorithms=entries).to_spec()
        try:
            ready = _made(there, own_one, case) if own_one else _ready(there, part, case)
            if own_one:
                shared[i] = own_one.name + str(i)
                found[shared[i]] = _measured(ready, case, data=True)
        except KernbenchError as error:
            if not (case.algorithm in mine or isinstance(error, ConfigError)):
                raise
            at = "" if isinstance(error, ConfigError) else f", {case.nbytes:,} B"
            refused[f"{case.algorithm} on {case.n_sips} SIPs, {case.topology}{at}"] = _why(error)
            continue
        ahead[i] = ready
        if own_one:
            continue
        alone = _nameless(case, resolve_algorithm_config(case.algorithm, ccl).on(there.config))
        shared[i] = key = repr((there.hash, replace(alone, links=False)))
        if key not in points or alone.links:
            points[key] = {"machine": dict(there.spec), "ccl": part, "case": asdict(alone)}
            work[key] = ready.work(case.nbytes)
    # The longest first: no process is left alone with one of them at the end.
    order = sorted(points, key=lambda key: -work[key])
    ran = run_points(simulate, [points[key] for key in order], folder=folder, workers=workers)
    found |= zip(order, ran, strict=True)
    rows = []
    for i, ready in ahead.items():
        row = _foreseen(ready, cases[i]) | found[shared[i]]
        rows.append(row if cases[i].links else row | {"links": {}})
    return rows, refused


def simulate(point: Row) -> Row:
    """Run one case and return what came out."""
    case = Case(**point["case"])
    return _measured(_ready(machine_of(point["machine"]), point["ccl"], case), case)


def places(machine: Machine, contribution: str, cubes: int = 0, pes: int = 0) -> list[Target]:
    """Return the (cube, PE) of each SIP that have a shard: as many as asked for, else as the contribution has it."""
    config = machine.config
    usual = {"rank": (1, 1), "cube": (config.cubes_per_sip, 1), "pe": (config.cubes_per_sip, config.pes_per_cube)}
    n_cubes, n_pes = (asked or own for asked, own in zip((cubes, pes), usual[contribution], strict=True))
    return [(cube, pe) for cube in range(n_cubes) for pe in range(n_pes)]


def bus_factor(collective: str, n: int) -> float:
    """Return busbw / algbw for `n` contributions."""
    return _BUS[collective](n)


def _nameless(case: Case, algorithm: Algorithm) -> Case:
    """Return a case without what several slices may call differently: they share one run."""
    changes = {name: value for name, value in case.changes.items() if getattr(algorithm, name) != value}
    return replace(case, slice="", what="", overrides={}, changes=changes)


def _ready(machine: Machine, ccl: Row, case: Case) -> Ready:
    sizeless = asdict(replace(case, slice="", what="", nbytes=0, overrides={}, links=False))
    return _known(machine, json.dumps([ccl, sizeless], sort_keys=True))


@lru_cache(maxsize=64)
def _known(machine: Machine, text: str) -> Ready:
    ccl, fields = json.loads(text)
    case = Case(**fields)
    return _made(machine, resolve_algorithm_config(case.algorithm, ccl), case)


def _made(machine: Machine, algorithm: Algorithm, case: Case) -> Ready:
    targets = places(machine, algorithm.contribution, case.cubes, case.pes)
    return Ready(machine, replace(algorithm, **case.changes), targets, as_dtype(case.dtype).itemsize)


def _why(error: KernbenchError) -> str:
    """Return the first line of an error, without the name of the algorithm that refuses a plan."""
    return str(error).partition(": ")[2] if isinstance(error, ConfigError) else str(error).splitlines()[0]


def _foreseen(ready: Ready, case: Case) -> Row:
    """Return what a row says before anything runs."""
    planned, form = ready.plan, ready.form
    algorithm, itemsize = planned.algorithm, as_dtype(case.dtype).itemsize
    bound = ready.bounds.of(algorithm.collective, case.nbytes, itemsize)
    return {
        "slice": case.slice, "what": case.what, "collective": algorithm.collective,
        "contribution": algorithm.contribution, "algorithm": case.algorithm, "buffer_kind": algorithm.buffer_kind,
        "n_slots": algorithm.n_slots, "slot_size": algorithm.slot_size, "root_cube": algorithm.root_cube,
        "sip_topology": case.topology, "n_sips": case.n_sips, "contributions": planned.world_size,
        "programs": len(planned.programs), "n_elem": case.nbytes // itemsize, "dtype": case.dtype,
        "bytes_per_pe": case.nbytes, "bytes_per_sip": case.nbytes * len(planned.programs) // case.n_sips,
        "bound_ns": bound.ns, "bound_by": bound.by, "closed_form_ns": form.ns(case.nbytes) if form.known else None,
        "machine": ready.machine.hash, "code_version": code_version(),
    }  # fmt: skip


def _measured(ready: Ready, case: Case, *, data: bool = False) -> Row:
    """Return what a row says when the case has run."""
    planned = ready.plan
    collective, n = planned.algorithm.collective, planned.world_size
    ran = run(ready.machine, planned, case.nbytes, dtype=case.dtype, data=data)
    algbw = case.nbytes * len(planned.programs) / n / ran.latency_ns  # a contribution lies on so many PEs
    link, busy = ran.hottest
    return {
        "latency_ns": ran.latency_ns,
        "algbw_gbs": algbw,
        "busbw_gbs": algbw * bus_factor(collective, n),
        "hottest_link": link,
        "hottest_busy": busy,
        "links": {name: round(share, 4) for name, share in ran.links.items() if share >= VISIBLE} if case.links else {},
    }


def write(rows: Sequence[Row], refused: Mapping[str, str], folder: Path) -> Path:
    """Write `ccl.json`, `summary.csv` and, for the rows about buffer kinds, `buffer_kinds.csv`; return the first."""
    import pandas as pd

    path = write_results(folder / FILE, rows, refused=dict(refused))
    frame = pd.DataFrame(rows).drop(columns="links")
    frame.to_csv(folder / SUMMARY, index=False, lineterminator="\n")
    kinds = frame[frame["slice"] == "buffer kinds"]
    if len(kinds):
        kinds.to_csv(folder / KINDS, index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `ccl.json` in `folder`."""
    return read_results(folder / FILE)


def of_slice(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows of some slices."""
    return [row for row in rows if row["slice"] in names]
