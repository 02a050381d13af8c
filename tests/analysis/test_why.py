"""What a run names first is what makes it faster; what it does not name is not."""

from __future__ import annotations

import re

import pytest

from kernbench.analysis._resources import attribution
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology
from tests.slow import slow_after

MACHINE = resolve_topology("preset:default")
SHAPE = (128, 1024, 128)
FAR = 8192  # elements
OFF_PATH = ("system.sip_link.bw_gbs", "cube.sram.bw_gbs", "cube.pe.pe_math.clock_ghz")
RING, TREE = "ring_allreduce_tcm", "tree_allreduce"


def twice_as_good(machine, fields):
    """Return the machine with every one of `fields` twice as fast."""

    def value(field):
        at = machine.spec
        for name in field.split("."):
            at = at[name]
        return at / 2 if field.endswith(("_ns", "_mm")) else at * 2

    return machine.with_({field: value(field) for field in fields})


def product(machine, variant):
    return gemm.run(machine, SHAPE, variant)


def nothing(machine):
    """A launch that does nothing: messages only."""

    def program(torch):
        x = torch.empty(1, dtype="f16", device="ahbm")
        torch.launch("nothing", lambda x, *, tl: None, x)

    return run_program(machine, program, log="tile")


def one_slice(machine):
    """Every PE of a cube multiplies its columns of b by a; both lie in the slice of PE 0."""

    def kernel(a, b, out, *, tl):
        pe, cube = tl.program_id(0), tl.program_id(1)
        if cube == 0:
            tl.wait(tl.composite("gemm", tl.ref(a, (64, 512)), tl.ref(b, (512, 64)), out + 4096 * pe))

    def program(torch):
        far = DPPolicy(num_cubes=1, num_pes=1)
        a = torch.empty(64, 512, dtype="f16", device="ahbm", dp=far)
        b = torch.empty(512, 64, dtype="f16", device="ahbm", dp=far)
        out = torch.empty(128, 64 * 64, dtype="f16", device="ahbm", dp=DPPolicy(cube="row_wise", pe="row_wise"))
        torch.launch("shared", kernel, a, b, out)

    return run_program(machine, program, log="tile")


def own_slices(machine):
    """Each of the 128 PEs of the SIP multiplies what lies in its own slice."""

    def kernel(a, b, out, *, tl):
        tl.wait(tl.composite("gemm", tl.ref(a, (64, 512)), tl.ref(b, (512, 64)), out))

    def program(torch):
        each = DPPolicy(cube="replicate", pe="replicate")
        sizes = ((64, 512), (512, 64), (64, 64))
        torch.launch("own", kernel, *(torch.empty(*x, dtype="f16", device="ahbm", dp=each) for x in sizes))

    return run_program(machine, program, log="tile")


def next_cube(machine):
    """Each of the 128 PEs of the SIP loads from the cube beside its own, on meshes so wide that UCIe is what binds."""

    def kernel(x, *, tl):
        tl.wait(tl.load(x + FAR * (8 * (tl.program_id(1) ^ 1) + tl.program_id(0)), shape=(FAR,)))

    def program(torch):
        x = torch.empty(128, FAR, dtype="f16", device="ahbm", dp=DPPolicy(cube="row_wise", pe="row_wise"))
        torch.launch("next", kernel, x)

    wide = machine.with_({"cube.noc.link_bw_gbs": 1024, "cube.ucie.router_bw_gbs": 512})
    return run_program(wide, program, log="tile")


def all_reduce(machine, algorithm, n):
    """The sum of a vector over the SIPs, on one PE of each."""

    def program(torch):
        one = DPPolicy(num_cubes=1, num_pes=1)
        tensors = [torch.empty(n, dtype="f16", device=f"ahbm:{i}", dp=one) for i in range(machine.config.n_sips)]
        torch.collective(tensors, algorithm=algorithm)

    return run_program(machine, program)


