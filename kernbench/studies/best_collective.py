"""`kb.ccl.choose`: which algorithm is fastest for a collective on a system of SIPs, why, and what to change first.

Times are those of the device: from the first program's start to the last one's end, without the launch by the host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import isqrt
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import Decision, Tuner
from kernbench.config import COLLECTIVES
from kernbench.errors import ArgumentError, ConfigError
from kernbench.registry import hint
from kernbench.runtime_api.collective import run, simulator
from kernbench.studies.best_product import fields, html_page, read_list, simulated_ns, text_page
from kernbench.studies.ccl import CclStudy
from kernbench.studies.study import LABELS, MACHINE, Finding, Parameter, Study, Tables, fastest, scaled, table
from kernbench.sweeps.keys import Row
from kernbench.sweeps.sensitivity import ranked, sensitivity
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz.charts import Column

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis.why import Why
    from kernbench.ccl.group import Target

_SIMULATED = 3  # of the candidates by closed form
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
class Spread:
    """A collective with a SIP's tensor on some of its PEs, and the fastest algorithm there.

    Attributes
    ----------
    where : str
        Which PEs hold it.
    pes, nbytes : int
        How many, and bytes of the shard of each.
    algorithm : str
    n_slots : int
    simulated_ns : float
    """

    where: str
    pes: int
    nbytes: int
    algorithm: str
    n_slots: int
    simulated_ns: float


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveChoice:
    """The fastest algorithm for a collective; it prints itself and shows itself in a notebook.

    Attributes
    ----------
    decision : Decision
        Lower bound, and candidates, of which the best three by closed form are simulated.
    spreads : tuple of Spread
        The same bytes on other PEs, fastest first.
    changes : DataFrame or None
        Each resource halved and doubled, as `kernbench.sweeps.sensitivity.ranked` has it; None if not asked for.
    launched_ns : float
        Time of the winner with its launch by the host.
    why : Why
        The critical path of the winner, with its launch by the host.
    """

    system: str
    decision: Decision
    spreads: tuple[Spread, ...]
    changes: pd.DataFrame | None
    launched_ns: float
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
            "Algorithms": fields(d.candidates, _CANDIDATE),
            f"{d.nbytes:,} B of a SIP on other PEs": fields(self.spreads, _SPREAD),
        }
        if self.changes is not None:
            heading = "Change of time, each resource halved and doubled, same algorithm (empty: not a valid machine)"
            found[heading] = self.changes[list(_CHANGE)].rename(columns=_CHANGE).round(1)
        if d.refused:
            found["Algorithms that do not run here"] = table(
                [{"algorithm": name, "because": reason} for name, reason in d.refused.items()]
            )
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
        return text_page(self.title, self.decision.machine, self.notes, self.tables(), self.why)

    def _repr_html_(self) -> str:
        return html_page(self.title, self.decision.machine, self.notes, self.tables(), self.why)


_CANDIDATE = {
    "algorithm": "algorithm", "n_slots": "slots", "estimate_ns": "closed form [ns]", "simulated_ns": "simulated [ns]",
}  # fmt: skip
_SPREAD = {
    "where": "held by", "nbytes": "bytes each", "algorithm": "fastest", "n_slots": "slots",
    "simulated_ns": "simulated [ns]",
}  # fmt: skip
_CHANGE = {"factor": "resource", "down_pct": "halved [%]", "up_pct": "doubled [%]"}


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
    tuner = _tuner(where, collective)
    decision = _decided(tuner, collective, size, [(0, 0)])
    held = [x for spread in _spreads(where) if (x := _spread(tuner, collective, size, *spread)) is not None]
    spreads = tuple(sorted(held, key=lambda x: x.simulated_ns))
    ran = run(where, tuner.plan(decision, range(where.config.n_sips)), size)
    ranking = _changes(where, decision, size) if changes else None
    return CollectiveChoice(
        _named(where), decision, spreads, ranking, simulated_ns(ran.result), ran.result.why(decision.algorithm)
    )


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


def _named(machine: Machine) -> str:
    sips = machine.config.system.sips
    grid = f" {sips.w}x{sips.h}" if sips.w and sips.h else ""
    return f"{sips.count} SIPs, {sips.topology}{grid}"


def _tuner(machine: Machine, collective: str) -> Tuner:
    config = load_ccl_config(machine=machine.config)
    known = [resolve_algorithm_config(name, config) for name in names(config, collective, "rank")]
    return Tuner(machine, known, simulate=simulator(machine), refine=_SIMULATED)


def _decided(tuner: Tuner, collective: str, nbytes: int, places: Sequence[Target]) -> Decision:
    return tuner.choose(collective, nbytes, places=places, itemsize=_ITEMSIZE)


def _spreads(machine: Machine) -> list[tuple[str, list[Target]]]:
    cubes, pes = machine.config.cubes_per_sip, machine.config.pes_per_cube
    found = [
        ("one PE", 1, 1), (f"the {pes} PEs of a cube", 1, pes), (f"a PE of each of {cubes} cubes", cubes, 1),
        (f"all {cubes * pes} PEs", cubes, pes),
    ]  # fmt: skip
    shapes = {(c, p): name for name, c, p in reversed(found)}  # a machine of one cube has two of them
    return [(name, list(product(range(c), range(p)))) for (c, p), name in reversed(shapes.items())]


def _spread(tuner: Tuner, collective: str, nbytes: int, where: str, places: list[Target]) -> Spread | None:
    """Return the time with a SIP's bytes over some PEs; None if they cannot share them evenly."""
    each = nbytes // len(places) // _ITEMSIZE * _ITEMSIZE
    if each * len(places) != nbytes:
        return None
    decision = _decided(tuner, collective, each, places)
    return Spread(where, len(places), each, decision.algorithm, decision.n_slots, decision.best.ns)


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


