"""ccl.yaml: what the queues between PEs (IPCQ) use unless an algorithm says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kernbench.config.files import default_ccl_path
from kernbench.config.read import Draft
from kernbench.config.values import Bytes, Count, Model


class CclDefaults(Model):
    """What an algorithm uses unless it says otherwise."""

    buffer_kind: Literal["tcm", "sram", "hbm"] = Field(description="Where a receiver's ring lies")
    backpressure: Literal["credit"] = Field(description="How a sender knows that a slot is free")
    n_slots: Count = Field(description="Slots of a ring: one ring for each direction")
    slot_size: Bytes = Field(description="Each slot")
    vc_chunk_size: Bytes = Field(description="Between turns of bulk and queue traffic at a PE's source link")
    ipcq_credit_size_bytes: Bytes = Field(description="The message that gives a slot back to the sender")


class CclConfig(Model):
    """The content of ccl.yaml."""

    defaults: CclDefaults


def read_ccl(source: str | Path | Mapping[str, Any]) -> CclConfig:
    """Return the validated content of a ccl.yaml, or of a mapping with its content.

    Raises
    ------
    ConfigError
        With every fault, one a line.
    """
    return Draft.of(source, "ccl").validated(CclConfig, default_ccl_path(), lambda _: ())
