"""ccl.yaml: defaults of the queues between PEs, and the collective algorithms that use them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from kernbench.config.faults import faults
from kernbench.config.schema import Bytes, Count, Model
from kernbench.errors import ConfigError


class CclDefaults(Model):
    """What an algorithm uses unless it says otherwise."""

    buffer_kind: Literal["tcm", "sram", "hbm"]
    backpressure: Literal["credit"]
    n_slots: Count
    slot_size: Bytes
    vc_chunk_size: Bytes
    ipcq_credit_size_bytes: Bytes


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
    from kernbench.config.read import load_yaml

    name = "ccl" if isinstance(source, Mapping) else Path(source).name
    content = source if isinstance(source, Mapping) else load_yaml(Path(source))
    try:
        return CclConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(faults(name, CclConfig, error)) from None
