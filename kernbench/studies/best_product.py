"""`kb.gemm`: which placement of a product over a SIP is fastest, how fast, and why.

Each placement has a closed form: the time of the busiest link, memory or matrix engine, and of empty launches. Those
near the best are simulated.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kernbench.analysis.result import span
from kernbench.analysis.roofline import macs_per_ns
from kernbench.analysis.why import attribution
from kernbench.config.files import read_text
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, ConfigError
from kernbench.kernels.partition import chunk
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.routing import reverse, router_of
from kernbench.registry import hint
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies.layers import PART_BYTES, PLACEMENTS, SPLIT_K, Shape, Work, obstacle, run, spans, work
from kernbench.studies.study import LABELS, Finding, Parameter, Study, Tables, cell, fastest, is_number, table
from kernbench.sweeps.keys import Row
from kernbench.topology import naming
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz.charts import Column

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Why
    from kernbench.runtime_api.context import RuntimeContext

_MOST_LIST = 16 << 20  # bytes of a list
_TILES = 1 << 14  # of so many the log holds each, so that `why` sees into composites
_NEAR = 1.3  # placements whose closed form is within this factor of the best are simulated
_IDLE = 0.5  # a placement that leaves more of the PEs idle is warned about


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement of a product.

    Attributes
    ----------
    placement : str
    estimate_ns : float or None
        By closed form; None where it does not fit.
    limiter : str
        What takes most of that time, or why the placement does not fit.
    pes : int
        PEs that compute.
    remote_bytes : int
        What PEs read from other PEs' memory.
    simulated_ns : float or None
        From the launch leaving the host to the last completion coming back; None if it was not simulated.
    """

    placement: str
    estimate_ns: float | None
    limiter: str
    pes: int
    remote_bytes: int
    simulated_ns: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class ProductChoice:
    """The placements of C[m, n] = A[m, k] B[k, n], the best simulated; it prints itself and shows itself in a notebook.

    Attributes
    ----------
    candidates : tuple of Candidate
        Those that were simulated first, fastest first; then by closed form.
    utilization : float
        Useful share of the SIP's matrix rate in the time of the best.
    why : Why
        The critical path of the best one's longest launch.
    """

    shape: Shape
    dtype: str
    trans_a: bool
    trans_b: bool
    machine: str
    all_pes: int
    candidates: tuple[Candidate, ...]
    utilization: float
    why: Why

    @property
    def best(self) -> Candidate:
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
    def title(self) -> str:
        """What was asked and the answer."""
        m, n, k = self.shape
        a, b = "A'" if self.trans_a else "A", "B'" if self.trans_b else "B"
        return (
            f"C[{m}, {n}] = {a} {b}, k = {k}, {self.dtype}, over {self.all_pes} PEs: {self.best.placement}, "
            f"{self.simulated_ns:,.0f} ns, {self.utilization:.1%} of the matrix rate"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        m, n, k = self.shape
        return {
            "m": m, "n": n, "k": k, "dtype": self.dtype, "trans_a": self.trans_a, "trans_b": self.trans_b,
            "machine": self.machine, "placement": self.best.placement, "simulated_ns": self.simulated_ns,
            "utilization": self.utilization, "candidates": [asdict(x) for x in self.candidates],
            "warnings": self.warnings, "why": self.why.to_dict(),
        }  # fmt: skip

    def tables(self) -> Tables:
        """Return the table of the page by its heading."""
        return {"Placements": fields(self.candidates, _CANDIDATE)}

    def __repr__(self) -> str:
        return text_page(self.title, self.machine, self._notes(), self.tables(), self.why)

    def _repr_html_(self) -> str:
        return html_page(self.title, self.machine, self._notes(), self.tables(), self.why)

    def _notes(self) -> list[str]:
        return [f"warning: {warning}" for warning in self.warnings]


_CANDIDATE = {
    "placement": "placement", "estimate_ns": "closed form [ns]", "simulated_ns": "simulated [ns]", "pes": "PEs",
    "remote_bytes": "remote [B]", "limiter": "limited by",
}  # fmt: skip


def fields(rows: Iterable[Any], names: Mapping[str, str]) -> pd.DataFrame:
    """Return fields of dataclasses as a table, with the names that readers see."""
    return table([asdict(row) for row in rows], list(names)).rename(columns=dict(names))


def text_table(shown: pd.DataFrame) -> list[str]:
    """Return the lines of a table, columns of numbers to the right.

    >>> text_table(table([{"name": "a", "bytes": 64}, {"name": "b", "bytes": 1024}]))
    ['name  bytes', 'a        64', 'b     1,024']
    """
    columns = [[str(name), *map(cell, shown[name])] for name in shown]
    pads = [str.rjust if is_number(shown[name]) else str.ljust for name in shown]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(pad(text, width) for pad, text, width in zip(pads, row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def text_page(title: str, machine: str, notes: Iterable[str], tables: Tables, why: Why) -> str:
    """Return an answer as text: notes, tables by heading, and the critical path."""
    lines = [f"{title} (machine {machine[:12]})", *(f"  {note}" for note in notes)]
    for heading, shown in tables.items():
        lines += ["", heading, *(f"  {line}" for line in text_table(shown))]
    return "\n".join([*lines, "", repr(why)])


def html_page(title: str, machine: str, notes: Iterable[str], tables: Tables, why: Why) -> str:
    """Return an answer for a notebook: notes, tables by heading, and the critical path."""
    head = f"<b>{escape(title)}</b> <span style='opacity:.7'>machine {machine[:12]}</span>"
    parts = [f"<div>{line}</div>" for line in (head, *map(escape, notes))]
    for heading, shown in tables.items():
        text = shown.map(cell).to_html(index=False, border=0)
        parts.append(f"<div style='margin-top:8px'><b>{escape(heading)}</b></div>{text}")
    return "".join([*parts, why._repr_html_()])


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
    sizes = {"m": m, "n": n, "k": k}
    wrong = [f"{name} = {size!r} must be a whole number >= 1" for name, size in sizes.items() if not _is_size(size)]
    if dtype not in _DTYPES:
        wrong.append(f"dtype = {dtype!r} is unknown; known: {', '.join(_DTYPES)}")
    if wrong:
        raise ArgumentError("\n".join(wrong))
    where, shape = resolve_topology(machine), (m, n, k)
    found = ranked(where, shape, dtype, trans_a, trans_b)
    least = found[0].estimate_ns
    if least is None:
        raise ConfigError([f"{m} x {n} x {k}: no placement fits: {found[0].limiter}"])
    near = [x for x in found if x.estimate_ns is not None and x.estimate_ns <= _NEAR * least]
    results = {x.placement: _simulated(where, x.placement, shape, dtype, trans_a, trans_b) for x in near}
    times = {placement: simulated_ns(result) for placement, result in results.items()}
    timed = sorted((replace(x, simulated_ns=times[x.placement]) for x in near), key=lambda x: times[x.placement])
    result, ns = results[timed[0].placement], times[timed[0].placement]
    peak = macs_per_ns(where.config, dtype) * where.config.pes_per_sip
    longest = max(result.launches, key=lambda launch: launch.end_ps - launch.start_ps)
    return ProductChoice(
        shape, dtype, trans_a, trans_b, where.hash, where.config.pes_per_sip, (*timed, *found[len(near) :]),
        m * n * k / (peak * ns), result.why(longest),
    )  # fmt: skip


def _simulated(machine: Machine, placement: str, shape: Shape, dtype: str, trans_a: bool, trans_b: bool) -> Result:
    tiles = work(machine.config, placement, shape, dtype, trans_a, trans_b).tiles
    log = "tile" if tiles <= _TILES else "operation"
    return run(machine, shape, placement, dtype=dtype, trans_a=trans_a, trans_b=trans_b, log=log)[0]


def simulated_ns(result: Result) -> float:
    """Return the time from the first launch leaving the host to the last completion coming back."""
    start, end = span(result.launches)
    return (end - start) / 1000


_DTYPES = ("f16", "bf16")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def ranked(machine: Machine, shape: Shape, dtype: str, trans_a: bool, trans_b: bool) -> list[Candidate]:
    """Return all placements by closed form, best first; those that do not fit last."""
    found = []
    for placement in PLACEMENTS:
        asked = work(machine.config, placement, shape, dtype, trans_a, trans_b)
        fault = obstacle(machine, asked)
        ns, limiter = (None, fault) if fault else _form(machine, placement, shape, dtype, asked)
        found.append(Candidate(placement, ns, limiter, asked.pes, asked.remote_bytes))
    return sorted(found, key=lambda x: (x.estimate_ns is None, x.estimate_ns or 0.0))


def _form(machine: Machine, placement: str, shape: Shape, dtype: str, asked: Work) -> tuple[float, str]:
    """Return the closed form of a placement and what limits it."""
    tile = machine.config.cube.pe.pe_gemm.tile
    matrix_ns = asked.busiest_tiles * tile.m * tile.k * tile.n / macs_per_ns(machine.config, dtype)
    parts: dict[str, float] = defaultdict(float)
    for i, reads in enumerate(_reads(machine, placement, shape, as_dtype(dtype).itemsize)):
        ns, resource = _routes(machine).busiest(reads)
        parts["matrix engine" if not i and matrix_ns >= ns else resource] += max(ns, 0.0 if i else matrix_ns)
        parts["latency of reads"] += _routes(machine).latency_ns(reads)
        parts["launch"] += _launch_ns(machine)
    return sum(parts.values()), max(parts, key=lambda part: parts[part])


def _reads(machine: Machine, placement: str, shape: Shape, item: int) -> list[np.ndarray]:
    """Return for each launch the bytes that every PE (row) reads from and writes to every PE's memory (column)."""
    (m, n, k), config = shape, machine.config
    pes, each = config.pes_per_sip, config.pes_per_cube
    rows, columns, depths = (np.array(spans(size, config)) for size in (m, n, k))
    own = np.eye(pes)
    cube = np.arange(pes) // each
    same_cube = cube[:, None] == cube[None, :]
    if placement == SPLIT_K:
        holds = depths[:, 1] > 0
        cubes = np.array([holds[cube == c].any() for c in range(config.cubes_per_sip)])
        in_cube = np.array([chunk(m * n, each, i % each) for i in range(pes)])
        shares = np.array(spans(m * n, config))
        partial = own * (m * n * PART_BYTES * holds)[:, None]
        return [
            own * ((m + n) * depths[:, 1] * item)[:, None] + partial,
            (same_cube & holds[None, :]) * in_cube[:, 1:] * PART_BYTES + own * in_cube[:, 1:] * PART_BYTES,
            _overlaps(shares, in_cube) * cubes[cube][None, :] * PART_BYTES + own * shares[:, 1:] * item,
        ]
    if placement == "columns":
        active = columns[:, 1] > 0
        again = -(-m // config.cube.pe.pe_gemm.tile.m)
        read = np.broadcast_to(rows[:, 1] * k * item, (pes, pes)) + own * (again * columns[:, 1] * k * item)[:, None]
        written = m * columns[:, 1]
    elif placement == "rows":
        active = rows[:, 1] > 0
        read = np.broadcast_to(columns[:, 1] * k * item, (pes, pes)) + own * (rows[:, 1] * k * item)[:, None]
        written = rows[:, 1] * n
    else:
        wanted = np.array([chunk(m, each, i % each) for i in range(pes)])
        widths = np.array([chunk(n, config.cubes_per_sip, i // each)[1] for i in range(pes)])
        active = (wanted[:, 1] > 0) & (widths > 0)
        read = _overlaps(wanted, rows) * k * item + same_cube * columns[:, 1] * k * item
        written = wanted[:, 1] * widths
    return [active[:, None] * (read + own * (written * item)[:, None])]


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return how much each span (start, size) of `a` has in common with each of `b`."""
    low = np.maximum(a[:, None, 0], b[None, :, 0])
    high = np.minimum(a.sum(axis=1)[:, None], b.sum(axis=1)[None, :])
    common: np.ndarray = np.maximum(0, high - low)
    return common


class _Routes:
    """The links and memories that reads between the PEs of a SIP use."""

    def __init__(self, machine: Machine) -> None:
        config, graph, router = machine.config, machine.graph, router_of(machine.graph)
        each = config.pes_per_cube
        places = [divmod(i, each) for i in range(config.pes_per_sip)]
        number: dict[tuple[str, str], int] = {}
        pairs, links, ways = [], [], []
        for i, reader in enumerate(places):
            for j, holder in enumerate(places):
                path = router.path(naming.pe_dma(0, *reader), naming.hbm(0, *holder))
                ways.append(sum(graph.edge(*link).latency_ps for link in pairwise(path)))
                for link in pairwise(reverse(path)):
                    pairs.append(i * len(places) + j)
                    links.append(number.setdefault(link, len(number)))
        self._pairs, self._links = np.array(pairs), np.array(links)
        self._names = [f"{src}->{dst}" for src, dst in number]
        self._bw_gbs = np.array([graph.edge(*link).bw_gbs for link in number])
        hbm = config.cube.hbm
        there_and_back = 2 * np.array(ways).reshape(len(places), -1) / 1000
        self._latency_ns = (there_and_back + hbm.access_ns) / config.cube.pe.pe_dma.outstanding_reads
        self._slice_gbs = hbm.slice_gbs

    def busiest(self, nbytes: np.ndarray) -> tuple[float, str]:
        """Return the time of the busiest link or memory [ns], and its kind."""
        carried = np.bincount(self._links, weights=nbytes.reshape(-1)[self._pairs], minlength=len(self._names))
        ns = carried / self._bw_gbs
        link, served = int(ns.argmax()), float(nbytes.sum(axis=0).max() / self._slice_gbs)
        if served >= ns[link]:
            return served, "HBM slice"
        return float(ns[link]), attribution("serialization", self._names[link]).group

    def latency_ns(self, nbytes: np.ndarray) -> float:
        """Return the latency of one read for each pair of PEs [ns], of the PE that waits longest."""
        return float(((nbytes > 0) * self._latency_ns).sum(axis=1).max())


@lru_cache(maxsize=4)
def _routes(machine: Machine) -> _Routes:
    return _Routes(machine)


@lru_cache(maxsize=4)
def _launch_ns(machine: Machine) -> float:
    """Return the time of a launch on all PEs that does nothing, simulated."""

    def program(torch: RuntimeContext) -> None:
        everywhere = DPPolicy(cube="row_wise", pe="row_wise")
        x = torch.empty((machine.config.pes_per_sip, 1), dtype="f16", device="ahbm", dp=everywhere)
        torch.ahbm.synchronize()
        torch.launch("nothing", _nothing, x)

    return simulated_ns(run_program(machine, program))


def _nothing(x_ptr: object, *, tl: object) -> None:
    pass


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

    def simulate(
        self,
        machine: Machine,
        *,
        m: int = 512,
        n: int = 512,
        k: int = 512,
        trans_a: bool = False,
        trans_b: bool = False,
        dtype: str = "f16",
    ) -> Row:
        row: Row = {"m": m, "n": n, "k": k, "trans_a": trans_a, "trans_b": trans_b, "dtype": dtype}
        try:
            chosen = gemm(m, n, k, machine=machine, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
        except ConfigError as error:
            return row | {"left_out": str(error)}
        best, second, first = chosen.best, chosen.candidates[1], chosen.why[0]
        return row | {
            "placement": best.placement, "simulated_ns": chosen.simulated_ns, "utilization": chosen.utilization,
            "pes": best.pes, "second": second.placement, "limited_by": f"{first.what} {first.share:.0%}",
            "change": ", ".join(first.fields), "closed_form_ns": best.estimate_ns, "remote_bytes": best.remote_bytes,
            "left_out": "",
        }  # fmt: skip

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        timed = [row for row in rows if "simulated_ns" in row]
        if not timed:
            return []
        said = fastest(row["placement"] for row in timed)
        low, high = (edge(timed, key=lambda row: row["utilization"]) for edge in (min, max))
        return [
            Finding(f"Of {len(timed)} products, {said}.", weight=2),
            Finding(
                f"The matrix rate of the SIP is used between {low['utilization']:.2%} ({low['name']}, limited by "
                f"{low['limited_by']}) and {high['utilization']:.2%} ({high['name']}).",
                weight=1,
            ),
        ]


def read_shapes(path: Path) -> list[Row]:
    """Return the products of a CSV file with columns name, m, n, k and optionally trans_a, trans_b (0 or 1)."""
    return read_list(path, {"name": str, "m": _size, "n": _size, "k": _size}, {"trans_a": _flag, "trans_b": _flag})


def read_list(
    path: Path, needed: Mapping[str, Callable[[str], Any]], optional: Mapping[str, Callable[[str], Any]]
) -> list[Row]:
    """Return the rows of a CSV file; each column has its converter, which raises ValueError."""
    lines: list[tuple[int, list[str]]] = []
    for number, line in enumerate(read_text(path, _MOST_LIST, "cut it into several lists").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            (cells,) = csv.reader([line], strict=True)
        except csv.Error as error:
            raise ConfigError(
                [f"{path}: line {number}: {error}; write each case on one line, quotes closed"]
            ) from error
        lines.append((number, [cell.strip() for cell in cells]))
    (_, head), *rest = lines or [(0, [])]
    known = {**needed, **optional}
    faults = [f"column {name!r} is missing; the first line must name {', '.join(needed)}" for name in needed
              if name not in head]  # fmt: skip
    faults += [f"column {name!r} is unknown; {hint(name, known)}" for name in head if name not in known]
    if not faults and not rest:
        faults = ["has no line after its first; add one for each case"]
    rows: list[Row] = []
    for number, cells in rest if not faults else ():
        if len(cells) != len(head):
            faults.append(
                f"line {number}: has {len(cells)} values, but {len(head)} columns are named; add or remove some"
            )
            continue
        row: Row = {}
        for name, text in zip(head, cells, strict=True):
            if not text and name in optional:
                continue
            try:
                row[name] = known[name](text)
            except ValueError as error:
                faults.append(f"line {number}: {name} = {text!r} {error}")
        rows.append(row)
    if faults:
        raise ConfigError([f"{path}: {fault}" for fault in faults])
    return rows


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("must be a whole number >= 1")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("must be 0 or 1")
    return text.lower() in ("1", "true")
