"""What a run leaves behind: rows by level, bytes, busy time, and what a row costs."""

from __future__ import annotations

import tracemalloc

import pytest

from kernbench.analysis._records import LOG_COLUMNS
from kernbench.analysis._stages import ROW_KINDS
from kernbench.errors import LimitError
from kernbench.sim_engine._op_log import OpLog
from tests.components.one_pe import gemm, run

PRODUCT = gemm(64, 128, 64, "ref_ref")


@pytest.mark.parametrize("level", ["off", "operation", "tile"])
def test_levels_of_the_log(level):
    records = run(gemm(64, 64, 32, "load_ref"), log=level).records()
    kinds = {row.kind for row in records}
    assert (
        kinds
        == {
            "off": set(),
            "operation": {"launch", "load", "composite"},
            "tile": {"launch", "load", "composite", "dma_in", "fetch", "gemm", "store_tcm", "dma_out"},
        }[level]
    )
    assert records.busy_by_component()["sip0.cube0.pe0.pe_gemm"] == 2 * 16_000, "counted at every level"


def test_the_log_level_changes_no_time():
    assert len({run(PRODUCT, log=level).env.now for level in ("off", "operation", "tile")}) == 1


def test_rows_say_what_moved():
    engine = run(gemm(40, 64, 32, "ref_ref"), log="tile")
    records = engine.records()
    total = {kind: sum(row.nbytes for row in records if row.kind == kind) for kind in ROW_KINDS}
    # Two tiles of rows, 32 and 8 high: the ragged one moves its own bytes, and b passes once for each.
    assert total["dma_in"] == total["fetch"] == 40 * 64 * 2 + 2 * 64 * 32 * 2
    assert total["dma_out"] == total["store_tcm"] == 40 * 32 * 2
    assert sum(row.flops for row in records if row.kind == "gemm") == 2 * 40 * 64 * 32
    [composite] = [row for row in records if row.kind == "composite"]
    assert composite.flops == 2 * 40 * 64 * 32
    assert composite.command.tag == "40x64x32"


def test_links_are_busy_for_what_they_carried():
    engine = run(gemm(32, 64, 32, "ref_ref"))
    table = engine.records().links
    into = dict(zip(table.names, zip(table.nbytes, table.busy_ps, strict=True), strict=True))
    nbytes, busy = into["sip0.cube0.r0c0->sip0.cube0.pe0.pe_dma"]
    # Two reads of 4 KiB and the acknowledgement of 16 B.
    assert (nbytes, busy) == (2 * 4096 + 16, 32 * 1000 + 63)


def test_busy_is_never_more_than_the_time_there_was():
    engine = run(gemm(96, 256, 96, "ref_ref", b_pe=3))
    records = engine.records()
    assert max(records.links.busy_ps) <= records.makespan_ps
    assert max(records.busy_by_component().values()) <= records.makespan_ps


def test_a_row_of_the_log_costs_few_bytes():
    log = OpLog("tile")
    count = 200_000
    tracemalloc.start()
    try:
        for i in range(count):
            log.row(i, i + 16, 3, 2, 1, 4096, 131_072, i)
        held, _ = tracemalloc.get_traced_memory()
        columns = log.rows.columns(LOG_COLUMNS)
    finally:
        tracemalloc.stop()
    # 64 B a row in blocks, and up to one block of rows still in tuples.
    assert held < 64 * count + 16_384 * 400
    assert sum(column.nbytes for column in columns.values()) <= 48 * count


def test_more_rows_than_causes_can_name_are_refused():
    log = OpLog("tile")
    log.rows._rows = 8191 * 16384
    assert log.row(0, 1, 0, 0, -1, 0, 0, -1) >> 3 == 8191 * 16384
    log = OpLog("tile")
    log.rows._rows = 8192 * 16384
    with pytest.raises(LimitError, match=r"holds 134,217,728 rows of one kind, the most; make the run sma"):
        log.row(0, 1, 0, 0, -1, 0, 0, -1)
