"""DRAM standards: their parameters, the times that follow from them, and the keys of a machine file."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from kernbench.config import preset_path, read_machine
from kernbench.config._dram import dram, dram_names
from kernbench.config._schema import Hbm
from kernbench.errors import ConfigError

DEFAULT = preset_path("default")


@pytest.mark.parametrize("name", ["hbm2e", "hbm3"])
def test_a_standard_names_its_source_and_keeps_its_own_rules(name):
    part = dram(name)
    assert part.standard.startswith("JESD23")
    assert "Ramulator" in part.source
    assert (part.access_bytes, part.bank_groups * part.banks_per_group, part.row_bytes) == (32, 16, 1024)
    ns, clocks = part.ns, part.clocks
    assert ns["tRC"] >= ns["tRAS"] + ns["tRP"]
    assert ns["tRRD_L"] >= ns["tRRD_S"]
    assert clocks["tCCD_L"] >= clocks["tCCD_S"] >= 2, "an access takes two clocks of the data bus"
    assert ns["tRFCpb"] < ns["tREFI"] / 16


def test_times_are_whole_clocks_of_the_channel_s_data_rate():
    ps = dram("hbm3").times_ps(25.6)
    assert (ps["tBL"], ps["tCCD_S"], ps["tRCDRD"], ps["tREFIpb"]) == (1250, 1250, 19375, 243750)
    # 32 GB/s: a clock of 0.5 ns, and 19.375 ns are 39 clocks.
    faster = dram("hbm3").times_ps(32)
    assert (faster["tBL"], faster["tCCD_L"], faster["tRCDRD"]) == (1000, 2000, 19500)


def test_a_speed_bin_has_the_clocks_of_its_rate_and_the_rest_of_its_standard():
    slow, fast = dram("hbm2_1600").times_ps(12.8), dram("hbm2_2400").times_ps(19.2)
    # 10 clocks of 1.25 ns; at 2400 Mb/s, 17 of the next whole picosecond; ns of the standard are rounded up to clocks.
    assert (slow["CL"], slow["tRC"], slow["tFAW"], slow["tRRD_S"]) == (12_500, 42_500, 15_000, 5_000)
    assert (fast["tBL"], fast["CL"], fast["tRRD_S"]) == (1667, 17 * 834, 5 * 834)
    assert dram("hbm2_2000").times_ps(16) == dram("hbm2e").times_ps(16)
    assert dram("hbm3_6400").times_ps(25.6) == dram("hbm3").times_ps(25.6)
    assert dram("hbm3e_9200").times_ps(36.8) == dram("hbm3").times_ps(36.8)


def test_a_graphics_memory_has_other_sizes():
    part = dram("gddr6_14000")
    assert (part.access_bytes, part.row_bytes, part.bin_gbs) == (32, 2048, 28)
    assert part.times_ps(28)["tREFIpb"] == 208 * 572  # 1900 ns over 16 banks, in whole clocks


def test_every_standard_can_be_chosen_and_a_bin_has_its_bandwidth_only():
    assert get_args(get_type_hints(Hbm)["timing"]) == ("simple", *dram_names())
    wide = {"cube.hbm.bw_gbs": 300, "cube.pe.pe_dma.bw_gbs": 300}  # as a slice of the fastest bin
    for name in dram_names():
        right = {"cube.hbm.timing": name, "cube.hbm.channel_bw_gbs": dram(name).bin_gbs or 24, **wide}
        assert read_machine(DEFAULT, right).cube.hbm.timing == name
        if dram(name).bin_gbs:
            with pytest.raises(ConfigError, match=rf"channel_bw_gbs = 24 must be .* Mb/s .* timing {name}; change one"):
                read_machine(DEFAULT, {**right, "cube.hbm.channel_bw_gbs": 24})


@pytest.mark.parametrize("timing", ["hbm2e", "hbm3"])
@pytest.mark.parametrize(
    ("key", "value", "neutral"), [("access_ns", 40, 0), ("turnaround_ns", 5, 0), ("efficiency", 0.8, 1)]
)
def test_fields_of_simple_timing_are_refused(timing, key, value, neutral):
    assert read_machine(DEFAULT, {"cube.hbm.timing": timing}).cube.hbm.timing == timing
    with pytest.raises(ConfigError) as error:
        read_machine(DEFAULT, {"cube.hbm.timing": timing, f"cube.hbm.{key}": value})
    text = str(error.value)
    assert f"cube.hbm.{key} = {value:g} belongs to cube.hbm.timing = simple, and timing is {timing}" in text
    assert f"set {key} to {neutral}, or timing to simple" in text


def test_a_burst_holds_an_access():
    assert read_machine(DEFAULT, {"cube.hbm.timing": "hbm3", "cube.hbm.burst_bytes": 32})
    with pytest.raises(ConfigError, match=r"burst_bytes = 16 must be >= 32 \[B\], an access of hbm3; enlarge it"):
        read_machine(DEFAULT, {"cube.hbm.timing": "hbm3", "cube.hbm.burst_bytes": 16})


@pytest.mark.parametrize(("key", "value"), [("timing", "hbm4"), ("mapping", "BaRoCoBg")])
def test_other_names_are_refused_with_the_known_ones(key, value):
    with pytest.raises(ConfigError, match=rf"cube\.hbm\.{key}.*(hbm2e|RoBaCoBg)"):
        read_machine(DEFAULT, {f"cube.hbm.{key}": value})


def test_a_machine_without_it_keeps_its_hash():
    spec = read_machine(DEFAULT).to_spec()
    for key in ("timing", "mapping"):
        del spec["cube"]["hbm"][key]
    assert read_machine(spec).hash == read_machine(DEFAULT).hash
    assert read_machine(DEFAULT, {"cube.hbm.timing": "hbm3"}).hash != read_machine(DEFAULT).hash
