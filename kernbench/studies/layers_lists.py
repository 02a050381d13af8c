"""Layer lists of the whole-SIP GEMM study: published shapes, packaged as they were published."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from kernbench.errors import ArgumentError

LISTS = {
    "deepbench": "deepbench_gemm_inference_device.csv",
    "gpt2": "scalesim_gemm_gpt2.csv",
    "vit-s": "scalesim_gemm_vit_s.csv",
    "llama3-70b": "llama3_70b_gemms.csv",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One product C[m, n] = A[m, k] B[k, n] of a list."""

    list: str
    name: str
    m: int
    n: int
    k: int
    tp: int = 1

    @property
    def label(self) -> str:
        """Return the name as figures print it."""
        return f"{self.list} {self.name}".strip()


def layers(name: str) -> list[Layer]:
    """Return the layers of a list, in its order.

    Parameters
    ----------
    name : str
        "deepbench" (its inference set for devices), "gpt2", "vit-s" or "llama3-70b", and words that a layer's name
        must have: "llama3-70b tp8 m128" is one SIP of 8 with 128 tokens in flight, "vit-s L0" one layer.

    Raises
    ------
    ArgumentError
        If there is no such list, or no such layer in it.

    Examples
    --------
    >>> layers("gpt2")[0]
    Layer(list='gpt2', name='QKT', m=1024, n=1024, k=64, tp=1)
    """
    title, *narrowed = name.split()
    if title not in LISTS:
        raise ArgumentError(f"layer list {title!r} is unknown; known: {', '.join(LISTS)}")
    found = [_layer(title, row) for row in _rows(LISTS[title])]
    found = [layer for layer in found if set(narrowed) <= set(layer.name.split())]
    if not found:
        raise ArgumentError(f"layer list {name!r} has no layer: leave out {' or '.join(narrowed)}")
    return found


def select(names: Sequence[str]) -> list[Layer]:
    """Return the layers of several lists, as for `layers`, none twice."""
    return list(dict.fromkeys(layer for name in names for layer in layers(name)))


def source(name: str) -> str:
    """Return where a list is from, as its file says."""
    lines = _text(LISTS[name]).splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


def _layer(name: str, row: dict[str, str]) -> Layer:
    m, n, k, tp = int(row["m"]), int(row["n"]), int(row["k"]), int(row.get("tp", 1))
    title = row.get("layer") or f"{m}x{k}x{n}"
    if "gemm" in row:
        title = f"{row['gemm'].removesuffix('_proj')} tp{tp} m{m}"
    return Layer(name, title, m, n, k, tp)


def _rows(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in _text(file).splitlines() if not line.startswith("#")))


def _text(file: str) -> str:
    return (files("kernbench.studies") / "data" / file).read_text(encoding="utf-8")
