"""Every key by itself: what it takes, and what is said when it does not."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from kernbench.config import read_machine
from tests.config.contents import DEFAULT, GONE, changed, faults, leaves

NO_BYTES = (".header_bytes", ".command_bytes")
# A machine file may leave these out.
OPTIONAL = (
    ".vcs", ".vc_flits", ".flit_bytes", ".interleave_bytes", "ucie.efficiency", "pcie.efficiency", "_start_ns",
    "pe_ipcq.channels", *NO_BYTES,
)  # fmt: skip
PROTOCOLS = tuple(f"cube.pe.pe_ipcq.{name}." for name in ("ll", "ll128", "simple"))
# In the order of the file.
NUMBERS = {path: v for path, v in leaves(DEFAULT).items() if isinstance(v, (int, float)) and path != "schema_version"}
UNITS = {"ns": "ns", "gbs": "GB/s", "ghz": "GHz", "mm": "mm", "mib": "MiB", "gib": "GiB", "kib": "KiB", "mb": "MiB"}
UNITS |= {"pj": "pJ", "pj_per_bit": "pJ/bit", "pj_per_bit_mm": "pJ/bit/mm", "um2": "um2", "mm2": "mm2"}
UNITS |= {"mm2_per_mib": "mm2/MiB", "mm2_per_gbs": "mm2 per GB/s"}
UNITS |= {"per_mm": "ns/mm", "per_sip": "GB/s", "bytes": "B", "cycles": "cycles"}


def unit(path: str) -> str:
    """Return the unit that the name of a key says, as messages end with it."""
    endings = [ending for ending in UNITS if path.endswith(f"_{ending}")]
    return f" [{UNITS[max(endings, key=len)]}]" if endings else ""


def is_whole(path: str) -> bool:
    value = read_machine(DEFAULT)
    for part in path.split("."):
        value = getattr(value, part)
    return isinstance(value, int)


def may_be_zero(path: str) -> bool:
    ends = "_ns", "_per_mm", "llc.size_mib", ".outstanding_reads", *NO_BYTES
    return path.endswith(ends) or (path.startswith(("cost.", *PROTOCOLS)) and not path.endswith("payload"))


def test_every_number_has_a_lower_bound():
    def said(path: str) -> str:
        if is_whole(path):
            least = 16 if path == "system.flit_bytes" else int(not may_be_zero(path))
            return f"{path} = -256 must be >= {least}{unit(path)}"
        return f"{path} = -256.0 must be {'>=' if may_be_zero(path) else '>'} 0{unit(path)}"

    assert faults(changed(dict.fromkeys(NUMBERS, -256))) == [said(path) for path in NUMBERS]


def test_zero_is_taken_where_something_may_take_no_time_or_cost_nothing():
    refused = {line.partition(" = ")[0] for line in faults(changed(dict.fromkeys(NUMBERS, 0)))}
    assert refused == {path for path in NUMBERS if not may_be_zero(path)}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("7", "'7' must be a plain number, not text"),
        ("256 GB/s", "'256 GB/s' must be a plain number, not text"),
        (True, "true must be a number"),
        (None, "null must be a number"),
        ([1], "[1] must be a number"),
        (float("nan"), "nan must be a finite number"),
        (float("inf"), "inf must be a finite number"),
        (-float("inf"), "-inf must be a finite number"),
    ],
    ids=str,
)
def test_what_is_no_number_is_refused(value, said):
    assert faults(changed(dict.fromkeys(NUMBERS, value))) == [f"{path} = {said}{unit(path)}" for path in NUMBERS]


def test_a_missing_number_is_named_with_a_value_to_put_there():
    needed = {
        path: value for path, value in NUMBERS.items() if not (path.endswith(OPTIONAL) or path.startswith(PROTOCOLS))
    }
    lines = faults(changed(dict.fromkeys(needed, GONE)))
    assert sorted(lines) == sorted(
        f"{path} is missing; add it; the packaged default has {value}{unit(path)}" for path, value in needed.items()
    )


def test_the_wording_of_a_bound():
    assert faults(changed({"cube.hbm.bw_gbs": -256.0})) == ["cube.hbm.bw_gbs = -256.0 must be > 0 [GB/s]"]


def test_the_wording_of_an_unknown_key():
    (line,) = faults(changed({"cube.hbm.bw_gbps": 256}))
    assert line.startswith("cube.hbm.bw_gbps is unknown; did you mean bw_gbs? known: impl, size_gib, channels, ")


def test_an_unknown_key_that_resembles_none():
    assert faults(changed({"sip.cube_mesh.zzz": 1})) == ["sip.cube_mesh.zzz is unknown; known: w, h"]


def test_a_missing_group_is_one_fault_with_a_way_out():
    (line,) = faults(changed({"cube.sram": GONE}))
    keys = "impl, size_mib, bw_gbs, pos_mm"
    assert line == f"cube.sram is missing; add it with its keys {keys}, or begin the file with base: default"


@pytest.mark.parametrize("value", [3, None, "x", [1]])
def test_a_value_where_a_group_belongs(value):
    (line,) = faults(changed({"cube.noc.router": value}))
    assert line.endswith(" must be a group of keys: impl, overhead_ns, flow, vcs, vc_flits, pipeline, allocator")


def test_keys_that_are_no_text():
    assert faults({**DEFAULT, 1: 2}) == ["1 is unknown; known: schema_version, system, sip, cube, cost"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": 2}, "schema_version = 2 must be 1"),
        ({"system.sips.topology": "ring"}, "system.sips.topology = 'ring' is unknown; did you mean ring_1d? known: "),
        ({"cube.hbm.gather": "striped"}, "cube.hbm.gather = 'striped' is unknown; did you mean strided? known: "),
        ({"cube.hbm.gather": 3}, "cube.hbm.gather = 3 is unknown; known: packed, strided"),
        ({"cube.pe_layout.corners": "NW"}, "cube.pe_layout.corners = 'NW' must be a list"),
        ({"cube.pe_layout.corners": ["NX"]}, "cube.pe_layout.corners[0] = 'NX' is unknown; known"),
        ({"cube.pe_layout.corners": []}, "cube.pe_layout.corners = [] must not be empty"),
        ({"cube.pe_layout.pe_routers": []}, "cube.pe_layout.pe_routers = [] must not be empty"),
        ({"cube.noc.removed": [[2, 2], [1]]}, "cube.noc.removed[1] = [1] must be a pair [row, column]"),
        ({"cube.noc.removed": [[2, -1]]}, "cube.noc.removed[0][1] = -1 must be >= 0"),
        ({"cube.noc.rows": 60000}, "cube.noc.rows = 60000 must be <= 64"),
        ({"cube.m_cpu.pos_mm": [1, 2, 3]}, "cube.m_cpu.pos_mm = [1, 2, 3] must be a pair [x, y] [mm]"),
        ({"cube.m_cpu.pos_mm": [1, "2"]}, "cube.m_cpu.pos_mm[1] = '2' must be a plain number, not text [mm]"),
        ({"cube.hbm.channels": 4.5}, "cube.hbm.channels = 4.5 must be a whole number"),
        ({"cube.hbm.efficiency": 1.01}, "cube.hbm.efficiency = 1.01 must be <= 1"),
        ({"cube.noc.router.impl": "rooter"}, "cube.noc.router.impl = 'rooter' is not a component; did you mean router"),
        ({"cube.noc.router.impl": 3}, "cube.noc.router.impl = 3 must be a name"),
        ({"cube.noc.router.impl": "hbm_ctrl"}, "cube.noc.router.impl = hbm_ctrl cannot do the work of router; use"),
        ({"sip.io.io_cpu.impl": "m_cpu"}, "sip.io.io_cpu.impl = m_cpu cannot do the work of io_cpu; use io_cpu, or a"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_values_of_other_kinds(changes, said):
    (line,) = faults(changed(changes))
    assert line.startswith(said)


@pytest.mark.parametrize("value", [1, 2, 4, 8, 1 << 20])
def test_powers_of_two_are_taken(value):
    assert not [line for line in faults(changed({"cube.hbm.burst_bytes": value})) if "power" in line]


@pytest.mark.parametrize("key", ["burst_bytes", "channels"])
@pytest.mark.parametrize("value", [3, 6, 7, 9, 257])
def test_other_numbers_are_no_powers_of_two(key, value):
    assert f"cube.hbm.{key} = {value} must be a power of two" in " ".join(faults(changed({f"cube.hbm.{key}": value})))


def test_a_long_value_is_cut():
    (line,) = faults(changed({"cube.hbm.bw_gbs": "9" * 500}))
    assert len(line) < 150


def test_numbers_of_numpy_are_numbers():
    config = read_machine(DEFAULT, {"sip.cube_mesh.w": np.int64(2), "cube.hbm.access_ns": np.float32(1.5)})
    assert (config.sip.cube_mesh.w, config.cube.hbm.access_ns) == (2, 1.5)
    assert type(config.sip.cube_mesh.w) is int


def test_a_whole_float_is_a_whole_number():
    assert read_machine(changed({"cube.hbm.channels": 8.0})).cube.hbm.channels == 8


def test_a_dotted_path_is_a_component():
    path = "my_lab.parts:SlowRouter"
    assert read_machine(changed({"cube.noc.router.impl": path})).cube.noc.router.impl == path


def test_a_configuration_is_frozen():
    config = read_machine(DEFAULT)
    with pytest.raises(FrozenInstanceError):
        config.cube.hbm.bw_gbs = 1.0