CASES = {
    "ref_ref": (lambda machine: product(machine, "ref_ref"), "HBM slice", "cube.hbm.channel_bw_gbs"),
    "load_load": (lambda machine: product(machine, "load_load"), "matrix engine", "cube.pe.pe_gemm.clock_ghz"),
    "launch": (nothing, "wire of the PCIe link", "system.pcie.latency_ns"),
    "one slice": (one_slice, "HBM slice", "cube.hbm.channel_bw_gbs"),
    "ring": (lambda machine: all_reduce(machine, RING, 1 << 16), "wire of the SIP link", "system.sip_link.latency_ns"),
    "128 slices": (own_slices, "HBM slice", "cube.hbm.channel_bw_gbs"),
    "128 ways": (next_cube, "UCIe link", "cube.ucie.bw_gbs"),
    "ring, 16 B": (lambda machine: all_reduce(machine, RING, 8), "wire of the SIP link", "system.sip_link.latency_ns"),
    "tree": (lambda machine: all_reduce(machine, TREE, 3 << 14), "wire of the SIP link", "system.sip_link.latency_ns"),
}


@pytest.mark.parametrize("case", slow_after(5, CASES))
def test_twice_the_named_resource_shortens_the_run_and_twice_another_does_not(case):
    run, what, field = CASES[case]
    before = run(MACHINE)
    first = before.why()[0]
    assert (first.what, first.fields) == (what, (field,))
    after = run(twice_as_good(MACHINE, first.fields + first.together))
    saved = before.latency_ns - after.latency_ns
    assert saved > 0.3 * first.ns
    named = {field for reason in before.why() for field in (*reason.fields, *reason.together)}
    off = [field for field in OFF_PATH if field not in named]
    assert len(off) >= 1
    assert run(twice_as_good(MACHINE, off)).latency_ns == before.latency_ns


def test_balanced_stages_are_named_together():
    result = product(MACHINE, "load_load")
    first = result.why()[0]
    assert "cube.pe.pe_tcm.read_bw_gbs" in first.together
    alone = product(twice_as_good(MACHINE, first.fields), "load_load")
    both = product(twice_as_good(MACHINE, first.fields + first.together), "load_load")
    assert result.latency_ns - alone.latency_ns < 0.05 * first.ns
    assert result.latency_ns - both.latency_ns > 0.3 * first.ns


TCM = MACHINE.with_({"cube.pe.pe_tcm.read_bw_gbs": 768})


@pytest.mark.parametrize(
    ("machine", "run", "names"),
    [
        (MACHINE, lambda machine: product(machine, "load_load"), ("matrix engine", "fetch from TCM")),
        (TCM, lambda machine: gemm.run(machine, (256, 160, 48), "load_ref"), ("matrix engine", "HBM slice")),
    ],
)
def test_resources_that_limit_together_are_named_with_what_exact_runs_save(machine, run, names):
    before = run(machine)
    why = before.why()
    ((a, b, both),) = why.savings.pairs
    assert (a.what, b.what) == names
    exact = [
        1 - run(machine.with_(made.overrides)).latency_ns / before.latency_ns
        for made in (why.savings.alone[a], why.savings.alone[b], both)
    ]
    assert exact[2] > exact[0] + exact[1] + 0.02
    (said,) = why.savings.together()
    assert said.startswith(f"{a.what} and {b.what} limit together: twice as fast, both save ")
    *numbers, least, most = [float(x) / 100 for x in re.findall(r"([\d.]+)%", said)]
    assert numbers == pytest.approx([exact[2], exact[0], exact[1]], abs=0.01)
    assert least - 0.005 <= exact[2] <= most + 0.005
    for text in (repr(why), why._repr_html_()):
        assert said in text
    assert why.to_dict()["savings"][-1]["resources"] == [*names]


