"""`kb.gemm` and `kb.ccl.choose`: the best placement of a product or algorithm for a collective, how fast, and why.

Each candidate has a closed form; those near the best are simulated. The closed form of a placement is the time of the
busiest link, memory or matrix engine, and of empty launches. Times of products are from the launch leaving the host to
the last completion coming back; those of collectives are of the device, from the first program's start to the last
one's end.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import product
from math import isqrt
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kernbench._registry import hint
from kernbench.analysis._roofline import macs_per_ns
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import Decision, Tuner
from kernbench.config import COLLECTIVES
from kernbench.config._files import read_text
from kernbench.errors import ArgumentError, ConfigError
from kernbench.runtime_api import collective as collectives
from kernbench.studies.ccl import CclStudy
from kernbench.studies.layers import PLACEMENTS, Product, closed_form, obstacle, run, simulated_ns, work
from kernbench.studies.study import (
    LABELS,
    MACHINE,
    Finding,
    Parameter,
    Study,
    Tables,
    cell,
    fastest,
    is_number,
    scaled,
    table,
)
from kernbench.sweeps._keys import Row
from kernbench.sweeps.sensitivity import ranked, sensitivity
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz.charts import Column

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Why
    from kernbench.ccl._group import Target

_MOST_LIST = 16 << 20  # bytes of a list
_TILES = 1 << 14  # of so many the log holds each, so that `why` sees into composites
_NEAR = 1.3  # placements whose closed form is within this factor of the best are simulated
_IDLE = 0.5  # a placement that leaves more of the PEs idle is warned about
_DTYPES = ("f16", "bf16")
_SIMULATED = 3  # algorithms: the best by the alpha-beta model
_ITEMSIZE = 2
_GRIDS = ("torus_2d", "mesh_2d_no_wrap")
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
# What is halved and doubled, one resource at a time.
_RESOURCES = {
    "bandwidth between SIPs": "system.sip_link.bw_gbs",
    "latency between SIPs": "system.sip_link.latency_ns",
    "UCIe bandwidth": "cube.ucie.bw_gbs",
    "latency of UCIe ports": "cube.ucie.port_ns",
    "mesh bandwidth": "cube.noc.link_bw_gbs",
    "HBM bandwidth": "cube.hbm.channel_bw_gbs",
    "vector engine": "cube.pe.pe_math.clock_ghz",
    "issue of commands": "cube.pe.pe_cpu.command_ns",
    "slots": "n_slots",
    "bytes of a slot": "slot_size",
}


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A placement of a product."""

    placement: str
    estimate_ns: float | None  # by closed form; None where it does not fit
    limiter: str  # what takes most of that time, or why it does not fit
    pes: int  # that compute
    remote_bytes: int  # that PEs read from other PEs' memory
    simulated_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A collective with a SIP's tensor on some of its PEs, and the fastest algorithm there."""

    where: str  # which PEs hold it
    pes: int
    nbytes: int  # of the shard of each
    algorithm: str
    n_slots: int
    simulated_ns: float


