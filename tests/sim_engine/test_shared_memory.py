"""Memory apart from the PEs, interleaved over controllers, and the last-level cache in front of it."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.policy.address.allocator import by_controller, controller_of
from kernbench.policy.address.phyaddr import HBM_BIT
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from tests.sim_engine.adapter import Engine
from tests.topology.machines import default

MIB = 1 << 20
DIE = {
    "system.sips": {"count": 2, "topology": "ring_1d"}, "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.noc.topology": "crossbar", "cube.noc.rows": 1, "cube.noc.cols": 1, "cube.noc.pitch_mm": 18.0,
    "cube.noc.removed": [], "cube.hbm.size_gib": 1,
}  # fmt: skip


def die(pes: int = 1, **changes):
    layout = {"pe_per_corner": pes, "corners": ["NW"]}
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return kb.load("preset:default", {**DIE, "cube.pe_layout": layout, **given})


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 12])
def test_each_row_of_blocks_has_one_on_each_controller(n, hashed):
    for row in range(40):
        blocks = [controller_of((row * n + i) * 512 + 7, 512, n, hashed) for i in range(n)]
        assert sorted(blocks) == [(number, row * 512 + 7) for number in range(n)]
    firsts = {controller_of(row * n * 512, 512, n, hashed)[0] for row in range(40)}
    assert firsts == (set(range(n)) if hashed else {0})


def test_the_pieces_of_a_controller_follow_one_another():
    start, size = HBM_BIT + 700, 9000
    parts = by_controller(start, size, 512, 5, True)
    assert sorted(number for number, *_ in parts) == [0, 1, 2, 3, 4]
    pieces = sorted(piece for *_, found in parts for piece in found)
    assert pieces[0][0] == start
    assert [a + n for a, n in pieces] == [a for a, _ in pieces[1:]] + [start + size]
    for number, offset, found in parts:
        at = offset
        for address, nbytes in found:
            assert controller_of(address - HBM_BIT, 512, 5, True) == (number, at)
            at += nbytes


def test_a_range_is_split_once():
    engine, pa = GraphEngine(die(cube__hbm__controllers=3)), HBM_BIT + 700
    first = engine.extents.of(pa, 9000)
    assert [(extent.node_id, extent.offset, extent.pieces) for extent in first] == [
        (engine.machine.graph.memory(0, 0, number), offset, pieces)
        for number, offset, pieces in by_controller(pa, 9000, engine.addresses.interleave_bytes, 3, True)
    ]
    assert engine.extents.of(pa, 9000) is first


def reads(machine, *asked):
    """Read (node, offset, nbytes) from PE 0, one after the other; return the time of each [ps], and the engine."""
    engine, times = Engine(machine), []
    for node, offset, nbytes in asked:
        start = engine.now
        engine.read(naming.pe_dma(0, 0, 0), node, offset, nbytes, lambda: times.append(engine.now))
        engine.run()
        times[-1] -= start
    return times, engine


def of_one_controller(timing, controllers):
    return die(cube__hbm__timing=timing, cube__hbm__interleave_bytes=512, cube__hbm__controllers=controllers)


@pytest.mark.parametrize("timing", ["simple", "hbm3"])
def test_reads_of_one_controller_take_the_time_of_a_slice(timing):
    asked = (0, 96), (4096, 20_000), (1 << 20, 512), (1 << 20, 512)

    def took(controllers):
        machine = of_one_controller(timing, controllers)
        memory = machine.graph.memory(0, 0, 0)
        return reads(machine, *((memory, *range_) for range_ in asked))[0]

    assert took(1) == took(None)


def test_a_product_of_one_controller_takes_the_time_of_a_slice():
    """From its start on: only the maps of its tensors differ (M2.4)."""

    def took(controllers):
        with kb.session(of_one_controller("simple", controllers), log="off") as torch:
            x, w = (torch.ones(96, 96, dtype=torch.float16, device="ahbm") for _ in range(2))
            torch.matmul(x, w, placement="rows").numpy()
        [launch] = torch.result.launches
        return launch.done_ps - launch.start_ps

    assert took(1) == took(None)


@pytest.mark.parametrize("controllers", [None, 3])
def test_a_map_of_shared_memory_takes_no_time(controllers):
    engine = GraphEngine(die(2, cube__hbm__controllers=controllers))
    pes = [(0, 0), (0, 1)]
    engine.wait(engine.map(0, dict.fromkeys(pes, ((1 << 60, 4096, HBM_BIT),)), "tensor"))
    assert (engine.env.now == 0) == bool(controllers)
    assert [engine.pe(0, *pe).mmu.translate(1 << 60, 64) for pe in pes] == [[(HBM_BIT, 64)]] * 2


def test_a_read_takes_a_share_of_each_controller():
    """12 controllers with one channel of 32 GB/s each: 48 KiB take 4 KiB / 32 GB/s and the data's way."""
    slow = {"cube__hbm__channels": 1, "cube__hbm__bw_gbs": 32, "cube__pe__pe_dma__bw_gbs": 1024}
    machine = die(cube__hbm__controllers=12, cube__pe__pe_dma__outstanding_reads=12, **slow)

    def kernel(x, *, tl):
        tl.load(x, shape=(48 * 512,), dtype="f16")

    with kb.session(machine) as torch:
        x = torch.ones(48 * 512, dtype=torch.float16, device="ahbm")
        torch.launch("load", kernel, x)
    (load,) = torch.result.records.of_kind("load")
    # Command; 16 bursts of 8 ns; the last flit of each over its link and the router; all 12 over the PE's link.
    assert (load.end_ps - load.start_ps) / 1000 == 1 + 16 * 8 + 8 + 1 + 12 * 0.25