def test_fields_are_named_together_only_where_they_save_more_together():
    result = product(MACHINE, "load_load")
    why = result.why()
    clock, pcie = why[0], next(x for x in why if x.what == "PCIe link")
    assert why.savings.borne_out(clock).together == ("cube.pe.pe_tcm.read_bw_gbs",)
    assert f"{clock.fields[0]} alone 0.1% (prediction, " in repr(why)
    assert "cube.hbm.bw_gbs" in pcie.together, "it carries the same bytes at the same time"
    with_it = product(twice_as_good(MACHINE, (*pcie.fields, "cube.hbm.bw_gbs")), "load_load")
    alone = product(twice_as_good(MACHINE, pcie.fields), "load_load")
    assert alone.latency_ns == pytest.approx(with_it.latency_ns, rel=0.001)
    assert why.savings.borne_out(pcie).together == ()
    assert "-> raise system.pcie.bw_gbs\n" in repr(why)


def test_reasons_sum_to_the_run_and_are_sorted():
    why = product(MACHINE, "load_ref").why()
    assert sum(x.ns for x in why) == pytest.approx(why.path.makespan_ps / 1000, abs=1e-6)
    assert [x.host for x in why] == sorted(x.host for x in why)
    for host in (False, True):
        own = [x for x in why if x.host is host]
        assert sum(x.share for x in own) == pytest.approx(1)
        assert [x.ns for x in own] == sorted((x.ns for x in own), reverse=True)
    assert sum(x.ns for x in why if not x.host) == pytest.approx(why.device_ns) == why.to_dict()["device_ns"]
    assert why.to_dict()["reasons"][0]["what"] == why[0].what


def test_the_text_names_the_resource_its_time_and_the_field():
    why = product(MACHINE, "ref_ref").why()
    first = why[0]
    for text in (repr(why), why._repr_html_()):
        for part in ("HBM slice", "sip0.cube0.hbm_ctrl.pe0", f"{first.ns:,.2f}", "cube.hbm.channel_bw_gbs"):
            assert part in text
    assert "raise cube.hbm.channel_bw_gbs together with cube.hbm.bw_gbs, cube.pe.pe_dma.bw_gbs" in repr(why)


def test_a_limit_that_steps_waited_for_is_named():
    result = product(MACHINE.with_({"cube.pe.pe_dma.outstanding_reads": 1}), "ref_ref")
    limit = "the limit of outstanding requests"
    starts = {reason: (n, fields) for reason, n, fields in result.why().starts()}
    assert starts[limit][0] > 10
    assert "cube.pe.pe_dma.outstanding_reads" in starts[limit][1]
    waited = f"{starts[limit][0]} steps waited for one of the outstanding requests to complete: "
    assert waited in repr(result.why())
    assert product(MACHINE, "ref_ref").latency_ns < result.latency_ns


