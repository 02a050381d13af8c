"""Configuration: machine files and ccl.yaml, validated with all faults of a file at once."""

from kernbench.config._ccl import AUTO, COLLECTIVES, CclConfig, CclEntry
from kernbench.config._files import default_ccl_path, find, load_yaml, preset_path, presets
from kernbench.config._read import json_schema, read_ccl, read_machine
from kernbench.config._schema import MachineConfig, PeGemmConfig, PeMathConfig, PeMmuConfig, PeTcmConfig

__all__ = [
    "AUTO", "COLLECTIVES", "CclConfig", "CclEntry", "MachineConfig", "PeGemmConfig", "PeMathConfig", "PeMmuConfig",
    "PeTcmConfig", "default_ccl_path", "find", "json_schema", "load_yaml", "preset_path", "presets", "read_ccl",
    "read_machine",
]  # fmt: skip