@pytest.mark.parametrize(("controllers", "nbytes"), [(5, 512), pytest.param(12, 256, marks=pytest.mark.slow)])
def test_values_are_those_of_numpy(controllers, nbytes):
    machine = die(6, cube__hbm__controllers=controllers, cube__hbm__interleave_bytes=nbytes, cube__llc__size_mib=1)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((130, 70)).astype(np.float32) for _ in range(2))
    with kb.session(machine, data=True) as torch:
        x, y = (torch.tensor(values, device="ahbm") for values in (a, b.T.copy()))
        np.testing.assert_array_equal(x.numpy(), a)
        np.testing.assert_allclose((x @ y).numpy(), a @ b.T, rtol=1e-4, atol=1e-4)
        over = kb.DPPolicy(cube="replicate", pe="row_wise")  # over PEs, of which there may be more than controllers
        ones = [torch.full((300,), float(sip + 1), device=f"ahbm:{sip}", dp=over) for sip in range(2)]
        torch.collective(ones)
        assert (ones[1].numpy() == 3).all()


def test_a_message_with_several_blocks_of_a_controller_has_their_values_in_order():
    """A slot of 4 KiB takes 16 blocks of three controllers, from memory and into it."""

    def swap(x, n_elem, world_size, *, tl):
        tl.send("E", x, shape=(3000,))
        tl.recv("W", shape=(3000,), dst=x + 3000)

    values = np.arange(3000, dtype=np.float32)
    with kb.session(die(cube__hbm__controllers=3, cube__hbm__interleave_bytes=256), data=True) as torch:
        own = [torch.tensor(np.tile(values * (sip + 1), 2), device=f"ahbm:{sip}") for sip in range(2)]
        torch.collective(own, swap)
        np.testing.assert_array_equal(own[0].numpy(), [*values, *(2 * values)])
        np.testing.assert_array_equal(own[1].numpy(), [*(2 * values), *values])


LLC = naming.memory(0, 0, "llc", 0, apart=True)


def cached(**changes):
    given = {"cube__llc__size_mib": 1, "cube__llc__line_bytes": 1024, "cube__llc__hit_ns": 30}
    return die(2, **({"cube__hbm__controllers": 1} | given | changes))


def moved(engine) -> tuple[int, int]:
    """Bytes that the cache has read from HBM, and written to it."""
    route = engine.engine.memory_at(LLC).route
    return engine.network.back(route).nbytes, route.nbytes