def reads(machine, step, *, waits=False, shape=256):
    """A PE reads bursts of its slice that are `step` bytes apart, 8 times; or each after the one before."""

    def kernel(x, *, tl):
        for i in range(8):
            value = tl.load(x + i * 128 + tl.arange(0, shape) * (step // 2))
            if waits:
                tl.wait(value)

    def program(torch):
        torch.launch("reads", kernel, torch.empty(shape * step // 2 + 1024, dtype="f16", device="ahbm"))

    return run_program(machine, program, log="tile")


def test_rows_are_blamed_where_bandwidth_changes_nothing_and_bandwidth_where_rows_stay_open():
    machine = MACHINE.with_({"cube.hbm.timing": "hbm3", "cube.hbm.hash": "none"})
    conflicts, sequence = reads(machine, 128 * 1024), reads(machine, 256)
    rows, bandwidth = conflicts.why()[0], sequence.why()[0]
    wide = ("cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs")
    faster = twice_as_good(machine, ("cube.hbm.channel_bw_gbs", *wide))
    assert (rows.what, rows.fields, rows.together) == ("HBM slice", ("cube.hbm.channels",), wide)
    # Every burst is in another row of all four bank groups.
    assert re.search(r"busy for 1\d% of the time .* 4.0\d rows are opened for each burst", rows.advice())
    assert reads(faster, 128 * 1024).latency_ns == pytest.approx(conflicts.latency_ns, rel=0.03)
    assert (
        reads(twice_as_good(machine, rows.fields + rows.together), 128 * 1024).latency_ns < 0.7 * conflicts.latency_ns
    )
    assert reads(machine, 64 * 1024 + 256).latency_ns < 0.7 * conflicts.latency_ns, "another layout"
    assert (bandwidth.what, bandwidth.fields, bandwidth.note) == ("HBM slice", ("cube.hbm.channel_bw_gbs",), "")
    assert reads(faster, 256).latency_ns < 0.7 * sequence.latency_ns


def test_neither_bandwidth_nor_channels_are_blamed_where_rows_open_as_slowly_as_bursts_pass():
    machine = MACHINE.with_({"cube.hbm.timing": "hbm3", "cube.hbm.hash": "none"})
    result = reads(machine, 16 * 1024)
    first = result.why()[0]
    assert (first.what, first.fields) == ("HBM slice", ())
    assert first.share > 0.9
    assert "2.02 rows are opened for each burst, which takes as long" in first.advice()
    for field in ("cube.hbm.channel_bw_gbs", "cube.hbm.channels"):
        faster = twice_as_good(machine, (field, "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs"))
        assert reads(faster, 16 * 1024).latency_ns > 0.95 * result.latency_ns


@pytest.mark.parametrize(
    ("dataflow", "side"),
    slow_after(1, [("weight_stationary", "m"), ("output_stationary", "k"), ("input_stationary", "n")]),
)
def test_an_array_that_a_tile_does_not_fill_is_named(dataflow, side):
    """An array of 20 x 44 fills and drains for 62 cycles: 63 that stream are fewer than its sides, 64 are not."""
    array = {"model": "systolic", "systolic": {"rows": 20, "cols": 44, "dataflow": dataflow}}

    def note(streamed):
        given = array | {"tile": {"m": 64, "k": 64, "n": 64} | {side: streamed}}
        machine = MACHINE.with_({f"cube.pe.pe_gemm.{key}": value for key, value in given.items()})
        first = product(machine, "load_load").why()[0]
        assert first.what == "matrix engine"
        return first.advice()

    text = f"fills and drains for 62 cycles while 63 stream: enlarge cube.pe.pe_gemm.tile.{side} to 64 or more"
    assert note(63).endswith(text)
    assert "array" not in note(64)


def test_a_launch_is_not_blamed_for_the_rows_of_another():
    def strided(x, *, tl):
        for i in range(8):
            tl.load(x + i * 128 + tl.arange(0, 256) * 65536)

    def sequential(x, *, tl):
        for i in range(8):
            tl.load(x + i * 8192, shape=(8192,))

    def program(torch):
        x = torch.empty(256 * 65536 + 1024, dtype="f16", device="ahbm")
        torch.launch("strided", strided, x)
        torch.launch("sequential", sequential, x)

    result = run_program(MACHINE.with_({"cube.hbm.timing": "hbm3"}), program)
    assert result.why()[0].fields == ("cube.hbm.channels",)
    launch = result.why("sequential")[0]
    assert (launch.what, launch.fields, launch.note) == ("HBM slice", ("cube.hbm.channel_bw_gbs",), "")
    first = result.why("strided")[0]
    assert first.fields == ("cube.hbm.channels",)
    assert "busy, over the whole run, for" in first.note


def test_no_field_is_blamed_where_a_burst_waits_for_the_one_before():
    machine = MACHINE.with_({"cube.hbm.timing": "hbm3"})
    result = reads(machine, 256, waits=True, shape=1)
    first = result.why()[0]
    assert (first.what, first.fields) == ("HBM slice", ())
    assert "few bursts are asked for at once" in first.advice()
    assert first.advice() in repr(result.why())
    assert reads(machine, 256, shape=1).latency_ns < result.latency_ns - 0.5 * first.ns


def test_the_class_of_a_user_defined_component_is_named():
    impl = "tests.components.slow_parts:CountingRouter"
    machine = MACHINE.with_({"cube.noc.router.impl": impl})
    for why, advice in (
        (product(MACHINE, "ref_ref").why(), "lower cube.noc.router.overhead_ns"),
        (product(machine, "ref_ref").why(), f"lower cube.noc.router.overhead_ns, or change {impl}"),
    ):
        assert [reason.advice() for reason in why if reason.what == "routers" and not reason.host] == [advice]


def test_every_field_that_is_blamed_is_one_of_the_machine_file():
    graph = resolve_topology("preset:small", {"system.sips.count": 2}).graph
    parts = [("nodes", node.id) for node in graph.nodes() if node.kind != "host"]
    parts += [(kind, f"{e.src}->{e.dst}") for e in graph.edges() for kind in ("wire", "serialization")]
    parts += [("x", f"sip0.cube0.pe0.{x}") for x in ("pe_gemm", "pe_math", "pe_fetch_store.fetch", "pe_mmu")]
    for kind, resource in parts:
        found = attribution(kind, resource)
        assert found.fields or kind == "wire" or resource.endswith("pe_dma"), resource
        for field in found.fields:
            at = MACHINE.spec
            for name in field.split("."):
                at = at[name]
            assert isinstance(at, int | float), field


@pytest.mark.parametrize("variant", slow_after(1, ["load_ref", "ref_ref", "load_load"]))
@pytest.mark.parametrize("changes", [{}, {"cube.pe.pe_tcm.read_bw_gbs": 128}, {"cube.pe.pe_gemm.clock_ghz": 0.25}])
def test_products_are_split_into_stages_at_every_level_of_the_log(variant, changes):
    machine = MACHINE.with_(changes)
    tiles, whole = (gemm.run(machine, SHAPE, variant, log=log).why() for log in ("tile", "operation"))
    assert tiles.device_ns == whole.device_ns
    assert {x.what for x in whole[:4]} <= {x.what for x in tiles}
    if changes or variant != "load_load":  # fetch and matrix are balanced there
        assert (tiles[0].what, tiles[0].fields) == (whole[0].what, whole[0].fields)
        assert whole[0].ns == pytest.approx(tiles[0].ns, rel=0.1)


def test_what_the_host_does_is_separate_even_where_it_takes_most_of_the_time():
    why = all_reduce(MACHINE, RING, 8).why()
    host = [x for x in why if x.host]
    assert why.device_ns < 0.5 * why.path.makespan_ps / 1000
    assert {"wire of the PCIe link", "IO_CPU", "M_CPU"} <= {x.what for x in host}
    assert not [x for x in why if "PCIe" in x.what and not x.host]
    assert f"on the device: {why.device_ns:,.2f} ns" in repr(why)
    assert f"host copies and launches: {sum(x.ns for x in host):,.2f} ns" in repr(why)


def test_credits_that_a_run_waits_for_are_named_and_more_slots_shorten_it():
    few = all_reduce(MACHINE, RING, 1 << 18)
    (limit,) = few.why().limits()
    assert limit.endswith("a credit: cube.pe.pe_ipcq.n_slots, cube.pe.pe_ipcq.slot_bytes")
    assert limit in str(few.why())
    assert limit in few.why()._repr_html_()
    many = all_reduce(MACHINE.with_({"cube.pe.pe_ipcq.n_slots": 32}), RING, 1 << 18)
    assert many.latency_ns < 0.9 * few.latency_ns
    assert many.why().path.because()["a credit"] < few.why().path.because()["a credit"]


def test_stages_that_take_as_long_are_named_together_without_their_tiles():
    for shape, staging, fields in (
        ((128, 256, 128), "load_load", ("cube.pe.pe_tcm.read_bw_gbs",)),
        ((128, 256, 128), "ref_ref", ()),
    ):
        for log in ("tile", "operation"):
            first = gemm.run(MACHINE, shape, staging, log=log).why()[0]
            assert [x for x in first.together if x.startswith("cube.pe.pe_tcm")] == [*fields], (staging, log)
