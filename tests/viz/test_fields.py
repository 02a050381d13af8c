"""Labels, units and sliders of machine fields and of workload parameters."""

from __future__ import annotations

import re

import pytest

import kernbench as kb
from kernbench.notebook._workloads import workloads
from kernbench.viz import _fields
from kernbench.viz._fields import _PARAMETERS, fields, parameter_label, sources


def value_of(machine, path):
    value = machine.spec
    for key in path.split("."):
        value = None if value is None else value.get(key)
    return value


def test_each_field_has_its_label_in_words():
    for path, field in fields().items():
        assert "_" not in field.label, path
        assert re.match(r"[A-Z]", field.label), path
        assert field.description, path
    labels = [field.label for field in fields().values()]
    assert len(set(labels)) == len(labels)


def test_the_reason_of_a_source_begins_with_a_word(monkeypatch, tmp_path):
    assert not [text for text in sources().values() if re.search(r": *[;:,]|[;:,] *$", text)]
    file = tmp_path / "machine.yaml"
    file.write_text("system:\n  sip_link:\n    bw_gbs: 1  # (chosen; tried 2)\n    latency_ns: 1  # (std)\n")
    monkeypatch.setattr(_fields.config, "preset_path", lambda _: file)
    read = sources.__wrapped__()
    assert read == {"system.sip_link.bw_gbs": "assumption: tried 2", "system.sip_link.latency_ns": "standard"}


def test_each_parameter_of_each_study_has_its_label_in_words():
    names = {x.name for workload in workloads().values() for x in workload.parameters}
    assert set(_PARAMETERS) == names
    assert all("_" not in parameter_label(name) for name in names)


def test_fields_carry_units_bounds_and_choices():
    bandwidth = fields()["cube.hbm.channel_bw_gbs"]
    assert (bandwidth.label, bandwidth.unit, bandwidth.bounds) == ("HBM bandwidth per channel", "GB/s", "> 0")
    assert fields()["cube.hbm.efficiency"].bounds == "> 0, <= 1"
    assert fields()["cost.area.mac_um2"].unit == "µm²"
    assert "torus_2d" in fields()["system.sips.topology"].choices
    assert fields()["system.sips.w"].bounds == ">= 1"


@pytest.mark.parametrize("preset", ["default", "small"])
def test_every_stop_of_a_slider_is_a_value_that_the_field_takes(preset):
    machine = kb.load(f"preset:{preset}")
    ranged = 0
    for path, field in fields().items():
        value = value_of(machine, path)
        stops = field.stops(value)
        assert bool(stops) == (isinstance(value, int | float) and not isinstance(value, bool)), path
        if stops:
            ranged += 1
            assert value in stops
            assert list(stops) == sorted(set(stops))
            assert len(stops) >= 7
            assert field.low < stops[0] or (field.low == stops[0] and ">=" in field.bounds)
            assert field.high is None or stops[-1] <= field.high
            assert not field.whole or all(isinstance(x, int) for x in stops)
    assert ranged > 80


def test_stops_of_whole_numbers_shares_and_zero():
    assert fields()["cube.hbm.channels"].stops(8) == (1, 2, 4, 8, 16, 32, 64), "powers of two only"
    assert fields()["system.sips.count"].stops(6) == tuple(range(1, 25))
    assert fields()["cube.hbm.efficiency"].stops(0.93)[-3:] == (0.93, 0.95, 1.0)
    assert fields()["cube.hbm.access_ns"].stops(0.0)[:3] == (0.0, 0.5, 1.0)
    assert len(fields()["cube.pe.pe_ipcq.slot_bytes"].stops(5000)) == 25
    assert fields()["cube.pe_layout.corners"].stops(["NW"]) == ()
