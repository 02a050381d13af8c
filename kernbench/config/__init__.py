"""Configuration: machine files and ccl.yaml, validated with all faults of a file at once."""

from kernbench.config.ccl import CclConfig, read_ccl
from kernbench.config.read import (
    default_ccl_path,
    find,
    json_schema,
    preset_path,
    presets,
    read_machine,
)
from kernbench.config.schema import MachineConfig, PeGemmConfig, PeMathConfig, PeMmuConfig, PeTcmConfig

__all__ = [
    "CclConfig", "MachineConfig", "PeGemmConfig", "PeMathConfig", "PeMmuConfig", "PeTcmConfig", "default_ccl_path",
    "find", "json_schema", "preset_path", "presets", "read_ccl", "read_machine",
]  # fmt: skip
