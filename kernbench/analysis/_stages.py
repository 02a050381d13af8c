"""The stages of a PE and of the host: what readers call each, its kinds of rows in a log, and its engine."""

from __future__ import annotations

from typing import NamedTuple

LAUNCH, WAIT = "launch", "wait"


class _Stage(NamedTuple):
    label: str
    kinds: tuple[str, ...]
    reach: int
    engine: str = ""


# In the order in which a tile passes them. An instant belongs to the busy stage of the least `reach`: work on values
# comes before their transport. Of composites, only those whose tiles were not logged are shown.
_STAGES = {
    "host": _Stage("host", ("h2d", "d2h", "map", "install"), 6),
    LAUNCH: _Stage("launch", ("launch", "skew"), 7),
    "composite": _Stage("composite", ("composite",), 5),
    "dma_in": _Stage("dma in", ("dma_in", "load"), 3),
    "fetch": _Stage("fetch", ("fetch",), 2, "pe_fetch_store.fetch"),
    "gemm": _Stage("matrix", ("gemm",), 1, "pe_gemm"),
    "math": _Stage("vector", ("math",), 1, "pe_math"),
    "store_tcm": _Stage("store", ("store_tcm",), 2, "pe_fetch_store.store"),
    "dma_out": _Stage("dma out", ("dma_out", "store"), 3),
    "recv": _Stage("receive", ("recv",), 4),
    "send": _Stage("send", ("send",), 4),
    WAIT: _Stage("wait", (), 8),
}
# The labels of engines are kinds of parts of a critical path, too.
STAGE_LABELS = {name: stage.label for name, stage in _STAGES.items()}
STAGE_OF = {kind: name for name, stage in _STAGES.items() for kind in stage.kinds}
ROW_KINDS = tuple(STAGE_OF)
STAGE_ENGINES = {name: stage.engine for name, stage in _STAGES.items() if stage.engine}
TILE_STAGES = ("dma_in", *STAGE_ENGINES, "dma_out")
PE_STAGES = (*TILE_STAGES, "recv", "send")

ORDER = tuple(sorted(_STAGES, key=lambda name: _STAGES[name].reach))
# Kinds of rows by stage; the time of launches is that without work on PEs, and that of waits without anything.
STAGE_KINDS = {name: _STAGES[name].kinds for name in ORDER if name not in (LAUNCH, WAIT)}
HOST_KINDS = (LAUNCH, *STAGE_KINDS["host"])
COMMAND_KINDS = ("load", "store", "composite", "send", "recv", *HOST_KINDS)
PE_KINDS = tuple(kind for name, kinds in STAGE_KINDS.items() if name != "host" for kind in kinds)
ENGINE_KINDS = tuple(kind for kind in PE_KINDS if kind != "composite")
