"""Labels, units, bounds and sliders for the fields of a machine file and the parameters of programs."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Literal, get_args, get_origin

from kernbench import config
from kernbench.config._kinds import LARGEST, Key, unit_of
from kernbench.config._schema import machine_keys

# The parameters of studies, which mean the same in all of them.
_PARAMETERS = {
    "m": "Rows of A and C (M)",
    "k": "Inner dimension (K)",
    "n": "Columns of B and C (N)",
    "staging": "Operands",
    "dtype": "Data type",
    "algorithm": "Algorithm",
    "elements": "Elements per SIP",
    "cubes": "Cubes",
    "sips": "SIPs",
    "topology": "Topology of the SIPs",
    "pes": "PEs per cube",
    "phase": "Phase",
    "tokens": "Tokens per rank",
    "ranks": "Ranks per KV head",
    "across": "Ranks are placed across",
    "items": "KV heads per group of ranks",
    "group": "Query heads per KV head",
    "head_dim": "Head dimension",
    "causal": "Causal mask",
    "order": "Order of tokens",
    "ring": "Ring of keys and values",
    "merge": "Merge of partial results",
    "placement": "Placement of C",
    "trans_a": "A is transposed",
    "trans_b": "B is transposed",
    "case": "Transfer",
    "nbytes": "Bytes per transfer",
    "n_elem": "Elements per participant",
    "d_model": "Size of the hidden state",
    "variant": "Operands loaded first",
    "model": "Model",
    "part": "Part of a step",
    "tp": "SIPs of the model",
    "requests": "Requests",
    "context": "Tokens of a request",
}

_UNITS = {"um2": "µm²", "mm2": "mm²", "mm2/MiB": "mm²/MiB", "mm2 per GB/s": "mm² per GB/s"}
_EACH = 32  # up to here, a slider of whole numbers offers each one
_STEPS = (1.0, 1.25, 1.5, 1.75)
_FACTORS = (*(step * 2.0**octave for octave in range(-3, 3) for step in _STEPS), 8.0)
_FROM_ZERO = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Field:
    path: str
    label: str
    unit: str
    description: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    open: bool = False
    whole: bool = False

    @property
    def bounds(self) -> str:
        """Bounds of a number, as in "> 0, <= 1"; empty for other values."""
        low = [] if self.low is None else [f"{'>' if self.open else '>='} {self.low:g}"]
        return ", ".join(low + ([] if self.high is None else [f"<= {self.high:g}"]))

    def stops(self, value: object) -> tuple[float, ...]:
        """Slider values around `value`, ascending; empty if it is not a single number.

        >>> fields()["cube.hbm.channels"].stops(8)
        (1, 2, 4, 8, 16, 32, 64)
        >>> fields()["cube.hbm.channel_bw_gbs"].stops(32.0)[:6]
        (4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
        """
        if self.low is None or isinstance(value, bool) or not isinstance(value, int | float):
            return ()
        if self.whole:
            whole = int(value)
            doubles = whole >= 8 and whole & (whole - 1) == 0
            at = [whole * 2**n / 8 for n in range(7)] if doubles else range(1, max(8, 4 * whole) + 1)
            at = at if doubles or whole <= _EACH else [round(whole * factor) for factor in _FACTORS]
            return self._allowed({int(x) for x in at if x == int(x)} | {value})
        if self.high == 1:
            return self._allowed({n / 20 for n in range(21)} | {value})
        near = {float(f"{value * factor:.3g}") for factor in _FACTORS} if value else _FROM_ZERO
        return self._allowed({float(self.low), *near, value})

    def _allowed(self, stops: Iterable[float]) -> tuple[float, ...]:
        low, high = self.low or 0, self.high or LARGEST
        return tuple(sorted(x for x in stops if (x > low if self.open else x >= low) and x <= high))


@cache
def fields() -> dict[str, Field]:
    """Return every value of a machine file, by path, in the order of the file."""
    return {key.path: _field(key) for key in machine_keys() if key.path != "schema_version"}


_SOURCES = {"ref": "reference design", "std": "standard", "chosen": "assumption"}
_LINE = re.compile(r"( *)(\w+):\s*([^#]*)(?:#.*?\((ref|std|chosen)\b[:;]?\s*([^)]*)\))?")


@cache
def sources() -> dict[str, str]:
    """Source of each default, from the comments of the packaged machine file.

    >>> sources()["cube.pe.pe_gemm.tile.m"], sources()["system.sip_link.latency_ns"]
    ('reference design', 'assumption: a short package-to-package serial link; tried 25 to 100')
    """
    found: dict[str, str] = {}
    keys: list[str] = []
    for line in config.preset_path("default").read_text("utf-8").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        indent, key, value, source, reason = match.groups()
        keys[len(indent) // 2 :] = [key]
        path = ".".join(keys)
        if source:
            text = f"{_SOURCES[source]}: {reason}" if reason else _SOURCES[source]
            found |= {
                leaf: text for leaf in fields() if leaf == path or (value.strip() and leaf.startswith(f"{path}."))
            }
    return found


def parameter_label(name: str) -> str:
    """Label of a program's parameter; without an entry, its name as words.

    >>> parameter_label("tokens"), parameter_label("block_size")
    ('Tokens per rank', 'Block size')
    """
    return _PARAMETERS.get(name) or name.replace("_", " ").strip().capitalize()


def _field(key: Key) -> Field:
    kind = get_args(key.kind)[0] if NoneType in get_args(key.kind) else key.kind  # of an optional key
    value, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    limits = ChainMap(*(mark.limits for mark in marks))
    choices = get_args(value) if get_origin(value) is Literal else ()
    unit, high = unit_of(kind), limits.get("le", LARGEST)
    words = key.path, key.label, _UNITS.get(unit, unit), key.description, choices if len(choices) > 1 else ()
    low = limits.get("gt", limits.get("ge"))
    return Field(*words, low, high if high < LARGEST else None, "gt" in limits, value is int)
