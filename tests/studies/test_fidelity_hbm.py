"""Streams on one pseudo channel, against what Ramulator 2.1 took for them."""

from __future__ import annotations

import csv

import pytest

from kernbench.studies._fidelity_hbm import measure
from kernbench.topology.builder import resolve_topology
from tests.repo import ROOT
from tests.slow import slow_after

DATA = ROOT / "milestones" / "fidelity" / "data" / "ramulator2"
MACHINE = resolve_topology("preset:default")

with (DATA / "results.csv").open(encoding="utf-8") as file:
    RESULTS = list(csv.DictReader(file))
with (DATA / "bins" / "results.csv").open(encoding="utf-8") as file:
    BINS = list(csv.DictReader(file))


def value(parameters: str, **changed: str) -> float:
    return measure(MACHINE, **(dict(pair.split("=") for pair in parameters.split("; ")) | changed))


def test_every_stream_has_a_result():
    assert [row["parameters"] for row in RESULTS] == (DATA / "streams.txt").read_text("utf-8").splitlines()
    assert {row["unit"] for row in RESULTS} == {"GB/s", "ns"}


@pytest.mark.parametrize("row", slow_after(4, RESULTS[::6]), ids=lambda row: row["parameters"])
def test_a_stream_is_within_five_percent(row):
    assert value(row["parameters"]) == pytest.approx(float(row["value"]), rel=0.05)


@pytest.mark.parametrize("row", slow_after(1, BINS), ids=lambda row: row["parameters"])
def test_a_stream_of_a_speed_bin_is_within_five_percent(row):
    assert value(row["parameters"]) == pytest.approx(float(row["value"]), rel=0.05)


def test_the_times_of_another_bin_are_not():
    row = BINS[1]
    assert value(row["parameters"], timing="hbm2e") > 1.15 * float(row["value"])


@pytest.mark.slow
def test_refreshes_that_stop_only_their_bank_explain_the_difference_to_such_controllers():
    row = next(row for row in RESULTS if "refresh=on; pattern=sequential" in row["parameters"])
    assert value(row["parameters"], refresh="bank") > 1.05 * float(row["value"])
    assert value(row["parameters"], refresh="bank") < value(row["parameters"], refresh="off") * 1.001


def test_writes_take_the_bus_as_long_as_reads():
    """In order and without refreshes, either kind keeps the bus busy; a mixture has to turn it."""
    stream = "timing=hbm3; pattern=sequential; requests=2000; metric=throughput; channel_bw_gbs=25.6; refresh=off"
    assert value(stream, reads="0") == pytest.approx(value(stream, reads="1"), rel=0.02)
    assert value(stream, reads="0.5") < value(stream, reads="1")