def test_a_hit_takes_the_look_up_and_the_way():
    (miss, hit), engine = reads(cached(), (LLC, 0, 256), (LLC, 256, 256))
    assert hit == 1000 + 30_000 + 1000 + 1000 + 1000  # router, look-up, link, router, link
    # The line: a round of eight bursts is on four channels only; its four flits over a link at 256 GB/s.
    assert miss - hit == 8000 + 4 * 1000
    assert moved(engine) == (1024, 0)


def test_a_cache_that_holds_all_moves_the_compulsory_bytes():
    asked = [(LLC, 256 * i, 700) for i in (0, 5, 9, 2, 0, 5, 9, 40, 41)] * 2
    lines = {line for _, offset, n in asked for line in range(offset // 1024, (offset + n - 1) // 1024 + 1)}
    _, engine = reads(cached(), *asked)
    assert moved(engine) == (len(lines) * 1024, 0)


def test_the_least_recently_used_line_of_a_set_is_replaced():
    sets = MIB // (2 * 1024)
    a, b, c = ((LLC, i * sets * 1024, 256) for i in range(3))
    (_, _, first, *_, again), engine = reads(cached(cube__llc__ways=2), a, b, a, c, b, a)
    assert again > first  # b replaced a, which c had left
    assert moved(engine) == (5 * 1024, 0)
    (_, _, _, _, kept), engine = reads(cached(cube__llc__ways=2), a, b, a, c, a)
    assert kept == first
    assert moved(engine) == (3 * 1024, 0)


def test_a_dirty_line_is_written_when_it_is_replaced():
    sets = MIB // 1024
    engine = Engine(cached(cube__llc__ways=1))
    for i, (kind, written) in enumerate((("write", 0), ("read", 0), ("read", 1024), ("read", 1024))):
        at = (0, 256, sets * 1024, 2 * sets * 1024)[i]
        getattr(engine, kind)(naming.pe_dma(0, 0, 0), LLC, at, 256, lambda: None)
        engine.run()
        assert moved(engine)[1] == written
    assert moved(engine)[0] == 2 * 1024  # a written line is not read


def test_a_write_is_acknowledged_after_its_look_up():
    ends = []
    for hit_ns in (30, 75):
        engine = Engine(cached(cube__llc__hit_ns=hit_ns))
        engine.write(naming.pe_dma(0, 0, 0), LLC, 0, 256, lambda engine=engine: ends.append(engine.now))
        engine.run()
    assert ends[1] - ends[0] == 45_000


def test_outstanding_misses_of_a_line_are_merged():
    engine, ends = Engine(cached()), []
    for pe in range(2):
        engine.read(naming.pe_dma(0, 0, pe), LLC, 512 * pe, 256, lambda: ends.append(engine.now))
    engine.run()
    assert moved(engine) == (1024, 0)
    assert ends[1] - ends[0] == 1000  # one after the other over the link of the cache


@pytest.mark.parametrize("log", ["operation", "tile"])
@pytest.mark.parametrize(("changes", "gbs", "what", "field"), [
    ({"cube__hbm__channel_bw_gbs": 2}, 2 * 8 * 2, "HBM slice", "cube.hbm.channel_bw_gbs"),  # of 8 channels
    ({"cube__llc__bw_gbs": 16}, 2 * 16, "link of an LLC slice", "cube.llc.bw_gbs"),
])  # fmt: skip
def test_a_miss_waits_for_hbm_and_a_slice_limits_only_where_it_is_slower(changes, gbs, what, field, log):
    """Two slices; the operands are 16 KiB and 512 KiB, and each byte crosses the limit once at least."""
    with kb.session(cached(cube__hbm__controllers=2, **changes), log=log) as torch:
        a, b = (torch.empty(*shape, dtype=torch.float16, device="ahbm") for shape in ((16, 512), (512, 512)))
        torch.matmul(a, b)
    why = torch.result.why(torch.result.launches[-1].name)
    least_ns = (16 + 512) * 1024 / gbs
    assert least_ns < why.device_ns < 1.5 * least_ns
    assert (why[0].what, why[0].fields) == (what, (field,))
    assert why[0].ns > 0.9 * why.device_ns


def test_size_0_is_no_cache():
    plain = die(2, cube__hbm__controllers=1)
    none = die(2, cube__hbm__controllers=1, cube__llc__size_mib=0, cube__llc__hit_ns=99)
    node = naming.memory(0, 0, "hbm_ctrl", 0, apart=True)
    asked = [(node, 0, 4096), (node, 0, 4096), (node, 777, 5000)]
    assert reads(plain, *asked)[0] == reads(none, *asked)[0]


@pytest.mark.parametrize(("dies", "pes"), [pytest.param(1, 1024, marks=pytest.mark.slow), (64, 1)])
def test_many_pes_and_many_dies_run(dies, pes):
    changes = {"sip__cube_mesh": {"w": 8, "h": 8}} if dies > 1 else {}
    machine = die(cube__hbm__controllers=5, cube__pe_layout={"pe_per_corner": 1, "corners": ["NW"] * pes}, **changes)

    def kernel(x, *, tl):
        at = x + (tl.program_id(1) * pes + tl.program_id(0)) * 64
        tl.store(at, tl.load(at, shape=(1,)) + 1.0)

    with kb.session(machine, data=True) as torch:
        x = torch.zeros(dies * pes, 64, device="ahbm", dp=kb.DPPolicy(cube="row_wise", pe="row_wise"))
        torch.launch("each", kernel, x)
        assert x.numpy().sum() == dies * pes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cube__noc__rows": 2}, "topology crossbar has one router, not 2 x 1"),
        ({"cube__pe_layout": {"pe_per_corner": 1, "corners": ["NW"], "pe_routers": [[0, 0]]}}, "topology = mesh"),
        ({"cube__hbm__controllers": 1, "cube__hbm__controller_routers": [[0, 0]]}, "belongs to cube.noc.topology"),
        ({"cube__hbm__controller_routers": [[0, 0]]}, "belongs to cube.hbm.controllers"),
        ({"cube__llc__size_mib": 0.001}, r"must be 0 or >= 0.0039"),
        ({"cube__llc__size_mib": 1, "cube__llc__line_bytes": 128}, "must be >= 256 \\[B\\], cube.hbm.burst_bytes"),
        ({"cube__llc__size_mib": 8, "cube__llc__line_bytes": 8192, "cube__hbm__controllers": 2}, "a line of the cache"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        die(**changes)


def test_controllers_on_a_mesh_have_routers():
    with pytest.raises(ConfigError, match="needs as many"):
        default(cube__hbm__controllers=3, cube__hbm__controller_routers=[[0, 2]])
    with pytest.raises(ConfigError, match=r"controller 1 at \[2, 2\] is not on a router"):
        default(cube__hbm__controllers=2, cube__hbm__controller_routers=[[0, 2], [2, 2]])
    machine = default(cube__hbm__controllers=2, cube__hbm__controller_routers=[[0, 2], [5, 2]])
    places = [naming.memory(0, 0, "hbm_ctrl", number, apart=True) for number in range(2)]
    assert [machine.graph.out(place)[0].dst for place in places] == ["sip0.cube0.r0c2", "sip0.cube0.r5c2"]


def test_predictions_with_a_cache_are_refused():
    with kb.session(cached()) as torch:
        torch.ones(8, device="ahbm").numpy()
    with pytest.raises(ConfigError, match="does not know which requests hit the cache"):
        torch.result.what_if({"cube.llc.hit_ns": 40.0})


def test_queues_in_memory_apart_from_the_pes_are_refused():
    with kb.session(die(2, cube__hbm__controllers=2)) as torch:
        ones = [torch.ones(300, device=f"ahbm:{sip}") for sip in range(2)]
        with pytest.raises(ConfigError, match="use buffer_kind tcm or sram"):
            torch.collective(ones, "ring_allreduce_hbm")