class CollectivesStudy(Study):
    """The fastest algorithm for each collective of a list."""

    name, title = "collectives", "Collectives of a list"
    method = (
        f"Each row is the fastest of the {_SIMULATED} best algorithms by closed form, simulated, with the tensor of "
        "each SIP on its first PE. Times are those of the device, without the launch by the host."
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
        found = (
            [Finding(f"Of {len(rows)} collectives, {fastest(row['algorithm'] for row in rows)}.", weight=2)]
            if rows
            else []
        )
        bounded = [row for row in rows if row["bound_ns"]]
        if bounded:
            far = max(bounded, key=lambda row: row["simulated_ns"] / row["bound_ns"])
            ratio = far["simulated_ns"] / far["bound_ns"]
            found.append(
                Finding(f"The farthest from its bound is {far['name']}: {ratio:.2f}x; {far['limited_by']}.", weight=1)
            )
        return found


def _point(machine: Machine, *, name: str, bytes: int, collective: str = "all_reduce", **system: Any) -> Row:
    try:
        sips = system_of(machine, system.get("sips"), system.get("topology")).config.system.sips
    except (ArgumentError, ConfigError) as error:
        raise ConfigError([f"{name}: {line}" for line in str(error).splitlines()]) from error
    changes = {f"system.sips.{key}": getattr(sips, key) for key in ("count", "topology", "w", "h")}
    return {LABELS: {"name": name}, MACHINE: changes, "nbytes": bytes, "collective": collective}


def read_cases(path: Path) -> list[Row]:
    """Return the collectives of a CSV file with columns name, bytes and optionally sips, topology, collective."""
    return read_list(path, {"name": str, "bytes": _bytes}, {"sips": str, "topology": str, "collective": _collective})


def _collective(text: str) -> str:
    if text not in COLLECTIVES:
        raise ValueError(f"is unknown; {hint(text, COLLECTIVES)}")
    return text
