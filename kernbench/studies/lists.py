"""Lists of products and of collectives from CSV files: the fastest placement or algorithm of each."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from kernbench._registry import hint
from kernbench.ccl.tuner import SIMULATED
from kernbench.config import COLLECTIVES
from kernbench.config._files import read_text
from kernbench.config._schema import Sips
from kernbench.errors import ArgumentError, ConfigError
from kernbench.ops.matmul import NEAR
from kernbench.points._keys import Row
from kernbench.studies._findings import Finding, fastest
from kernbench.studies.choice import check_sips, choose, gemm, parsed_bytes, parsed_sips, system_of
from kernbench.studies.layers import StoredProduct
from kernbench.studies.study import LABELS, MACHINE, Parameter, Study
from kernbench.topology.builder import Machine
from kernbench.viz.charts import Column

_MOST_LIST = 16 << 20  # bytes of a list


class ProductsStudy(Study):
    """The fastest placement of each product of a list."""

    name, title = "products", "Products over a SIP"
    method = (
        "Each row is C[m, n] = A[m, k] B[k, n] over all PEs of SIP 0, in the fastest of the placements that are within "
        f"{NEAR:g}x of the best by closed form, which are simulated. Times are from the launch leaving the host to "
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
        return 5e8 + (m + 64) * n * k  # an element of B takes the host as long as 64 of its products (estimate)

    def simulate(self, machine: Machine, **product: Any) -> Row:
        asked = asdict(StoredProduct(**product))
        row: Row = {name: asked[name] for name in ("m", "n", "k", "trans_a", "trans_b", "dtype")}
        try:
            chosen = gemm(**row, machine=machine, progress=False, workers=1)
        except ConfigError as error:
            return row | {"left_out": str(error)}
        assert chosen.why is not None
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
        f"Each row is the fastest of the {SIMULATED} best algorithms by the alpha-beta model, simulated, with the "
        "tensor of each SIP on its first PE. Times are those of the device, without the launch by the host."
    )
    parameters: ClassVar = {
        "cases": Parameter([], "name, bytes and optionally sips, network, collective of each"),
    }
    columns: ClassVar = {
        "name": Column("case"), "system": Column("system"), "collective": Column("collective"),
        "nbytes": Column("bytes", "B"), "algorithm": Column("fastest"), "n_slots": Column("slots"),
        "simulated_ns": Column("time", "ns"), "bound_ns": Column("lower bound", "ns"), "bound_by": Column("bound by"),
        "second": Column("next"), "spread": Column("best held by"), "spread_ns": Column("time there", "ns"),
        "limited_by": Column("limited by"),
    }  # fmt: skip

    def points(self, machine: Machine, *, cases: Sequence[Mapping[str, Any]]) -> list[Row]:
        points, faults = [], list[str]()
        for case in cases:
            try:
                points.append(_point(machine, **case))
            except (ArgumentError, ConfigError) as error:
                faults += [f"{case['name']}: {line}" for line in str(error).splitlines()]
        if faults:
            raise ConfigError(faults)
        return points

    def work(self, machine: Machine, *, nbytes: int, **_: Any) -> float:
        return float(nbytes * machine.config.n_sips)

    def simulate(self, machine: Machine, *, nbytes: int = 65536, collective: str = "all_reduce") -> Row:
        chosen = choose(nbytes, collective=collective, machine=machine, changes=False, progress=False, workers=1)
        assert chosen.why is not None
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
    there = system_of(machine, system.get("sips"), system.get("network"))
    check_sips(there)
    sips = there.config.system.sips
    changes = {f"system.sips.{key}": getattr(sips, key) for key in ("count", "topology", "w", "h", "d")}
    return {LABELS: {"name": name}, MACHINE: changes, "nbytes": bytes, "collective": collective}


def read_list(
    path: Path, needed: Mapping[str, Callable[[str], Any]], optional: Mapping[str, Callable[[str], Any]]
) -> list[Row]:
    """Rows of a CSV file; each column has its converter, which raises ValueError.

    Rows are named by their column `name`, else by all unknown columns, else by their `needed` values.
    """
    known: dict[str, Callable[[str], Any]] = {"name": str, **needed, **optional}
    head: list[str] = []
    labels: list[str] = []
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
            others = [name for name in head if name not in known]
            if "name" not in head:
                labels = [name for name in others if name != "topology" and not get_close_matches(name, known)]
            faults += [f"column {name!r} is unknown; {hint(name, known)}" for name in others if name not in labels]
        elif len(cells) != len(head):
            named = f"{len(head)} columns are named"
            faults.append(f"line {number}: has {len(cells)} values, but {named}; add or remove some")
        else:
            row = dict(zip(head, cells, strict=True))
            rows.append({"name": " ".join(row[name] for name in labels) or " x ".join(row.get(x, "") for x in needed)})
            for name, text in row.items():
                if name in known and (text or name in {"name", *needed}):
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
    """Columns m, n, k and optionally name, trans_a, trans_b (0 or 1)."""
    return read_list(path, {"m": _size, "n": _size, "k": _size}, {"trans_a": _flag, "trans_b": _flag})


def read_cases(path: Path) -> list[Row]:
    """Columns bytes and optionally name, sips, network, collective."""
    return read_list(path, {"bytes": parsed_bytes}, {"sips": _sips, "network": _network, "collective": _collective})


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("must be a whole number >= 1")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise ValueError("must be 0 or 1")
    return text.lower() in ("1", "true")


def _sips(text: str) -> str:
    parsed_sips(text)
    return text


def _network(text: str) -> str:
    known = get_args(get_type_hints(Sips)["topology"])
    if text not in known:
        raise ValueError(f"is unknown; {hint(text, known)}")
    return text


def _collective(text: str) -> str:
    if text not in COLLECTIVES:
        raise ValueError(f"is unknown; {hint(text, COLLECTIVES)}")
    return text
