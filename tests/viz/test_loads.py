"""Loads over time are those of the log: in sum exactly, and in time as near as the log tells."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._records import MESSAGE, TRANSFERS, Dependencies, LinkTable, Records
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.viz import _loads


def gemm(a, b, out, *, tl):
    x, y = tl.ref(a, shape=(64, 128), dtype="f16"), tl.load(b, shape=(128, 64), dtype="f16")
    tl.composite("gemm", x, y, out)


@pytest.fixture(scope="module")
def gemm_records():
    with kb.session(kb.load(), log="tile") as torch:
        a, b, out = (torch.empty(n, m, dtype=torch.float16, device="ahbm") for n, m in ((64, 128), (128, 64), (64, 64)))
        torch.launch("gemm", gemm, a, b, out)
    return torch.result.records


def records_of(moves, busy_ps, span_ps, routes=((0, 1),), nodes=("a", "b")):
    """Records of messages (start, end, route, bytes) over links without latency."""
    names = tuple(dict.fromkeys(f"{nodes[x]}->{nodes[y]}" for route in routes for x, y in pairwise(route)))
    columns = {name: np.full(len(moves), -1, dtype) for name, dtype in TRANSFERS.items()}
    for i, (start, end, route, nbytes) in enumerate(moves):
        values = {"start_ps": start, "end_ps": end, "route": route, "nbytes": nbytes, "kind": MESSAGE}
        for name, value in values.items():
            columns[name][i] = value
    return Records.empty(
        makespan_ps=span_ps,
        links=LinkTable(names, np.zeros(len(names), int), np.array(busy_ps), np.full(len(names), 1000.0)),
        dependencies=Dependencies(columns, nodes, routes),
    )


def test_a_transfer_passes_a_link_as_early_as_it_can():
    load = _loads.link_loads(records_of([(100, 300, 0, 100)], [100], 400), 4).busy
    assert load.tolist() == [[0, 1, 0, 0]]


def test_a_transfer_leaves_the_busiest_link_as_its_end_demands():
    # The first link, which others use, too, is the busiest: the transfer waits in front of it.
    records = records_of([(0, 400, 0, 100), (0, 100, 1, 100)], [200, 100], 400, ((0, 1, 2), (0, 1)), ("a", "b", "c"))
    assert _loads.link_loads(records, 4).busy.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1]]


def test_a_slow_link_spaces_the_flits_of_a_fast_one():
    records = records_of([(100, 300, 0, 100)], [200, 100], 400, ((0, 1, 2),), ("a", "b", "c"))
    records.links.bw_gbs[0] = 500
    assert _loads.link_loads(records, 4).busy.tolist() == [[0, 1, 1, 0], [0, 0.5, 0.5, 0]]


def test_what_a_bin_has_no_room_for_is_done_later():
    # Two transfers that each need 100 ps ask for the link between 0 and 100: the second is served after the first.
    load = _loads.link_loads(records_of([(0, 100, 0, 100), (0, 100, 0, 100)], [200], 400), 4).busy
    assert load.tolist() == [[1, 1, 0, 0]]


def test_a_latency_moves_the_load_of_the_links_behind_it():
    records = records_of([(0, 300, 0, 100)], [100, 100], 300, routes=((0, 1, 2),), nodes=("a", "b", "c"))
    records.dependencies.links[0, 1] = (150, 50, 1.0, 0)
    assert _loads.link_loads(records, 3).busy.tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("bins", [1, 7, 512])
def test_loads_of_a_run_sum_to_the_busy_times_of_its_log(gemm_records, bins):
    records = gemm_records
    width = records.makespan_ps / bins
    busy = records.links.busy_ps[records.links.busy_ps > 0]
    links, nodes = _loads.link_loads(records, bins).busy, _loads.node_loads(records, bins).busy
    np.testing.assert_allclose(links.sum(1) * width, busy, atol=1e-3)
    np.testing.assert_allclose(nodes.sum(1) * width, list(_loads.used_nodes(records).values()), atol=1e-3)
    for load in (links, nodes):
        assert load.min() >= 0
        assert load.max() <= 1


def test_work_under_way_counts_transfers_that_wait():
    under_way = _loads.link_loads(records_of([(0, 200, 0, 100), (0, 200, 0, 100)], [200], 400), 4).under_way
    assert under_way.tolist() == [[2, 2, 0, 0]]


def loads_of_hops(hops, names, span_ps, bins):
    """The busy share of each link in each bin, of the service of every flit."""
    found, width = np.zeros((len(names), bins)), span_ps / bins
    rows = {name: i for i, name in enumerate(names)}
    for hop in hops:
        if hop.link in rows:
            first, last = int(hop.start_ps // width), min(bins - 1, int(hop.end_ps // width))
            for i in range(first, last + 1):
                inside = min(hop.end_ps, (i + 1) * width) - max(hop.start_ps, i * width)
                found[rows[hop.link], i] += max(0, inside) / width
    return found


def test_loads_are_near_those_of_every_flit():
    """Eight PEs read from the memory of one: they wait for it in turn."""

    def read(_, other, *, tl):
        tl.load(other, shape=(256, 128), dtype="f16")

    engine = GraphEngine(kb.load(), log="tile", trace=True)
    with RuntimeContext(engine) as torch:
        rows = kb.DPPolicy(cube="replicate", pe="row_wise", num_cubes=1, num_pes=8)
        everywhere = torch.empty(8, 64, dtype=torch.float16, device="ahbm", dp=rows)
        torch.launch("read", read, everywhere, torch.empty(256, 128, dtype=torch.float16, device="ahbm"))
    records, bins = torch.result.records, 64
    true = loads_of_hops(engine.network.hops, _loads.used_links(records), records.makespan_ps, bins)
    error = np.abs(_loads.link_loads(records, bins).busy - true)
    busy = true.sum(1) > 0.02 * bins
    assert busy.sum() > 20
    assert error[busy].mean() < 0.01
