from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._records import LOG_COLUMNS, CommandInfo, DramActivity, Launch, LinkTable, Records
from tests.analysis.synthetic import records_of


@pytest.fixture
def records():
    return records_of(
        [
            ("dma_in", 0, 16, 0, {"nbytes": 4096}),
            ("fetch", 16, 32, 0, {}),
            ("gemm", 32, 48, 0, {"flops": 131072}),
            ("gemm", 30, 40, 1, {}),
        ],
        links=LinkTable(("a->b",), np.array([4096]), np.array([16000]), np.array([256.0])),
        launches=(Launch("k", 0, 48_000),),
    )


def test_a_row_is_seen_with_names(records):
    op = records.op(2)
    assert (op.kind, op.component, op.start_ps, op.end_ps, op.flops) == (
        "gemm", "sip0.cube0.pe0.pe_gemm", 32_000, 48_000, 131072,
    )  # fmt: skip
    assert (op.command.sip, op.command.cube, op.command.pe) == (0, 0, 0)


def test_filters_select_rows_and_keep_the_totals(records):
    assert [op.kind for op in records.of_kind("gemm", "fetch")] == ["fetch", "gemm", "gemm"]
    assert len(records.of_pe(0, 0, 1)) == 1
    assert len(records.of_pe(0, 0, 2)) == 0
    assert records.of_kind("gemm").makespan_ps == records.makespan_ps
    assert records.pes() == [(0, 0, 0), (0, 0, 1)]


@pytest.mark.parametrize(
    ("window", "kinds"), [((0, 16_000), ["dma_in"]), ((16_000, 16_001), ["fetch"]), ((47_999, 48_000), ["gemm"])]
)
def test_a_window_is_half_open(records, window, kinds):
    assert [op.kind for op in records.within(*window)] == kinds


def test_unequal_columns_are_refused(records):
    with pytest.raises(ValueError, match="differ in length"):
        replace(records, tile=np.zeros(1, np.int32))


def test_a_file_holds_everything(records, tmp_path):
    records = replace(records, drams={"sip0.cube0.hbm_ctrl.pe0": DramActivity(1, 2, 3, 4, 5)})
    path = records.save(tmp_path / "run.npz")
    again = Records.load(path)
    assert again.drams == records.drams
    assert again.digest() == records.digest()
    for name, dtype in LOG_COLUMNS.items():
        assert getattr(again, name).dtype == dtype
    assert (again.commands, again.launches, again.machine) == (records.commands, records.launches, records.machine)
    assert again.links.bw_gbs.tolist() == [256.0]
    assert list(tmp_path.iterdir()) == [path]


def test_two_saves_are_equal_bytes(records, tmp_path):
    assert records.save(tmp_path / "a").read_bytes() == records.save(tmp_path / "b").read_bytes()


def test_counted_busy_time_wins_over_rows(records):
    assert records.busy_by_component()["sip0.cube0.pe0.pe_gemm"] == 16_000
    counted = replace(records, component_busy_ps=np.arange(len(records.components)))
    assert list(counted.busy_by_component().values()) == list(range(len(records.components)))


def test_overlapping_rows_of_a_component_are_busy_once():
    rows = [("load", 0, 10, 0, {}), ("load", 4, 6, 0, {}), ("dma_in", 8, 12, 0, {}), ("store", 20, 21, 0, {})]
    rows += [("load", 3, 4, 1, {})]
    assert records_of(rows).busy_by_component() == {"sip0.cube0.pe0.pe_dma": 13_000, "sip0.cube0.pe1.pe_dma": 1000}


def test_no_rows_at_all():
    records = Records.empty(machine="abc")
    assert (len(records), records.pes(), list(records)) == (0, [], [])
    assert records.digest() == Records.empty(machine="other").digest()


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_digest_forgets_order_and_ids_but_no_time(random, n):
    rows = [
        (
            random.choice(["gemm", "fetch", "load"]),
            t := random.randrange(100),
            t + random.randrange(9),
            random.randrange(3),
            {},
        )
        for _ in range(n)
    ]
    records = records_of(rows)
    digest = records.digest()

    order = list(range(n))
    random.shuffle(order)
    assert records.where(np.array(order)).digest() == digest

    names = list(range(len(records.components)))
    random.shuffle(names)
    renumbered = replace(
        records,
        components=tuple(records.components[i] for i in names),
        component=np.array([names.index(i) for i in records.component], np.int32),
    )
    assert renumbered.digest() == digest

    later = records.end_ps.copy()
    later[random.randrange(n)] += 1
    assert replace(records, end_ps=later).digest() != digest


def test_digest_sees_the_command_but_not_unused_ones(records):
    extra = replace(records, commands=(*records.commands, CommandInfo("unused")))
    assert extra.digest() == records.digest()
    renamed = replace(records, commands=(replace(records.commands[0], tag="x"), *records.commands[1:]))
    assert renamed.digest() != records.digest()