# The columns of tables, as readers see them.
_TITLES = {
    "estimate_ns": "closed form [ns]", "simulated_ns": "simulated [ns]", "pes": "PEs", "remote_bytes": "remote [B]",
    "limiter": "limited by", "n_slots": "slots", "where": "held by", "nbytes": "bytes each", "factor": "resource",
    "down_pct": "halved [%]", "up_pct": "doubled [%]",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ProductChoice:
    """The placements of C[m, n] = A[m, k] B[k, n], the best simulated; it prints itself and shows itself in a notebook.

    Those that were simulated are first, fastest first; `why` is of the longest launch of the best one.
    """

    product: Product  # in the fastest placement
    machine: str
    all_pes: int
    candidates: tuple[PlacementCandidate, ...]
    utilization: float  # of the SIP's matrix rate, in the time of the best
    why: Why

    @property
    def best(self) -> PlacementCandidate:
        """The fastest placement."""
        return self.candidates[0]

    @property
    def simulated_ns(self) -> float:
        """Its time."""
        assert self.best.simulated_ns is not None
        return self.best.simulated_ns

    @property
    def warnings(self) -> list[str]:
        """Placements that leave most PEs idle, a sentence for each."""
        return [
            f"{x.placement} leaves {self.all_pes - x.pes} of {self.all_pes} PEs idle"
            for x in self.candidates
            if x.estimate_ns is not None and x.pes < (1 - _IDLE) * self.all_pes
        ]

    @property
    def notes(self) -> list[str]:
        """The warnings, as the page has them."""
        return [f"warning: {warning}" for warning in self.warnings]

    @property
    def title(self) -> str:
        """What was asked and the answer."""
        asked = self.product
        a, b = "A'" if asked.trans_a else "A", "B'" if asked.trans_b else "B"
        return (
            f"C[{asked.m}, {asked.n}] = {a} {b}, k = {asked.k}, {asked.dtype}, over {self.all_pes} PEs: "
            f"{self.best.placement}, {self.simulated_ns:,.0f} ns, {self.utilization:.1%} of the matrix rate"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        return {
            **asdict(self.product), "machine": self.machine, "simulated_ns": self.simulated_ns,
            "utilization": self.utilization, "candidates": [asdict(x) for x in self.candidates],
            "warnings": self.warnings, "why": self.why.to_dict(),
        }  # fmt: skip

    def tables(self) -> Tables:
        """Return the table of the page by its heading."""
        return {"Placements": _fields(self.candidates, "placement estimate_ns simulated_ns pes remote_bytes limiter")}

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveChoice:
    """The fastest algorithm for a collective; it prints itself and shows itself in a notebook.

    `why` is the critical path of the winner, with its launch by the host.
    """

    system: str
    decision: Decision  # lower bound, and candidates, of which the best three by the model are simulated
    spreads: tuple[Spread, ...]  # the same bytes on other PEs, fastest first
    changes: pd.DataFrame | None  # each resource halved and doubled, as `sensitivity.ranked` has it, if asked for
    launched_ns: float  # with its launch by the host
    why: Why

    @property
    def algorithm(self) -> str:
        """Name of the fastest algorithm."""
        return self.decision.algorithm

    @property
    def simulated_ns(self) -> float:
        """Its time on the device."""
        return self.decision.best.ns

    @property
    def machine(self) -> str:
        """Hash of the machine."""
        return self.decision.machine

    @property
    def title(self) -> str:
        """What was asked and the answer."""
        d = self.decision
        over = "no lower bound"
        if d.bound_ns:
            over = f"{d.best.ns / d.bound_ns:.2f}x the lower bound of {d.bound_ns:,.0f} ns ({d.bound_by})"
        return (
            f"{d.collective} of {d.nbytes:,} B over {self.system}: {d.algorithm} with {d.n_slots} slots, "
            f"{d.best.ns:,.0f} ns, {over}"
        )

    @property
    def notes(self) -> list[str]:
        """What placement and machine would change, a sentence each."""
        best, own = self.spreads[0], self.simulated_ns
        said = [f"with its launch by the host: {self.launched_ns:,.0f} ns"]
        if best.simulated_ns < own:
            said.append(f"on {best.where} it takes {best.simulated_ns:,.0f} ns, by {best.algorithm}")
        if self.changes is not None:
            first = self.changes.iloc[0]
            how = "halve" if first["first"] == "down" else "double"
            said.append(
                f"change first: {how} {first['factor']}, {-first['gain_pct']:+.1f} % time"
                if first["gain_pct"] > 0
                else "no resource that is halved or doubled makes it faster"
            )
        return said

    def tables(self) -> Tables:
        """Return the tables of the page by heading."""
        d = self.decision
        found = {
            "Algorithms": _fields(d.candidates, "algorithm n_slots estimate_ns simulated_ns"),
            f"{d.nbytes:,} B of a SIP on other PEs": _fields(
                self.spreads, "where nbytes algorithm n_slots simulated_ns"
            ).rename(columns={"algorithm": "fastest"}),
        }
        if self.changes is not None:
            heading = "Change of time, each resource halved and doubled, same algorithm (empty: not a valid machine)"
            found[heading] = self.changes[["factor", "down_pct", "up_pct"]].rename(columns=_TITLES).round(1)
        if d.refused:
            refused = [{"algorithm": name, "because": reason} for name, reason in d.refused.items()]
            found["Algorithms that do not run here"] = table(refused)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        changes: list[Row] = [] if self.changes is None else json.loads(self.changes.to_json(orient="records"))
        return {
            "system": self.system, **asdict(self.decision), "algorithm": self.algorithm,
            "simulated_ns": self.simulated_ns, "launched_ns": self.launched_ns,
            "spreads": [asdict(x) for x in self.spreads], "changes": changes, "notes": self.notes,
            "why": self.why.to_dict(),
        }  # fmt: skip

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


def _fields(rows: Iterable[Any], names: str) -> pd.DataFrame:
    """Return fields of dataclasses as a table, with the names that readers see."""
    return table([asdict(row) for row in rows], names.split()).rename(columns=_TITLES)


def text_table(shown: pd.DataFrame) -> list[str]:
    """Return the lines of a table, columns of numbers to the right.

    >>> text_table(table([{"name": "a", "bytes": 64}, {"name": "b", "bytes": 1024}]))
    ['name  bytes', 'a        64', 'b     1,024']
    """
    columns = []
    for name in shown:
        texts = [str(name), *map(cell, shown[name])]
        width, pad = max(map(len, texts)), str.rjust if is_number(shown[name]) else str.ljust
        columns.append([pad(text, width) for text in texts])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _text(answer: ProductChoice | CollectiveChoice) -> str:
    """Return an answer as text: notes, tables by heading, and the critical path."""
    lines = [f"{answer.title} (machine {answer.machine[:12]})", *(f"  {note}" for note in answer.notes)]
    for heading, shown in answer.tables().items():
        lines += ["", heading, *(f"  {line}" for line in text_table(shown))]
    return "\n".join([*lines, "", repr(answer.why)])


def _html(answer: ProductChoice | CollectiveChoice) -> str:
    """Return an answer for a notebook: notes, tables by heading, and the critical path."""
    head = f"<b>{escape(answer.title)}</b> <span style='opacity:.7'>machine {answer.machine[:12]}</span>"
    parts = [f"<div>{line}</div>" for line in (head, *map(escape, answer.notes))]
    for heading, shown in answer.tables().items():
        text = shown.map(cell).to_html(index=False, border=0)
        parts.append(f"<div style='margin-top:8px'><b>{escape(heading)}</b></div>{text}")
    return "".join([*parts, answer.why._repr_html_()])


def gemm(
    m: int,
    n: int,
    k: int,
    *,
    machine: Machine | str | Mapping[str, Any] | None = None,
    dtype: str = "f16",
    trans_a: bool = False,
    trans_b: bool = False,
) -> ProductChoice:
    """Return the best placement of C[m, n] = A[m, k] B[k, n] over a SIP, and why it takes as long.

    Parameters
    ----------
    m, n, k : int
        Rows of A and C, columns of B and C, columns of A and rows of B.
    machine : Machine, str, mapping or None
        As for `kb.load`.
    dtype : str
        Type of A, B and C: "f16" or "bf16".
    trans_a, trans_b : bool
        Whether A is stored as [k, m], and B as [n, k].

    Returns
    -------
    ProductChoice
        The placements by closed form, those near the best one simulated, and the critical path of the fastest.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or the type is another.
    ConfigError
        If no placement fits in HBM.

    Examples
    --------
    >>> gemm(32, 32, 4096, machine="preset:small").best.placement
    'split-K'
    """
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k}
    bad = {name: x for name, x in sizes.items() if not isinstance(x, int) or isinstance(x, bool) or x < 1}
    wrong = [f"{name} = {size!r} must be a whole number >= 1" for name, size in bad.items()]
    if dtype not in _DTYPES:
        wrong.append(f"dtype = {dtype!r} is unknown; known: {', '.join(_DTYPES)}")
    if wrong:
        raise ArgumentError("\n".join(wrong))
    where = resolve_topology(machine)
    asked = {x: Product(m, n, k, x, dtype, trans_a, trans_b) for x in PLACEMENTS}
    found = sorted(
        (_candidate(where, product) for product in asked.values()),
        key=lambda x: (x.estimate_ns is None, x.estimate_ns or 0.0),  # those that do not fit last
    )
    least = found[0].estimate_ns
    if least is None:
        raise ConfigError([f"{m} x {n} x {k}: no placement fits: {found[0].limiter}"])
    near = [x for x in found if x.estimate_ns is not None and x.estimate_ns <= _NEAR * least]
    results = {x.placement: _run(where, asked[x.placement]) for x in near}
    timed = [replace(x, simulated_ns=simulated_ns(results[x.placement])) for x in near]
    timed.sort(key=attrgetter("simulated_ns"))
    product, result, pes = asked[timed[0].placement], results[timed[0].placement], where.config.pes_per_sip
    utilization = m * n * k / (macs_per_ns(where.config, dtype) * pes * simulated_ns(result))
    longest = max(result.launches, key=lambda launch: launch.end_ps - launch.start_ps)
    candidates = (*timed, *found[len(near) :])
    return ProductChoice(product, where.hash, pes, candidates, utilization, result.why(longest))


def _run(machine: Machine, product: Product) -> Result:
    log = "tile" if work(machine.config, product).tiles <= _TILES else "operation"
    return run(machine, product, log=log)[0]


def _candidate(machine: Machine, product: Product) -> PlacementCandidate:
    asked, fault = work(machine.config, product), obstacle(machine, product)
    ns, limiter = (None, fault) if fault else closed_form(machine, product)
    return PlacementCandidate(product.placement, ns, limiter, asked.pes, asked.remote_bytes)


def choose(
    nbytes: int | str,
    *,
    sips: int | str | None = None,
    topology: str | None = None,
    collective: str = "all_reduce",
    machine: Machine | str | Mapping[str, Any] | None = None,
    changes: bool = True,
) -> CollectiveChoice:
    """Return the fastest algorithm for a collective, why it takes as long, and what to change first.

    Parameters
    ----------
    nbytes : int or str
        Of the tensor of each SIP, held by its first PE: 65536 or "64KiB".
    sips : int, str or None
        How many, or a grid as "4x2" (columns x rows); a count takes the squarest grid. Default: those of the machine.
    topology : str or None
        Of the links between SIPs: ring_1d, torus_2d, mesh_2d_no_wrap or fully_connected. Default: the machine's.
    collective : str
        all_reduce, broadcast, ...
    machine : Machine, str, mapping or None
        As for `kb.load`.
    changes : bool
        Whether to simulate the winner with each resource halved and doubled.

    Returns
    -------
    CollectiveChoice

    Raises
    ------
    ArgumentError
        If a size, a grid or a collective is not one.
    ConfigError
        If the machine cannot have these SIPs, or no algorithm runs there.

    Examples
    --------
    >>> choose("1KiB", sips=2, machine="preset:small", changes=False).algorithm
    'recursive_doubling_allreduce'
    """
    size = bytes_of(nbytes)
    try:
        _collective(collective)
    except ValueError as error:
        raise ArgumentError(f"collective {collective!r} {error}") from None
    where = system_of(resolve_topology(machine), sips, topology)
    config = load_ccl_config(machine=where.config)
    known = [resolve_algorithm_config(name, config) for name in names(config, collective, "rank")]
    tuner = Tuner(where, known, simulate=collectives.simulator(where), refine=_SIMULATED)
    decision = tuner.choose(collective, size, places=[(0, 0)], itemsize=_ITEMSIZE)
    ran = collectives.run(where, tuner.plan(decision, range(where.config.n_sips)), size)
    spreads = []
    for held_by, places in _spreads(where).items():
        each, rest = divmod(size, len(places))
        if rest or each % _ITEMSIZE:  # these PEs cannot share it evenly
            continue
        there = tuner.choose(collective, each, places=places, itemsize=_ITEMSIZE)
        spreads.append(Spread(held_by, len(places), each, there.algorithm, there.n_slots, there.best.ns))
    spreads.sort(key=lambda x: x.simulated_ns)
    ranking = _changes(where, decision, size) if changes else None
    given = where.config.system.sips
    system = f"{given.count} SIPs, {given.topology}" + (f" {given.w}x{given.h}" if given.w and given.h else "")
    why = ran.result.why(decision.algorithm)
    return CollectiveChoice(system, decision, tuple(spreads), ranking, simulated_ns(ran.result), why)


def bytes_of(text: int | str) -> int:
    """Return a number of bytes: 65536, "65536", "64KiB".

    >>> bytes_of("64KiB"), bytes_of("1 MiB"), bytes_of(100)
    (65536, 1048576, 100)
    """
    try:
        return _bytes(text)
    except ValueError as error:
        raise ArgumentError(f"bytes = {text!r} {error}") from None


def _bytes(text: int | str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(text).strip())
    if match is None or match.group(2).upper() not in _UNITS or isinstance(text, bool):
        raise ValueError("must be a number of bytes, such as 65536 or 64KiB")
    found = int(match.group(1)) * _UNITS[match.group(2).upper()]
    if found < _ITEMSIZE or found % _ITEMSIZE:
        raise ValueError(f"must be a multiple of the {_ITEMSIZE} bytes of an f16 element, and not 0")
    return found


def system_of(machine: Machine, sips: int | str | None, topology: str | None) -> Machine:
    """Return the machine with other SIPs: a count, or a grid as "4x2", and their topology."""
    given = machine.config.system.sips
    name = topology or given.topology
    if sips is None and topology is None:
        return machine
    match = re.fullmatch(r"(\d+)(?:\s*x\s*(\d+))?", str(given.count if sips is None else sips).strip())
    if match is None or isinstance(sips, bool):
        raise ArgumentError(f"sips = {sips!r} must be a number of SIPs, or a grid as 4x2: columns x rows")
    w, h = int(match.group(1)), match.group(2)
    count = w * int(h) if h else w
    values: dict[str, Any] = {"count": count, "topology": name, "w": None, "h": None}
    if name in _GRIDS and count:
        rows = int(h) if h else next(r for r in range(isqrt(count), 0, -1) if count % r == 0)
        values |= {"w": count // rows, "h": rows}
    return machine.with_({f"system.sips.{key}": value for key, value in values.items()})


def _spreads(machine: Machine) -> dict[str, list[Target]]:
    """Return sets of PEs of a SIP by name; of equal ones, the first."""
    cubes, pes = machine.config.cubes_per_sip, machine.config.pes_per_cube
    found = {
        "one PE": (1, 1), f"the {pes} PEs of a cube": (1, pes), f"a PE of each of {cubes} cubes": (cubes, 1),
        f"all {cubes * pes} PEs": (cubes, pes),
    }  # fmt: skip
    first = {shape: name for name, shape in reversed(found.items())}
    kept = {name: shape for name, shape in found.items() if first[shape] == name}
    return {name: list(product(range(c), range(p))) for name, (c, p) in kept.items()}


def _changes(machine: Machine, decision: Decision, nbytes: int) -> pd.DataFrame:
    """Return how the time of the winner answers to each resource, halved and doubled."""
    slots: dict[str, Any] = {"n_slots": decision.n_slots, "slot_size": machine.config.cube.pe.pe_ipcq.slot_bytes}

    def change(field: str, factor: float) -> dict[str, Any]:
        if field in slots:
            return {field: max(1, int(slots[field] * factor))}
        return scaled(machine.config, {field: factor})

    factors = {
        name: {"down": change(field, 0.5), "up": change(field, 2)}
        for name, field in _RESOURCES.items()
        if field in slots or attrgetter(field)(machine.config)
    }
    parameters = {"algorithm": decision.algorithm, "nbytes": nbytes, **slots}
    answers = sensitivity(machine, CclStudy().simulate, factors, parameters=parameters, workers=1, progress=False)
    return ranked(answers.sweep.ok, "latency_ns")


class ProductsStudy(Study):
    """The fastest placement of each product of a list."""

    name, title = "products", "Products over a SIP"
    method = (
        "Each row is C[m, n] = A[m, k] B[k, n] over all PEs of SIP 0, in the fastest of the placements that are within "
        f"{_NEAR:g}x of the best by closed form, which are simulated. Times are from the launch leaving the host to "
        "the last completion coming back."
    )
    parameters: ClassVar = {
        "shapes": Parameter([], "name, m, n, k and optionally trans_a, trans_b of each product"),
        "dtype": Parameter("f16", "type of A, B and C"),
    }
    columns: ClassVar = {
        "name": Column("product"), "m": Column("m"), "n": Column("n"), "k": Column("k"),
        "trans_a": Column("A transposed"), "trans_b": Column("B transposed"), "placement": Column("fastest"),
        "simulated_ns": Column("time", "ns"), "utilization": Column("useful share of the matrix rate"),
        "pes": Column("PEs at work"), "second": Column("next by closed form"), "limited_by": Column("limited by"),
        "change": Column("change first"), "left_out": Column("not simulated"),
    }  # fmt: skip

    def points(self, machine: Machine, *, shapes: Sequence[Mapping[str, Any]], dtype: str) -> list[Row]:
        return [
            {LABELS: {"name": shape["name"]}, **{key: shape[key] for key in shape if key != "name"}, "dtype": dtype}
            for shape in shapes
        ]

    def work(self, machine: Machine, *, m: int, n: int, k: int, **_: Any) -> float:
        return float(m * n * k)

    def simulate(self, machine: Machine, **product: Any) -> Row:
        asked = asdict(Product(**product))
        row: Row = {name: asked[name] for name in ("m", "n", "k", "trans_a", "trans_b", "dtype")}
        try:
            chosen = gemm(**row, machine=machine)
        except ConfigError as error:
            return row | {"left_out": str(error)}
        best, second, first = chosen.best, chosen.candidates[1], chosen.why[0]
        return row | {
            "placement": best.placement, "simulated_ns": chosen.simulated_ns, "utilization": chosen.utilization,
            "pes": best.pes, "second": second.placement, "limited_by": f"{first.what} {first.share:.0%}",
            "change": ", ".join(first.fields), "estimate_ns": best.estimate_ns, "remote_bytes": best.remote_bytes,
            "left_out": "",
        }  # fmt: skip

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        timed = [row for row in rows if "simulated_ns" in row]
        if not timed:
            return []
        low, high = (edge(timed, key=lambda row: row["utilization"]) for edge in (min, max))
        text = (
            f"The matrix rate of the SIP is used between {low['utilization']:.2%} ({low['name']}, limited by "
            f"{low['limited_by']}) and {high['utilization']:.2%} ({high['name']})."
        )
        said = fastest(row["placement"] for row in timed)
        return [Finding(f"Of {len(timed)} products, {said}.", weight=2), Finding(text, weight=1)]


class CollectivesStudy(Study):
    """The fastest algorithm for each collective of a list."""

    name, title = "collectives", "Collectives of a list"
    method = (
        f"Each row is the fastest of the {_SIMULATED} best algorithms by the alpha-beta model, simulated, with the "
        "tensor of each SIP on its first PE. Times are those of the device, without the launch by the host."
    )
    parameters: ClassVar = {
        "cases": Parameter([], "name, bytes and optionally sips, topology, collective of each"),
    }
    columns: ClassVar = {
        "name": Column("case"), "system": Column("system"), "collective": Column("collective"),
        "nbytes": Column("bytes", "B"), "algorithm": Column("fastest"), "n_slots": Column("slots"),
        "simulated_ns": Column("time", "ns"), "bound_ns": Column("lower bound", "ns"), "bound_by": Column("bound by"),
        "second": Column("next"), "spread": Column("best held by"), "spread_ns": Column("time there", "ns"),
        "limited_by": Column("limited by"),
    }  # fmt: skip

    def points(self, machine: Machine, *, cases: Sequence[Mapping[str, Any]]) -> list[Row]:
        return [_point(machine, **case) for case in cases]

    def work(self, machine: Machine, *, nbytes: int, **_: Any) -> float:
        return float(nbytes * machine.config.n_sips)

    def simulate(self, machine: Machine, *, nbytes: int = 65536, collective: str = "all_reduce") -> Row:
        chosen = choose(nbytes, collective=collective, machine=machine, changes=False)
        decision, spread = chosen.decision, chosen.spreads[0]
        first = next(reason for reason in chosen.why if "PCIe" not in reason.what)  # the launch is not part of the time
        second = decision.candidates[1].algorithm if len(decision.candidates) > 1 else ""
        return {
            "system": chosen.system, "collective": collective, "nbytes": nbytes, "algorithm": chosen.algorithm,
            "n_slots": decision.n_slots, "simulated_ns": chosen.simulated_ns, "launched_ns": chosen.launched_ns,
            "bound_ns": decision.bound_ns, "bound_by": decision.bound_by, "second": second, "spread": spread.where,
            "spread_ns": spread.simulated_ns, "spread_algorithm": spread.algorithm,
            "limited_by": f"{first.what} {first.share:.0%}",
        }  # fmt: skip

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        if not rows:
            return []
        found = [Finding(f"Of {len(rows)} collectives, {fastest(row['algorithm'] for row in rows)}.", weight=2)]
        bounded = [row for row in rows if row["bound_ns"]]
        if bounded:
            far = max(bounded, key=lambda row: row["simulated_ns"] / row["bound_ns"])
            ratio = far["simulated_ns"] / far["bound_ns"]
            text = f"The farthest from its bound is {far['name']}: {ratio:.2f}x; {far['limited_by']}."
            found.append(Finding(text, weight=1))
        return found


def _point(machine: Machine, *, name: str, bytes: int, collective: str = "all_reduce", **system: Any) -> Row:
    try:
        sips = system_of(machine, system.get("sips"), system.get("topology")).config.system.sips
    except (ArgumentError, ConfigError) as error:
        raise ConfigError([f"{name}: {line}" for line in str(error).splitlines()]) from error
    changes = {f"system.sips.{key}": getattr(sips, key) for key in ("count", "topology", "w", "h")}
    return {LABELS: {"name": name}, MACHINE: changes, "nbytes": bytes, "collective": collective}


def read_list(
    path: Path, needed: Mapping[str, Callable[[str], Any]], optional: Mapping[str, Callable[[str], Any]]
) -> list[Row]:
    """Return the rows of a CSV file; each column has its converter, which raises ValueError."""
    known = {**needed, **optional}
    head: list[str] = []
    rows: list[Row] = []
    faults: list[str] = []
    for number, line in enumerate(read_text(path, _MOST_LIST, "cut it into several lists").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
        except csv.Error as error:
            raise ConfigError(
                [f"{path}: line {number}: {error}; write each case on one line, quotes closed"]
            ) from error
        if not head:
            head = cells
            faults += [f"column {name!r} is unknown; {hint(name, known)}" for name in head if name not in known]
        elif len(cells) != len(head):
            named = f"{len(head)} columns are named"
            faults.append(f"line {number}: has {len(cells)} values, but {named}; add or remove some")
        else:
            rows.append({})
            for name, text in zip(head, cells, strict=True):
                if name in known and (text or name in needed):
                    try:
                        rows[-1][name] = known[name](text)
                    except ValueError as error:
                        faults.append(f"line {number}: {name} = {text!r} {error}")
    missing = [name for name in needed if name not in head]
    faults += [f"column {name!r} is missing; the first line must name {', '.join(needed)}" for name in missing]
    if not faults and not rows:
        faults = ["has no line after its first; add one for each case"]
    if faults:
        raise ConfigError([f"{path}: {fault}" for fault in faults])
    return rows


def read_shapes(path: Path) -> list[Row]:
    """Return the products of a CSV file with columns name, m, n, k and optionally trans_a, trans_b (0 or 1)."""
    return read_list(path, {"name": str, "m": _size, "n": _size, "k": _size}, {"trans_a": _flag, "trans_b": _flag})


def read_cases(path: Path) -> list[Row]:
    """Return the collectives of a CSV file with columns name, bytes and optionally sips, topology, collective."""
    return read_list(path, {"name": str, "bytes": _bytes}, {"sips": str, "topology": str, "collective": _collective})


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("must be a whole number >= 1")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("must be 0 or 1")
    return text.lower() in ("1", "true")


def _collective(text: str) -> str:
    if text not in COLLECTIVES:
        raise ValueError(f"is unknown; {hint(text, COLLECTIVES)}")
    return text
