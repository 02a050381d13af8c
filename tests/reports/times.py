"""Digests of the times in the committed reports, by row; `python -m tests.reports.times` writes times.json."""

from __future__ import annotations

import csv
import hashlib
import json
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
OUTPUT = HERE.parents[1] / "milestones" / "output"
TIMES = HERE / "times.json"
CHANGES = HERE / "changes.json"

_COLLECTIVE = (
    "slice", "what", "collective", "contribution", "algorithm", "buffer_kind", "n_slots", "slot_size", "root_cube",
    "sip_topology", "n_sips", "n_elem", "dtype",
)  # fmt: skip
_ATTENTION = (
    "series", "phase", "context", "batch", "sips", "cubes", "query_heads", "span", "represents", "queries", "across",
    "causal", "order", "ring", "merge", "ranks", "subgroups", "items", "part", "panel",
)  # fmt: skip
_FACTOR = (
    "factor", "direction", "cube.hbm.channel_bw_gbs", "cube.ucie.bw_gbs", "cube.ucie.port_ns", "cube.noc.link_bw_gbs",
)  # fmt: skip
_GRID = ("cube mesh", "UCIe [GB/s]", "HBM of a PE [GB/s]")

# Each file of a report: the columns that name a row. Rows of one name share a digest, in their order.
KEYS: dict[str, tuple[str, ...]] = {
    "ccl/ccl.csv": _COLLECTIVE,
    "ccl/ccl.json": _COLLECTIVE,
    "design_space/design_space.csv": ("table", *_GRID, *_FACTOR, "tie_seed"),
    "design_space/design_space.json": ("table", *_GRID, *_FACTOR, "tie_seed"),
    "gemm/gemm.csv": ("shape", "variant", "gather", "dtype"),
    "gemm/gemm.json": ("shape", "variant", "gather", "dtype"),
    "gemm/layers.csv": ("list", "name", "tp", "shape", "placement", "dtype"),
    "gemm/layers.json": ("list", "name", "tp", "shape", "placement", "dtype"),
    "gqa/gqa.csv": _ATTENTION,
    "gqa/gqa.json": _ATTENTION,
    "probe/probe.csv": ("case", "nbytes"),
    "probe/probe.json": ("case", "nbytes"),
    "probe/probe_hops.csv": ("case", "nbytes"),
    "probe/probe_links.csv": ("case", "nbytes"),
    "verification/verification.csv": ("name",),
    "verification/verification.json": ("name",),
}
_ALSO = ("share", "worst_expected", "worst_measured", "error_max")  # shares of a link's time, and ps in `verification`
_NOT = ("cube.ucie.port_ns", "fast_ns", "estimate_ns")  # a parameter of the machine, estimates


def whole(text: str) -> str:
    """Return a number of a table as an integer, if it is one: a column that some rows lack holds floats."""
    return text.removesuffix(".0")


def digests(file: str, columns: list[str]) -> dict[str, dict[str, str]]:
    """Return the digest of `columns` of every row of a file of the reports, under "exact" or "estimate"."""
    texts = defaultdict(list)
    for row in _rows(file):
        name = " | ".join(whole(text) for key in KEYS[file] if (text := str(row.get(key, ""))) not in ("", "None"))
        texts["estimate" if _is_estimate(row) else "exact", name].append(_times(row, columns))
    found: dict[str, dict[str, str]] = {"exact": {}, "estimate": {}}
    for (kind, name), lines in texts.items():
        found[kind][name] = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    return found


def _columns(file: str) -> list[str]:
    columns = {column for row in _rows(file) for column in row}
    return sorted(c for c in columns if (c.endswith(("_ns", "_per_s_per_sip")) or c in _ALSO) and c not in _NOT)


def _rows(file: str) -> list[dict]:
    path = OUTPUT / file
    if not path.exists():
        return []
    if path.suffix == ".json":
        content = json.loads(path.read_text())
        return content["rows"] + content.get("limits", [])
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    if "row" not in rows[0]:
        return rows
    # A nested column: `row` counts the rows of the study's own file, a mapping has columns `key` and `value`.
    study = _rows(f"{path.parent.name}/{path.parent.name}.csv")
    return [study[int(row["row"])] | row | ({"share": row["value"]} if "value" in row else {}) for row in rows]


def _is_estimate(row: dict) -> bool:
    """Whether the row was not simulated flit by flit, or not at all."""
    simulated = str(row.get("certified", "True")) == "True" and not row.get("left_out")
    return not simulated or "mode fast" in str(row.get("certificate") or "")


def _times(row: dict, columns: list[str]) -> str:
    return ";".join(f"{c}={float(row[c])!r}" for c in columns if row.get(c) not in ("", None))


def _recorded() -> dict[str, dict]:
    return {file: {"columns": (columns := _columns(file)), **digests(file, columns)} for file in KEYS}


if __name__ == "__main__":
    TIMES.write_text(json.dumps(_recorded(), indent=1) + "\n")
