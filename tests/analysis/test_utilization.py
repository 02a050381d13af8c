from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.analysis._roofline import Roofs, point
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import composite_window, pe_window, utilization
from tests.analysis.synthetic import records_of

RATE = 4096.0


@pytest.fixture
def records():
    """Two tiles of 16 ns, the second half empty, after a load; the composite ends with its store."""
    full = 32 * 64 * 32
    return records_of(
        [
            ("load", 0, 40, 0, {"nbytes": 8192}),
            ("composite", 42, 100, 0, {}),
            ("gemm", 50, 66, 0, {"flops": 2 * full, "tile": 0}),
            ("gemm", 66, 82, 0, {"flops": full, "tile": 1}),
            ("dma_out", 86, 100, 0, {"nbytes": 2048}),
        ]
    )


def test_windows(records):
    assert pe_window(records) == (0, 100_000)
    assert composite_window(records, (0, 0, 0)) == (42_000, 100_000)
    assert composite_window(records, (0, 0, 5)) == (0, 0)


@pytest.mark.parametrize(("window", "span"), [(None, 100), ((42_000, 100_000), 58)])
def test_padding_is_the_distance_of_issued_from_useful(records, window, span):
    got = utilization(records, RATE, window=window)
    assert got.issued == pytest.approx(32 / span)
    assert got.useful == pytest.approx(24 / span)
    assert got.issued_macs == 2 * 32 * 64 * 32


def test_an_idle_pe_counts_where_all_are_looked_at(records):
    two = records_of([("gemm", 0, 10, 0, {"flops": 2 * 40960}), ("fetch", 0, 10, 1, {})])
    assert utilization(two, RATE).useful == 0.5
    assert utilization(two, RATE, pe=(0, 0, 0)).useful == 1.0


def test_no_work_is_no_utilization():
    assert utilization(records_of([]), RATE).useful == 0.0


def test_roofline(records):
    roofs = Roofs(8192.0, {"hbm": 256.0, "tcm": 512.0})
    assert (roofs.ridge("hbm"), roofs.ridge("tcm")) == (32, 16)
    assert roofs.attainable_gflops(16, "hbm") == 4096
    assert roofs.attainable_gflops(64, "hbm") == 8192
    run = point(records, "run")
    assert run.nbytes == {"HBM": 8192 + 2048, "TCM": 0}
    assert run.intensities == {"HBM": pytest.approx(3 * 65536 / 10240)}
    assert run.gflops <= roofs.attainable_gflops(run.intensities["HBM"], "hbm")


@pytest.mark.parametrize(
    ("intensities", "bound"),
    [
        ({"hbm": 16.0, "tcm": 16.0}, (4096.0, "hbm")),
        ({"hbm": 64.0, "tcm": 8.0}, (4096.0, "tcm")),
        ({"hbm": 64.0, "tcm": 32.0}, (8192.0, "peak")),
        ({}, (8192.0, "peak")),
    ],
)
def test_the_lowest_roof_binds(intensities, bound):
    assert Roofs(8192.0, {"hbm": 256.0, "tcm": 512.0}).bound(intensities) == bound


def test_the_timeline_has_a_row_for_each_piece_of_work_of_one_pe(records):
    table = timeline(records, (0, 0, 0))
    assert [(row["stage"], row["start_ns"]) for row in table] == [
        ("dma_in", 0),
        ("gemm", 50),
        ("gemm", 66),
        ("dma_out", 86),
    ]
    assert [row["start_ns"] for row in timeline(records, (0, 0, 0), (60_000, 67_000))] == [50, 66]
    assert timeline(records, (0, 0, 1)) == []


def test_a_composite_has_a_row_in_the_timeline_only_without_its_tiles(records):
    untiled = replace(records, tile=records.tile * 0 - 1)
    assert "composite" in [row["stage"] for row in timeline(untiled, (0, 0, 0))]
