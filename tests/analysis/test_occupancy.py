"""Occupancy against step functions by hand, Little's law, and what the log leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._occupancy import ALLOCATED, QUANTITIES, READS, REQUESTS, SLOTS, WRITES, occupancy
from kernbench.analysis._records import CREDIT, FETCH, PART, READ, WRITE
from kernbench.analysis.trace import trace_events
from kernbench.policy.placement.dp import DPPolicy
from tests.components import one_pe
from tests.components import queues_under_test as queues

KIB = 1024
PE = "sip0.cube0.pe0"


def steps(engine, component, quantity):
    """Changes of a quantity as (ns from the launch on, value)."""
    start = list(engine.launches)[-1].start_ps
    (track,) = (x for x in occupancy(engine.records()) if (x.component, x.quantity) == (component, quantity))
    return [((t - start) / 1000, v) for t, v in zip(track.t_ps.tolist(), track.value.tolist(), strict=True)]


def five_loads(tl) -> None:
    kept = [tl.load(one_pe.pointer(256 * i, 7), shape=128) for i in range(5)]
    assert len(kept) == 5


def test_five_loads_of_which_four_are_outstanding():
    """Issued 2 ns apart, 42.60 ns each; the fifth leaves when the first is back."""
    engine = one_pe.run(five_loads)
    reads = [(2, 1), (4, 2), (6, 3), (8, 4), (46.6, 3), (48.6, 2), (50.6, 1), (87.2, 0)]
    assert steps(engine, f"{PE}.pe_dma", READS) == reads
    # Space is taken before the 2 ns of the issue, and free when the value is complete: the program has ended by then.
    taken = [(0, 256), (2, 512), (4, 768), (6, 1024), (8, 1280)]
    given = [(44.6, 1024), (46.6, 768), (48.6, 512), (50.6, 256), (87.2, 0)]
    assert steps(engine, f"{PE}.pe_tcm", ALLOCATED) == taken + given


def test_reads_of_one_channel_wait_at_the_memory():
    """From its own slice: there after 1 + 1 ns, a channel serves a burst in 8 ns, one after the other."""

    def kernel(tl) -> None:
        for _ in range(3):
            tl.load(one_pe.pointer(), shape=128)

    # Each is there a nanosecond after its issue; three bursts of 8 ns.
    expected = [(3, 1), (5, 2), (7, 3), (11, 2), (19, 1), (27, 0)]
    assert steps(one_pe.run(kernel), "sip0.cube0.hbm_ctrl.pe0", REQUESTS) == expected


def test_a_tile_that_is_dropped_gives_its_space_back_at_once():
    def kernel(tl) -> None:
        for _ in range(2):
            x = tl.load(one_pe.pointer(), shape=128)
            tl.wait(x)
            del x

    # A load from its own slice takes 12 ns from its issue on.
    assert steps(one_pe.run(kernel), f"{PE}.pe_tcm", ALLOCATED) == [(0, 256), (28, 0)]
    assert steps(one_pe.run(kernel), f"{PE}.pe_dma", READS) == [(2, 1), (14, 0), (16, 1), (28, 0)]


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_slots_are_in_use_from_a_part_s_arrival_to_its_credit(kind):
    """Three messages arrive, and are dropped at the end, one after another."""
    n = 2048 if kind == "tcm" else 4096

    def receiver(tl: Any) -> None:
        tiles = [tl.recv("W", shape=(n // 2,)) for _ in range(3)]
        tl.wait(tiles[-1])

    def sender(tl: Any) -> None:
        x = tl.full((n // 2,), 3.0, dtype=tl.float16) + 0
        for _ in range(3):
            tl.send("E", x)

    engine = queues.run({(0, 0, 0): sender, (0, 1, 0): receiver}, kind=kind, n_slots=4)
    arrived = [part["end_ps"] for part in queues.moves(engine, PART)]
    freed = [credit["start_ps"] for credit in queues.moves(engine, CREDIT)]
    (track,) = (x for x in occupancy(engine.records()) if x.quantity == SLOTS)
    assert track.component == "sip0.cube1.pe0.pe_ipcq"
    assert (len(arrived), len(freed)) == (3, 3)
    in_use = [(sum(a <= t for a in arrived) - sum(f <= t for f in freed)) for t in track.t_ps]
    assert track.value.tolist() == in_use
    assert {*track.t_ps.tolist()} <= {*arrived, *freed}
    assert track.value[-1] == 0
    if kind == "tcm":  # where tiles stay in their slots
        assert track.value.max() == 3


def test_tensors_take_memory_from_their_allocation_on():
    with kb.session("preset:small", data=True) as torch:
        here = DPPolicy(num_cubes=1, num_pes=1)
        x = torch.empty(1000, dtype=torch.int8, device="ahbm", dp=here)  # 1024 B, by the alignment
        x.numpy()
        then = torch.engine.env.now
        y = torch.empty(2000, dtype=torch.int8, device="ahbm", dp=here)
        y.numpy()
        now = torch.engine.env.now
        del x
        (track,) = (x for x in torch.result.occupancy if x.quantity == ALLOCATED and "hbm" in x.component)
    assert list(zip(track.t_ps, track.value, strict=True)) == [(0, 1024), (then, 3072), (now, 2048)]
    assert 0 < then < now


def area(records, quantity):
    """Integral over time of all tracks of a quantity."""
    tracks = [x for x in occupancy(records) if x.quantity == quantity]
    assert tracks
    assert all(x.value[-1] == 0 and x.value.min() >= 0 for x in tracks)
    assert all((np.diff(x.t_ps) > 0).all() and (np.diff(x.value, prepend=0) != 0).all() for x in tracks)
    return sum(int((np.diff(x.t_ps) * x.value[:-1]).sum()) for x in tracks)


@pytest.fixture(scope="module", params=["qkv-gemm-multi-pe", "ccl-allreduce"])
def result(request):
    return kb.run(request.param, log="tile").result


def test_littles_law_holds_exactly(result):
    records, moves = result.records, result.records.dependencies.transfers
    spans = {
        READS: ("start_ps", "end_ps", (READ, FETCH)), WRITES: ("start_ps", "end_ps", (WRITE,)),
        REQUESTS: ("arrived_ps", "served_ps", (READ, FETCH, WRITE)),
    }  # fmt: skip
    for quantity, (start, end, kinds) in spans.items():
        counted = np.isin(moves["kind"], kinds) & ((quantity != REQUESTS) | (moves["served_ps"] >= 0))
        assert area(records, quantity) == int((moves[end] - moves[start])[counted].sum()) > 0
    parts, credits = (moves["kind"] == kind for kind in (PART, CREDIT))
    if parts.any():
        held = int(moves["start_ps"][credits].sum() - moves["end_ps"][parts].sum())
        assert area(records, SLOTS) == held > 0


def test_no_more_is_outstanding_than_the_machine_file_allows(result):
    dma = result.records.spec["cube"]["pe"]["pe_dma"]
    for quantity, limit in ((READS, "outstanding_reads"), (WRITES, "outstanding_writes")):
        most = {int(x.value.max()) for x in result.occupancy if x.quantity == quantity and x.component != "host"}
        assert most
        assert max(most) <= dma[limit]


def test_a_log_without_tiles_does_not_know_the_requests_of_tiles():
    records = one_pe.run(one_pe.gemm(64, 64, 64)).records()
    assert {x.quantity for x in occupancy(records)} <= {ALLOCATED}
    tiles = one_pe.run(one_pe.gemm(64, 64, 64), log="tile").records()
    assert {READS, WRITES, REQUESTS} <= {x.quantity for x in occupancy(tiles)}


def test_an_interrupted_run_tells_allocations_only(result):
    found = occupancy(replace(result.records, complete=False))
    assert {x.quantity for x in found} == {ALLOCATED}
    whole = [x for x in occupancy(result.records) if x.quantity == ALLOCATED]
    assert [x.component for x in found] == [x.component for x in whole]


def test_a_memory_of_rings_tells_no_requests():
    def sender(tl: Any) -> None:
        tl.send("E", tl.load(one_pe.pointer(), shape=(64,)))

    def receiver(tl: Any) -> None:
        tl.store(one_pe.pointer(), tl.recv("W", shape=(64,)))

    engine = queues.run({(0, 0, 0): sender, (0, 1, 0): receiver}, kind="hbm")
    found = {x.component for x in occupancy(engine.records()) if x.quantity == REQUESTS}
    assert found == {"sip0.cube0.hbm_ctrl.pe0"}, "parts are written to the slice of cube 1"


def test_it_is_a_table(result):
    tracks, table = list(result.occupancy), result.occupancy.to_pandas()
    assert len(table) == sum(len(x.t_ps) for x in tracks)
    of = table[(table["component"] == tracks[-1].component) & (table["quantity"] == tracks[-1].quantity)]
    assert (of["t_ns"].to_numpy() * 1000).round().astype(int).tolist() == tracks[-1].t_ps.tolist()
    assert of["value"].tolist() == tracks[-1].value.tolist()
    order = [(x.component, list(QUANTITIES).index(x.quantity)) for x in tracks]
    assert order == sorted(order)


def test_without_a_log_there_is_nothing():
    result = kb.run("gemm-single-pe", "preset:small", log="off").result
    assert list(result.occupancy) == []
    assert len(result.occupancy.to_pandas()) == 0


def test_a_saved_result_has_it_too(result, tmp_path):
    again = kb.read(result.save(tmp_path / "run.npz")).occupancy
    for one, two in zip(result.occupancy, again, strict=True):
        assert one[:2] == two[:2]
        assert all(np.array_equal(a, b) for a, b in zip(one[2:], two[2:], strict=True))


def test_the_trace_has_every_change_as_a_counter(result):
    events = trace_events(result.records)["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found: dict[str, list[tuple[int, int]]] = {}
    for e in events:
        if e["ph"] == "C":
            change = round(e["ts"] * 1e6), e["args"]["value"]
            found.setdefault(f"{processes[e['pid']]}: {e['name']}", []).append(change)
    tracks = list(result.occupancy)
    assert len(found) == len(tracks), "each has a track of its own"
    assert sum(map(len, found.values())) == sum(len(x.t_ps) for x in tracks)
    reads = next(x for x in tracks if (x.component, x.quantity) == (f"{PE}.pe_dma", READS))
    named = "sip0.cube0: pe0.pe_dma outstanding reads"
    assert found[named] == list(zip(reads.t_ps.tolist(), reads.value.tolist(), strict=True))
