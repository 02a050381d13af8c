"""Predictions: what they refuse, what they say, and how near they come."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._transfer import TransferLeg, message_parts
from kernbench.analysis._what_if._predictions import COVERED
from kernbench.analysis._what_if._quantities import Quantities
from kernbench.benches.registry import run as run_bench
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.config._kinds import DURATION
from kernbench.config._overrides import leaves
from kernbench.config._schema import speeds
from kernbench.errors import KernbenchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import attention, gemm, gqa
from kernbench.studies.ccl import PlannedCollective
from kernbench.topology.builder import resolve_topology
from tests.analysis.test_critical_path import FOUR

MACHINE = resolve_topology("preset:default")


@pytest.fixture(scope="module")
def result():
    return gemm.run(MACHINE, (128, 512, 128), "ref_ref")


def test_a_prediction_names_the_fields_the_times_and_itself(result):
    found = result.what_if("cube.hbm.channel_bw_gbs=16")
    assert found.simulated_ns == result.latency_ns
    for text in (repr(found), found._repr_html_()):
        for part in ("prediction", "cube.hbm.channel_bw_gbs 32 ", " 16", f"{found.predicted_ns:,.2f} ns"):
            assert part in text


def test_overrides_are_those_of_load(result):
    both = result.what_if(["cube.pe.pe_gemm.clock_ghz=0.5", "system.pcie.latency_ns=50"])
    assert both == result.what_if({"system.pcie.latency_ns": 50, "cube.pe.pe_gemm.clock_ghz": 0.5})
    assert [(x.field, x.old, x.new) for x in both.changes] == [
        ("system.pcie.latency_ns", 100, 50), ("cube.pe.pe_gemm.clock_ghz", 1.0, 0.5),
    ]  # fmt: skip


def test_links_that_a_faster_slice_needs_come_with_it(result):
    implied = {x.field: x.new for x in result.what_if("cube.hbm.channel_bw_gbs=40").changes if x.implied}
    assert implied == {"cube.hbm.bw_gbs": 320, "cube.pe.pe_dma.bw_gbs": 320}
    overrides = result.what_if("cube.hbm.channel_bw_gbs=40").overrides
    assert len(overrides) == 3
    assert {x.field: x.new for x in result.what_if(overrides).changes} == {"cube.hbm.channel_bw_gbs": 40, **implied}
    faster = resolve_topology("preset:default", overrides)
    assert [faster.spec["cube"]["hbm"]["bw_gbs"], faster.spec["cube"]["pe"]["pe_dma"]["bw_gbs"]] == [320, 320]
    with pytest.raises(KernbenchError, match=r"cube.hbm.bw_gbs = 256 must be >= 320"):
        result.what_if(["cube.hbm.channel_bw_gbs=40", "cube.hbm.bw_gbs=256"])


def test_more_of_a_rate_is_no_slower_and_of_a_duration_no_faster(result):
    values = leaves(result.records.spec)
    assert speeds()["cube.noc.router.overhead_ns"] == DURATION
    for field in COVERED:
        if values.get(field):
            more, less = (
                (values[field], values[field] / 2)
                if field.endswith("efficiency")
                else (2 * values[field], values[field])
            )
            change = result.what_if({field: more}).predicted_ns - result.what_if({field: less}).predicted_ns
            assert change >= 0 if speeds()[field] == DURATION else change <= 0, field


def test_the_same_machine_takes_the_same_time(result):
    same = result.what_if([])
    assert (same.predicted_ns, same.ratio, same.changes) == (result.latency_ns, 1, ())


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("sip.cube_mesh.w=2", "sip.cube_mesh.w = 2: a prediction re-times.*run the program on the changed machine"),
        ("cube.pe.pe_gemm.tile.m=64", "cube.pe.pe_gemm.tile.m = 64: .*run the program on the changed machine"),
        ("cube.hbm.channel_bw=2", "cube.hbm.channel_bw is unknown; did you mean channel_bw_gbs"),
        ("cube.hbm.channel_bw_gbs=0", "cube.hbm.channel_bw_gbs = 0"),
    ],
)
def test_what_is_no_rate_is_refused(result, override, text):
    with pytest.raises(KernbenchError, match=text):
        result.what_if(override)


def test_reads_that_follow_a_latency_are_not_predicted():
    result = run_program(SMALL.with_({"cube.pe.pe_dma.outstanding_reads": "auto"}), lambda torch: None, log="tile")
    with pytest.raises(KernbenchError, match=r"access_ns = 9.0: .* how many reads cube\.pe.* = auto gives then; run"):
        result.what_if({"cube.hbm.access_ns": 9.0})
    assert result.what_if({"cube.pe.pe_gemm.clock_ghz": 2.0}).ratio == 1


def ring(machine):
    def program(torch):
        one = DPPolicy(num_cubes=1, num_pes=1)
        vectors = [torch.empty(1 << 13, dtype="f16", device=f"ahbm:{i}", dp=one) for i in range(machine.config.n_sips)]
        torch.collective(vectors, algorithm="ring_allreduce_tcm")

    return run_program(machine, program, log="tile")


SMALL = MACHINE.with_(["sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
# Each changes the time of its workload by more than 2 %.
CHANGES = {
    "streamed": ["cube.hbm.channel_bw_gbs=16", "cube.hbm.channel_bw_gbs=25.6", "system.pcie.latency_ns=200"],
    "in TCM": [
        "cube.pe.pe_gemm.clock_ghz=0.5",
        "cube.pe.pe_gemm.macs_per_cycle.f16=2048",
        "cube.pe.pe_tcm.read_bw_gbs=256",
        "cube.hbm.channel_bw_gbs=16",
    ],
    "attention": [
        "cube.pe.pe_math.lanes_16bit=64",
        "cube.pe.pe_math.lanes_32bit=64",
        "cube.pe.pe_math.slow_op_cycles=8",
        "cube.pe.pe_gemm.macs_per_cycle.f16=2048",
    ],
    "several PEs": ["cube.hbm.channel_bw_gbs=16", "system.pcie.latency_ns=50", "cube.ucie.port_ns=16"],
    "ring": ["system.sip_link.latency_ns=100", "system.sip_link.bw_gbs=64", "cube.pe.pe_tcm.write_bw_gbs=128"],
}
RUNS = {
    "streamed": lambda machine: gemm.run(machine, (64, 256, 64), "ref_ref"),
    "in TCM": lambda machine: gemm.run(machine, (64, 512, 64), "load_load"),
    "several PEs": lambda machine: run_bench("qkv-gemm-multi-pe", machine, log="tile").result,
    "attention": lambda machine: attention.run(machine, gqa.Case("prefill", 256).setting(machine.config), log="tile"),
    "ring": ring,
}


def parts_of_bursts(machine):
    """Every PE of a cube reads 16 B of each of 64 rows, which are in one slice."""

    def kernel(x, everywhere, *, tl):
        rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, 8)[None, :]
        tl.load(x + 8 * tl.program_id(0) + rows * 64 + columns)

    def program(torch):
        x = torch.empty(64, 64, dtype="f16", device="ahbm", dp=DPPolicy(num_pes=1))
        torch.launch("parts", kernel, x, torch.empty(8, dtype="f16", device="ahbm", dp=DPPolicy(pe="row_wise")))

    return run_program(machine, program, log="tile")


@pytest.mark.parametrize("gbs", [24, 16, 8])
def test_a_memory_is_at_work_for_longer_than_its_bytes_where_bursts_are_read_in_part(gbs):
    result, override = parts_of_bursts(SMALL), f"cube.hbm.channel_bw_gbs={gbs}"
    exact = parts_of_bursts(SMALL.with_([override]))
    assert exact.latency_ns > 1.02 * result.latency_ns
    assert result.what_if(override).predicted_ns == pytest.approx(exact.latency_ns, rel=0.02)
    assert exact.what_if("cube.hbm.channel_bw_gbs=32").predicted_ns == pytest.approx(result.latency_ns, rel=0.03)


LATE = SMALL.with_(["cube.hbm.access_ns=40", "cube.hbm.efficiency=0.8"])
TWICE = ["cube.hbm.channel_bw_gbs=64", "cube.hbm.bw_gbs=512", "cube.pe.pe_dma.bw_gbs=512"]


@pytest.mark.parametrize(
    ("machine", "run", "override"),
    [
        # What a host copy waits for is its slowest link, not the first one of its way.
        (SMALL, RUNS["several PEs"], ["cube.hbm.bw_gbs=512"]),
        # A read waits for the buffer of the tile that left it last.
        (
            SMALL,
            lambda machine: run_bench("qkv-gemm", machine, log="tile").result,
            [*TWICE, "cube.pe.pe_gemm.clock_ghz=2", "cube.pe.pe_tcm.read_bw_gbs=1024"],
        ),
        # Channels serve writes and other reads during the access latency of a read.
        (
            LATE,
            lambda machine: run_bench("qkv-gemm", machine, log="tile").result,
            ["cube.hbm.channel_bw_gbs=8"],
        ),
        # The last bursts of all channels are on the link after the memory has served them.
        (
            SMALL.with_(["cube.hbm.channel_bw_gbs=24"]),
            lambda machine: gemm.run(machine, (96, 128, 128), "ref_ref"),
            ["cube.hbm.channel_bw_gbs=48", "cube.hbm.bw_gbs=384", "cube.pe.pe_dma.bw_gbs=384"],
        ),
    ],
)
def test_what_a_transfer_waits_for_is_known(machine, run, override):
    result, exact = run(machine), run(machine.with_(override))
    assert result.what_if(override).predicted_ns == pytest.approx(exact.latency_ns, rel=0.005)


@pytest.mark.parametrize("gbs", [16, 32, 128])
def test_copies_that_share_a_link_flit_by_flit(gbs):
    """Each of them ends near the end of all: which one is last may change."""
    override = f"system.pcie.bw_gbs={gbs}"
    result, exact = (RUNS["several PEs"](machine) for machine in (SMALL, SMALL.with_([override])))
    assert result.what_if(override).predicted_ns == pytest.approx(exact.latency_ns, rel=0.02)


@pytest.mark.parametrize(
    ("size", "base", "field", "value"),
    [
        ((32, 256, 32), "cube.hbm.channel_bw_gbs=8", "cube.hbm.channel_bw_gbs", 32),  # the output waits for reads
        ((128, 512, 32), "cube.pe.pe_gemm.clock_ghz=0.25", "cube.hbm.channel_bw_gbs", 8),  # reads wait for room
        ((200, 130, 64), "cube.hbm.channel_bw_gbs=32", "cube.pe.pe_gemm.clock_ghz", 2),
    ],
)
def test_the_stage_that_limits_a_product_may_change_without_tiles(size, base, field, value):
    def product(a, b, out, m, k, n, *, tl):
        x, y = tl.ref(a, shape=(m, k), dtype="f16"), tl.load(b, shape=(k, n), dtype="f16")
        tl.composite("gemm", x, y, out)

    def run(overrides):
        (m, k, n), machine = size, SMALL.with_([base]).with_(overrides)
        with kb.session(machine, log="operation") as torch:
            shapes = (m, k), (k, n), (m, n)
            tensors = [torch.empty(*shape, dtype=torch.float16, device="ahbm") for shape in shapes]
            torch.launch("product", product, *tensors, m, k, n)
        return torch.result

    found = run({}).what_if({field: value})
    exact = run({change.field: change.new for change in found.changes})
    assert found.predicted_ns == pytest.approx(exact.latency_ns, rel=0.03)


def test_messages_may_overtake():
    """Where a memory is slower, what does not need it is no longer behind what does."""
    algorithm = replace(resolve_algorithm_config("ring_allreduce_hbm", default_ccl_path()), world_size=None)
    result, exact = (
        run_collective(machine, PlannedCollective(machine, algorithm).plan, 65536).result
        for machine in (FOUR, FOUR.with_(["cube.hbm.channel_bw_gbs=8"]))
    )
    assert result.what_if("cube.hbm.channel_bw_gbs=8").predicted_ns == pytest.approx(exact.latency_ns, rel=0.05)


@pytest.mark.parametrize(
    ("workload", "override", "reason"),
    [
        ("ring", "system.sip_link.bw_gbs=32", "serve a transfer as a whole, not flit by flit"),
        ("ring", "system.sip_link.latency_ns=200", "serve a transfer as a whole, not flit by flit"),
        ("streamed", "cube.hbm.channel_bw_gbs=8", "serve a transfer as a whole, not flit by flit"),
    ],
)
def test_a_prediction_says_its_range_and_why_there_is_one(workload, override, reason):
    result, exact = (RUNS[workload](machine).latency_ns for machine in (SMALL, SMALL.with_([override])))
    found = RUNS[workload](SMALL).what_if(override)
    assert found.low_ns <= exact <= found.high_ns
    assert result <= found.low_ns < found.predicted_ns < found.high_ns
    assert reason in found.doubt
    line = f"between {found.low_ns:,.2f} and {found.high_ns:,.2f} ns: {found.doubt}"
    for text in (repr(found), found._repr_html_()):
        assert line in text
    field = override.split("=")[0]
    assert " to +" in next(line for line in repr(RUNS[workload](SMALL).tornado()).splitlines() if field in line)


def test_what_changes_nothing_has_no_range(result):
    found = result.what_if("system.sip_link.bw_gbs=32")
    assert (found.predicted_ns, found.low_ns, found.high_ns, found.doubt) == (*[result.latency_ns] * 3, "")
    assert "between" not in repr(found)


def test_the_refreshes_of_a_dram_are_a_reason_for_a_range():
    machine = SMALL.with_({"cube.hbm.timing": "hbm3"})
    run, override = (lambda x: gemm.run(x, (96, 64, 32), "load_ref")), "system.switch.overhead_ns=20"
    found, exact = run(machine).what_if(override), run(machine.with_([override])).latency_ns
    assert "refreshes" in found.doubt
    assert abs(found.predicted_ns / exact - 1) > 0.05
    assert found.low_ns <= exact <= found.high_ns


def errors(workload):
    run = RUNS[workload]
    result = run(SMALL)
    found = []
    for override in CHANGES[workload]:
        exact = run(SMALL.with_([override])).latency_ns
        assert abs(exact / result.latency_ns - 1) > 0.02, override
        found.append(abs(result.what_if(override).predicted_ns / exact - 1))
    return found


@pytest.mark.slow
def test_predictions_are_near_exact_runs():
    found = np.array([error for workload in RUNS for error in errors(workload)])
    assert np.median(found) < 0.01
    assert np.quantile(found, 0.9) < 0.05
    assert found.max() < 0.1


@pytest.mark.parametrize("workload", RUNS)
def test_the_graph_gives_the_recorded_time_and_answers_again(workload):
    result = RUNS[workload](SMALL)
    assert result.what_if([]).predicted_ns == pytest.approx(result.latency_ns, abs=0.001)
    slower = result.what_if("system.pcie.latency_ns=200")
    assert slower.predicted_ns > result.latency_ns
    assert result.what_if("system.pcie.latency_ns=200") == slower


def test_the_path_moves_to_another_resource():
    # With four times the matrix rate, fetch limits: the share of the path would promise far more.
    result = gemm.run(SMALL, (64, 1024, 64), "load_load")
    exact = gemm.run(SMALL.with_(["cube.pe.pe_gemm.clock_ghz=4"]), (64, 1024, 64), "load_load").latency_ns
    assert result.what_if("cube.pe.pe_gemm.clock_ghz=4").predicted_ns == pytest.approx(exact, rel=0.01)
    assert exact > 0.95 * result.latency_ns


@pytest.mark.parametrize("field", ["cube.pe.pe_gemm.macs_per_cycle.f32", "cube.pe.pe_gemm.macs_per_cycle.bf16"])
def test_the_rate_for_another_data_type_changes_nothing(result, field):
    # bf16 has the same rate as f16, so that no duration tells them apart.
    assert result.what_if({field: 1}).predicted_ns == result.latency_ns


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("changed", ["f16", "f32"])
def test_a_systolic_array_has_as_many_macs_as_positions(dtype, changed):
    array = SMALL.with_(["cube.pe.pe_gemm.model=systolic", "cube.pe.pe_gemm.clock_ghz=0.1"])
    change = {f"cube.pe.pe_gemm.macs_per_cycle.{changed}": 512}
    result, exact = (gemm.run(x, (64, 256, 64), "load_load", dtype=dtype) for x in (array, array.with_(change)))
    assert result.what_if(change).predicted_ns == pytest.approx(exact.latency_ns, rel=0.001)
    assert (exact.latency_ns == result.latency_ns) is (dtype == "f16")


def test_tiles_that_are_not_logged_are_predicted_too():
    result, exact = (
        gemm.run(machine, (64, 256, 64), "ref_ref", log="operation")
        for machine in (SMALL, SMALL.with_(["cube.hbm.channel_bw_gbs=16"]))
    )
    assert result.what_if("cube.hbm.channel_bw_gbs=16").predicted_ns == pytest.approx(exact.latency_ns, rel=0.03)
    assert exact.latency_ns > 1.1 * result.latency_ns


def test_a_run_without_a_log_is_refused():
    result = gemm.run(MACHINE, (16, 16, 16), "ref_ref", log="off")
    with pytest.raises(KernbenchError, match=r'run it with log="operation"'):
        result.what_if("cube.hbm.channel_bw_gbs=16")


def test_the_first_row_of_a_tornado_is_the_field_that_changes_most(result):
    found = result.tornado()
    swings = [max((abs(x.ratio - 1) for x in predictions if x), default=0) for _, predictions in found.rows]
    assert swings == sorted(swings, reverse=True)
    field, (half, twice) = found.rows[0]
    assert field in ("cube.hbm.channel_bw_gbs", "cube.hbm.efficiency", "system.pcie.latency_ns")
    exact = gemm.run(MACHINE.with_({field: half.changes[0].new}), (128, 512, 128), "ref_ref")
    assert half.predicted_ns == pytest.approx(exact.latency_ns, rel=0.05)
    assert (half.ratio < 1) != (twice.ratio < 1)
    assert dict(found.rows)["cube.hbm.bw_gbs"][0] is None  # slower than the slice


@pytest.mark.parametrize("nbytes", [100, 256, 257, 8500])
def test_a_message_takes_its_time_alone_down_to_the_last_flit(nbytes):
    machine = SMALL.with_({"cube.noc.header_bytes": 16})

    def program(torch):
        def load(x, *, tl):
            tl.load(x, shape=(nbytes,))

        torch.launch("load", load, torch.empty(nbytes, dtype=torch.int8, device="ahbm"))

    records = run_program(machine, program).records
    dependencies = records.dependencies
    (row,) = np.flatnonzero(dependencies.transfers["nbytes"] == nbytes)
    route = int(dependencies.transfers["route"][row])
    path = [dependencies.nodes[i] for i in dependencies.routes[route]]
    edges = [machine.graph.edge(*ends) for ends in pairwise(path)]
    alone = message_parts([TransferLeg(e.bw_gbs, e.latency_ps, 0, e.header_bytes) for e in edges], nbytes).total
    quantities = Quantities(records)
    number = quantities.transit(route, nbytes)
    assert quantities.now(number) == alone
    quantities.freeze()
    for ratio in (1.0, 2.0, 5.0):  # of all links of the mesh, which are the slowest of the route
        slower = [
            e.bw_gbs / (ratio if "router" in {machine.graph.node(e.src).kind, machine.graph.node(e.dst).kind} else 1)
            for e in edges
        ]
        alone = message_parts(
            [TransferLeg(bw, e.latency_ps, 0, e.header_bytes) for bw, e in zip(slower, edges, strict=True)], nbytes
        ).total
        fields = ("cube.noc.link_bw_gbs", "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs")
        assert quantities.on(dict.fromkeys(fields, ratio), {})[number] == alone
