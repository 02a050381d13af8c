"""The fidelity study: errors have the right sign, mechanisms their share, and what cannot be compared says why."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import yaml

import kernbench as kb
from kernbench.cli.main import main
from kernbench.errors import ConfigError
from kernbench.studies import _fidelity_collectives, fidelity, fidelity_report
from kernbench.studies._references import read_references
from kernbench.studies.fidelity import _FACTORS, FIGURES, SOURCED, WORKLOADS, ZEROS, FidelityStudy, _detailed
from tests.ops.test_blocks import device
from tests.repo import ROOT
from tests.slow import slow_after

HEADER = "workload,parameters,value,unit,source\n"
GEMM = "m=64; k=64; n=64"
HBM = "timing=hbm3; pattern=random; requests=9; metric=latency"


def csv(tmp_path, *rows, name="mine.csv"):
    path = tmp_path / name
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def our_gemm_ns():
    return WORKLOADS["gemm"].run(kb.load("preset:small"), m=64, k=64, n=64)


def test_the_error_is_ours_compared_with_the_reference(tmp_path):
    ours = our_gemm_ns()
    found = kb.fidelity(csv(tmp_path, f"gemm,{GEMM},{ours / 500},us,a", f"gemm,{GEMM},{ours / 2},ns,b"), "preset:small")
    assert found.table["ours"].tolist() == [ours, ours]
    assert found.table["error_pct"].tolist() == pytest.approx([-50, 100])
    assert found.table["explained_by"].tolist() == ["unexplained", "unexplained"]


def test_equal_values_agree(tmp_path):
    found = kb.fidelity(csv(tmp_path, f"gemm,{GEMM},{our_gemm_ns() * 1.005},ns,a"), "preset:small")
    assert found.table["explained_by"].tolist() == ["agrees within 1 %"]


def test_a_field_in_the_parameters_changes_the_machine(tmp_path):
    slow = f"gemm,{GEMM}; cube.pe.pe_gemm.clock_ghz=0.01,1,us,a"
    found = kb.fidelity(csv(tmp_path, slow), "preset:small")
    assert found.table["ours"][0] > 2 * our_gemm_ns()


@pytest.mark.slow
def test_a_large_collective_is_called_once_and_takes_as_long_as_several_do(monkeypatch):
    machine = kb.load("preset:small", ["system.sips.count=2", "system.host.collective_start_ns=5000"])
    ring = partial(WORKLOADS["all_reduce"].run, machine, bytes=262144, ranks=2, algorithm="ring_allreduce_tcm")
    several = ring()
    monkeypatch.setattr(_fidelity_collectives, "MOST_BYTES", 262143)
    assert ring() == pytest.approx(several, rel=0.002)


@pytest.mark.slow
def test_a_mechanism_explains_the_share_of_the_error_that_it_removes(tmp_path, monkeypatch):
    monkeypatch.setitem(WORKLOADS, "all_reduce", replace(WORKLOADS["all_reduce"], mechanisms=(fidelity._LINKS,)))
    case = "all_reduce,bytes=262144; ranks=2,{},ns,{}"
    machine = kb.load("preset:small", ["system.sips.count=2"])
    ours = WORKLOADS["all_reduce"].run(machine, bytes=262144, ranks=2)
    gbs = machine.config.system.sip_link.bw_gbs * 370 / 450
    slower = WORKLOADS["all_reduce"].run(machine.with_({"system.sip_link.bw_gbs": gbs}), bytes=262144, ranks=2)
    assert slower > ours
    path = csv(
        tmp_path,
        case.format(slower, "all of it"),
        case.format(2 * slower - ours, "half"),
        case.format(ours / 2, "none"),
    )
    every, half, none = kb.fidelity(path, machine).table.to_dict("records")
    assert (every["explained_by"], every["share_pct"]) == ("protocol of the links between SIPs", pytest.approx(100))
    assert every["left_pct"] == pytest.approx(0, abs=1e-9)
    assert half["share_pct"] == pytest.approx(50)
    assert none["explained_by"] == "unexplained"
    assert none["share_pct"] != none["share_pct"]  # no number


@pytest.mark.slow
def test_all_mechanisms_together_leave_what_is_unexplained(tmp_path):
    machine = kb.load("preset:small", ["system.sips.count=2"])
    changes = {}
    for one in WORKLOADS["all_reduce"].mechanisms:
        changes |= one.changes(machine.config, {"ranks": 2})
    assert {
        "system.host.launch_ns",
        "system.sip_link.bw_gbs",
        "cube.hbm.timing",
        "cube.noc.router.flow",
    } <= changes.keys()
    ours = WORKLOADS["all_reduce"].run(machine.with_(changes), bytes=4096, ranks=2)
    found = kb.fidelity(csv(tmp_path, f"all_reduce,bytes=4096; ranks=2,{ours / 2},ns,a"), machine)
    [row] = found.table.to_dict("records")
    assert row["together_pct"] == pytest.approx(100)


@pytest.mark.slow
def test_random_ties_count_only_on_a_torus_and_only_with_credits(tmp_path):
    row = "noc,topology={}; k=4; n=2; traffic=transpose; packet=1; vcs=2; vc_flits=4; load=0.01,{},cycles,a"
    machine = kb.load("preset:default")
    table = kb.fidelity(csv(tmp_path, row.format("mesh", 12), row.format("torus", 12)), machine).table
    limited = {"flow": "credits", "vcs": 2, "vc_flits": 4}
    routers = {"mesh": ("cube.noc.router", limited), "torus": ("system.sip_link.router", {**limited, "ties": "random"})}
    for (topology, (where, router)), found in zip(routers.items(), table["together_pct"], strict=True):
        given = {"topology": topology, "k": 4, "traffic": "transpose", "load": 0.01}
        changes = {**fidelity._network(given), **{f"{where}.{name}": value for name, value in router.items()}}
        ours = WORKLOADS["noc"].run(machine.with_(changes), **given)
        assert found == pytest.approx(100 * (ours / 12 - 1))


def test_work_of_a_device_runs_on_all_of_its_pes_the_launch_included():
    machine = device()
    pe, given = machine.config.cube.pe.pe_gemm, {"m": 384, "k": 512, "n": 256}
    engines_ns = 384 * 512 * 256 / (12 * pe.macs_per_cycle.f16 * pe.clock_ghz)
    one, late = (WORKLOADS["gemm"].run(x, **given) for x in (machine, device(**{"system.host.descriptor_ns": 5000})))
    assert engines_ns + 2000 < one < 12 * engines_ns  # that of a single engine
    assert late == pytest.approx(one + 3000)
    assert WORKLOADS["gemm"].refuse(machine.config, **given, staging="ref_ref").startswith("staging = ref_ref: with ")
    assert not WORKLOADS["gemm"].refuse(machine.config, **given)


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("gemm", {"m": 16, "k": 1024, "n": 512}),
        ("attention", {"q_len": 1, "kv_len": 2048, "heads": 8, "kv_heads": 2, "head_dim": 64}),
    ],
)
def test_with_a_cold_cache_the_operands_are_read_from_memory(workload, given):
    machine, nbytes = device(), 2**20
    slow = device(**{"cube.hbm.efficiency": 0.25})
    (cold, warm), (slower, same) = (
        [WORKLOADS[workload].run(x, **given, l2=l2) for l2 in ("cold", "warm")] for x in (machine, slow)
    )
    assert abs(same - warm) < (slower - cold) / 4
    assert slower - cold > 0.5 * nbytes * (1 / 0.25 - 1) / (machine.config.hbm_gbs_per_pe * 12)


def test_attention_of_a_device_takes_the_start_of_attention_more():
    given = {"q_len": 64, "kv_len": 64, "heads": 4, "kv_heads": 2, "head_dim": 64}
    late, plain = (
        WORKLOADS["attention"].run(x, **given) for x in (device(**{"system.host.attention_start_ns": 700}), device())
    )
    assert late == pytest.approx(plain + 700)
    refuse = WORKLOADS["attention"].refuse
    assert refuse(None, **{**given, "kv_heads": 3}) == "heads = 4 is no multiple of kv_heads = 3"
    assert refuse(None, **{**given, "q_len": 2}).startswith("q_len = 2: prefill (kv_len = 64) and decode (1)")


def test_a_device_is_compared_with_measurements_of_its_own(tmp_path):
    path = tmp_path / "device.yaml"
    path.write_text(yaml.safe_dump(device().config.to_spec()))
    rows = [f"gemm,m={m}; k=64; n=64; l2=cold,{{}},ns,a" for m in (32, 256, 1024)]
    first = kb.fidelity(csv(tmp_path, *(row.format(1) for row in rows)), path).table["ours"]
    measured = csv(
        tmp_path, *(row.format(ours / x) for row, ours, x in zip(rows, first, (1.1, 1.02, 0.8), strict=True))
    )
    given = {"measured": [f"{path}={measured}"]}
    study = FidelityStudy()
    [*found] = study.run("preset:small", **given)
    (row,) = study.tables(found)["Errors"].to_dict("records")
    assert (row["of"], row["work"], row["n"], row["tau"], row["rows"]) == ("device", "mine", 3, 1, "held out")
    assert [row[x] for x in ("median_pct", "p90_pct", "most_pct")] == pytest.approx([10, 20, 20])
    (finding,) = study.findings(found)
    assert finding.values["mean_pct"] == pytest.approx(100 * ((1.1 * 1.25 * 1.02) ** (1 / 3) - 1))
    with pytest.raises(ConfigError, match="names no machine; write MACHINE=FILE, as in preset"):
        study.run("preset:small", measured=[str(measured)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty holds no CSV file; give the folder of the measurements"):
        study.run("preset:small", measured=[f"preset:small={tmp_path / 'empty'}"])


def shares(**ours):
    """Return what explains a reference of 100, for our value by mechanism."""
    rows = [
        {"table": fidelity_report.REFERENCES, "reference": 0, "expected": 100.0, "mechanism": name, "ours": value}
        for name, value in {"": 200.0, **ours}.items()
    ]
    [row] = fidelity_report.compared(rows)
    return row["explained_by"], row["share_pct"]


def test_mechanisms_explain_together_what_none_of_them_explains_alone():
    together = fidelity_report.TOGETHER
    assert shares(a=150.0, b=160.0, **{together: 110.0}) == (together, pytest.approx(90))
    assert shares(a=115.0, b=160.0, **{together: 110.0}) == ("a", pytest.approx(85))
    assert shares(a=195.0, b=196.0, **{together: 191.0}) == ("unexplained", None)


def test_a_finding_counts_only_errors_that_no_mechanism_explains():
    def said(**ours):
        rows = [
            {"table": fidelity_report.REFERENCES, "reference": 0, "kind": "gemm", "what": "gemm a", "expected": 100.0}
            | {"mechanism": name, "ours": value, "source": "a tool 1.0 (with options), more"}
            for name, value in {"": 200.0, **ours}.items()
        ]
        [found] = fidelity_report.findings(rows)
        return str(found)

    assert (
        "the median is 1.50x the reference with all mechanisms. 1 references of a tool 1.0; the largest error is "
        "+50.0 %, which is unexplained; by default the median is 2.00x, the largest error +100.0 %."
    ) in said(a=150.0)
    assert "no mechanism" not in said(a=150.0, **{fidelity_report.TOGETHER: 140.0})
    assert said(a=195.0).endswith(". For 1, no mechanism removes a tenth of the error.")
    assert "A tenth or more of" in said(a=150.0)
    assert "of an error is removed by a" in said(a=150.0)
    assert "the largest error is +0.5 %; by default" in said(a=100.5)
    assert "the largest error is -140.0 %, which" in said(**{"": 99.5}, a=-40.0)  # though it agrees without


def test_domains_say_how_far_nine_of_ten_values_are():
    def reference(number, kind, **ours):
        return [
            {
                "table": fidelity_report.REFERENCES,
                "reference": number,
                "kind": kind,
                "expected": 100.0,
                "source": "tool",
            }
            | {"mechanism": name, "ours": value}
            for name, value in ours.items()
        ]

    rows = [row for i in range(10) for row in reference(i, "hbm", **{"": 50.0, "banks": 110.0 if i else 900.0})]
    device, hbm = fidelity_report.domains([*rows, *reference(10, "all_reduce", **{"": 400.0})])
    assert (device["domain"], device["n"]) == ("all-reduce", 1)  # devices come first
    assert device["median_with"] == 4  # nothing else ran
    assert (hbm["n"], hbm["median"]) == (10, 0.5)
    assert (hbm["median_with"], hbm["p90_with"]) == pytest.approx((1.1, 1.1))  # one of ten is further


def test_what_is_not_modelled_has_the_median_of_the_rows_that_depend_on_it():
    def row(group, what, ours, device="a"):
        given = {"table": fidelity_report.DEVICE, "device": device, "group": group, "what": what}
        return given | {"expected": 100.0, "ours": ours, "source": "a wheel, vLLM 0.24.0, FlashAttention-3"}

    rows = [
        row("decode", "attention batch 64, q_len 1", 500.0), row("decode", "attention batch 128, q_len 1", 60.0),
        row("decode", "attention batch 1024, q_len 1", 70.0), row("decode", "attention batch 256, q_len 1", 90.0, "b"),
        row("collectives", "all_to_all 64 KiB, ranks 2", 50.0), row("collectives", "all_gather 64 KiB, ranks 2", 90.0),
    ]  # fmt: skip
    found = [(x["of"], x["work"], x["n"], x["signed_pct"]) for x in fidelity_report.not_modelled(rows)]
    assert found == [
        ("a", "decode", 2, pytest.approx(-35)),
        ("b", "decode", 1, pytest.approx(-10)),
        ("a", "collectives", 1, -50),
    ]
    errors = fidelity_report.device_errors(rows)
    assert [(x["of"], x["work"], x["n"]) for x in errors] == [
        ("a", "decode", 3),
        ("a", "collectives", 2),
        ("b", "decode", 1),
    ]
    assert {(x["version"], x["date"]) for x in errors} == {("vLLM 0.24.0", "not stated")}


def test_a_reference_states_its_version_and_date(tmp_path):
    given = "m=64; k=64; n=64; rows=32; cols=32; dataflow=output_stationary"
    path = csv(tmp_path, f'tile,"{given}",900,cycles,"SCALE-Sim 2.0.2 (22f88b1, 2025-02-25), a"')
    study = FidelityStudy()
    [row] = study.tables(study.run("preset:small", files=[str(path)]))["Errors"].to_dict("records")
    assert (row["of"], row["version"], row["date"]) == ("SCALE-Sim 2.0.2", "22f88b1", "2025-02-25")


def test_a_product_of_scale_sim_is_that_of_a_systolic_array(tmp_path):
    case = "m=31; k=100; n=17; rows=32; cols=32; dataflow=output_stationary"
    [row] = kb.fidelity(csv(tmp_path, f"layer 1,{case},161,cycles,a"), "preset:small").table.to_dict("records")
    assert row["ours"] == pytest.approx(31 * 100 * 17 / 32**2, rel=1e-3)
    assert (row["explained_by"], row["share_pct"]) == ("fill and drain of a systolic array", 100)


def test_a_stream_on_a_simple_channel_is_that_of_rule_m4_5(tmp_path):
    stream = "timing=hbm3; pattern=sequential; requests=100; channel_bw_gbs=25.6; metric={}"
    path = csv(tmp_path, f"hbm,{stream.format('throughput')},20,GB/s,a", f"hbm,{stream.format('latency')},20,ns,a")
    machine = kb.load("preset:small", ["cube.hbm.efficiency=0.5", "cube.hbm.access_ns=7"])
    rate, latency = kb.fidelity(path, machine).table["ours"]
    each_ns = 32 / (25.6 * 0.5)
    assert rate == pytest.approx(12.8)
    assert latency == pytest.approx(7 + each_ns * (1 + 100) / 2)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_a_collective_of_more_bytes_takes_longer(name):
    machine = kb.load("preset:small", ["system.sips.count=2"])
    assert WORKLOADS[name].run(machine, bytes=65536, ranks=2) > 1.5 * WORKLOADS[name].run(machine, bytes=4096, ranks=2)


@pytest.mark.slow
def test_the_host_prepares_a_collective_while_the_devices_are_busy_with_those_before():
    # As nccl-tests does, 20 calls follow one another: of the device's time, all but a twentieth is behind the host's.
    machine = kb.load("preset:small", ["system.sips.count=2"])
    alone = WORKLOADS["all_reduce"].run(machine, bytes=4096, ranks=2)
    slow_host = machine.with_({"system.host.collective_ns": 1e6})
    behind = WORKLOADS["all_reduce"].run(slow_host, bytes=4096, ranks=2) - 1e6
    assert alone / 30 < behind < alone / 10


@pytest.mark.slow
def test_calls_in_a_graph_do_not_wait_for_the_host(tmp_path):
    at, given = tmp_path / "mine.csv", "bytes=4096; ranks=2; call_us=30; system.sips.count=2"
    rows = [f'all_reduce,"{given}; calls={calls}",1,us,mine' for calls in ("eager", "graph", "difference")]
    at.write_text("\n".join(["workload,parameters,value,unit,source", *rows]))
    eager, graph, difference = kb.fidelity(at, "preset:small").table["ours"]
    alone = WORKLOADS["all_reduce"].run(kb.load("preset:small", ["system.sips.count=2"]), bytes=4096, ranks=2)
    assert 30_000 < eager < 30_000 + alone
    assert 0 < graph < alone
    assert difference == pytest.approx(eager - graph, rel=1e-3)


@pytest.mark.slow
def test_credits_explain_the_latency_of_a_network_of_routers(tmp_path):
    # BookSim2 28f4329, milestones/fidelity/data/booksim2/mesh.cfg injection_rate=0.2 sample_period=3000
    network = "topology=mesh; k=8; n=2; traffic=uniform; packet=1; vcs=4; vc_flits=8; load=0.2"
    [row] = kb.fidelity(csv(tmp_path, f"noc,{network},35.1348,cycles,a")).table.to_dict("records")
    assert row["error_pct"] < -30
    assert "credits" in row["explained_by"]
    assert abs(row["left_pct"]) < 2


def network(flow, traffic):
    """Return a mesh of 4 x 4 routers, and what a reference of it gives."""
    given = {"topology": "mesh", "k": 4, "traffic": traffic, "vcs": 4, "vc_flits": 8}
    machine = kb.load("preset:default", WORKLOADS["saturation"].machine(given))
    return machine.with_({"cube.noc.router.flow": flow}), given


@pytest.mark.parametrize("flow", slow_after(1, ["credits", "unbounded"]))
@pytest.mark.slow
def test_a_network_saturates_where_its_busiest_link_does(flow):
    # Transpose: the busiest link of a row carries the packets of k - 1 = 3 terminals.
    machine, given = network(flow, "transpose")
    assert WORKLOADS["saturation"].run(machine, **given) == pytest.approx(1 / 3, rel=0.04)


@pytest.mark.slow
def test_packets_beside_a_hot_spot_wait_less_than_those_to_it():
    # The hot terminal receives 16 / 8 + 7 / 8 of the load: 0.95 flits per cycle.
    machine, given = network("credits", "hotspot")
    beside, all_packets = (WORKLOADS["noc"].run(machine, **given, load=0.33, packets=x) for x in ("others", "all"))
    assert beside < all_packets
    reason = WORKLOADS["noc"].refuse(machine.config, **{**given, "traffic": "uniform"}, packets="others")
    assert reason.startswith("packets = others: of traffic hotspot, ")


def test_the_work_of_a_case_grows_with_what_it_simulates():
    def work(workload, machine="preset:small", **given):
        return FidelityStudy().work(kb.load(machine), workload=workload, given=given)

    plain, given = network("unbounded", "uniform")
    credits, _ = network("credits", "uniform")
    low, high, saturation, detailed = (
        FidelityStudy().work(machine, workload=workload, given=given | more)
        for machine, workload, more in (
            (plain, "noc", {"load": 0.01, "packet": 8}),
            (credits, "noc", {"load": 0.01, "packet": 8}),
            (plain, "saturation", {}),
            (credits, "saturation", {"packet": 8}),
        )
    )
    assert low < high < saturation < detailed
    assert 0 < work("gemm", m=64, k=64, n=64) < work("gemm", m=512, k=512, n=512)
    assert work("all_reduce", bytes=1024, ranks=6) < work("all_reduce", bytes=2**20, ranks=6)
    assert work("hbm", requests=100) < work("hbm", requests=20_000)
    assert FidelityStudy().work(plain, workload=next(iter(FIGURES))) > 0


def test_what_cannot_be_compared_says_why_and_the_rest_is_compared(tmp_path):
    path = csv(
        tmp_path,
        f"gemm,{GEMM},1,us,a",
        "all_reduce,bytes=1024; ranks=8,1,us,a",
        "all_reduce,bytes=1073741824; ranks=8; system.sips.count=8,1,ms,a",
        f"gemm,{GEMM}; cube.hbm.channels=3,1,us,a",
        "all_reduce,bytes=1024; ranks=2; cubes=99; system.sips.count=2,1,us,a",
    )
    found = kb.fidelity(path, "preset:small")
    assert len(found.table) == 1
    ranks, size, machine, cubes = found.refused.values()
    assert "it runs on 99 cubes" in cubes
    assert "8 ranks, the machine has" in ranks
    assert "1,073,741,824 B are more than most_bytes" in size
    assert "cube.hbm.channels = 3" in machine
    for shown in (repr(found), found._repr_html_()):
        assert "1 reference compared on" in shown
        assert shown.count("not comparable: ") == 4


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            "all_reduc,bytes=1; ranks=2,1,ns,a",
            "mine.csv:2: workload = 'all_reduc' is unknown; did you mean all_reduce? ",
        ),
        ("gemm,m=1; k=1,1,ns,a", "mine.csv:2: parameter n is missing; add n=..."),
        ("gemm,m=1; k=1; n=1; stagin=ref_ref,1,ns,a", "parameter stagin is unknown; did you mean staging? "),
        ("gemm,m=1; k=1; n=0.5,1,ns,a", "n = 0.5 must be a whole number above 0"),
        (
            "hbm,timing=hbm3; pattern=randm; requests=9; metric=latency; channel_bw_gbs=25.6,1,ns,a",
            "pattern = 'randm' is unknown; did you mean random? ",
        ),
        ("gemm,m=1; k=1; n=1,1,GB/s,a", "gemm is compared in ns, not in GB/s; convert value and unit"),
        ("gemm,m=1; k=1; n=1; dtype=f99,1,ns,a", "mine.csv:2: unknown dtype 'f99'; known: "),
        ("gemm,m=1; k=1; n=1; staging=ref,1,ns,a", "staging = 'ref' is unknown; did you mean "),
        ("gemm,m=1; k=1; n=1; l2=hot,1,ns,a", "l2 = 'hot' is unknown; known: warm, cold"),
        ("all_reduce,bytes=1; ranks=2; algorithm=ring,1,ns,a", "algorithm = 'ring' is unknown; "),
        (f"hbm,{HBM}; channel_bw_gbs=fast,1,ns,a", "channel_bw_gbs = 'fast' must be a number from 0.1 to 10,000"),
        (f"hbm,{HBM}; channel_bw_gbs=9; reads=2,1,ns,a", "reads = 2 must be a number from 0 to 1"),
        (f"hbm,{HBM}; channel_bw_gbs=9; load=most,1,ns,a", "load = 'most' must be a number from 0.0001 to 1"),
        (f"hbm,{HBM}; channel_bw_gbs=9; mapping=CoRo,1,ns,a", "mapping = 'CoRo' is unknown; "),
        (f"hbm,{HBM.replace('random', 'strided')}; channel_bw_gbs=9,1,ns,a", "stride is missing; add stride=... [B]"),
    ],
)
def test_a_wrong_case_names_file_line_and_remedy(tmp_path, row, expected):
    with pytest.raises(ConfigError) as error:
        kb.fidelity(csv(tmp_path, row), "preset:small")
    assert expected in error.value.faults[0]


def test_sensitivity_ranks_the_defaults_by_their_largest_effect():
    rows = FidelityStudy().run(
        "preset:small",
        figures=["GEMM 256^3, ref_ref"],
        factors=["cube.ucie.port_ns", "cube.hbm.channel_bw_gbs", "cube.hbm.access_ns"],
    )
    ranked = fidelity_report._sensitivity(rows)
    assert [one["factor"] for one in ranked][-1] == "cube.ucie.port_ns"
    [hbm] = [one for one in ranked if one["factor"] == "cube.hbm.channel_bw_gbs"]
    assert hbm["GEMM 256^3, ref_ref, lower [%]"] > 50 > 0 > hbm["GEMM 256^3, ref_ref, higher [%]"]
    [access] = [one for one in ranked if one["factor"] == "cube.hbm.access_ns"]
    assert access["tried"] == "40"
    assert ranked[-1]["largest_pct"] < 1


def marks():
    """The parameters of docs/model.md, M1.4, that are numbers, with their mark."""
    text = (ROOT / "docs" / "model.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| `([\d.]+)` \|.*?\| (ref|std|chosen)\b", text, re.MULTILINE)
    return {key: mark for key, _, mark in rows}


# Not what a time is made of: numbers of parts, capacities, costs; and options that the default machine leaves off, so
# that no time of the report has them in it.
NOT_A_RATE = (
    "system.sips.", "sip.cube_mesh.", "cube.pe_layout.", "cube.noc.rows", "cube.noc.cols", "cube.ucie.connections",
    "cube.sram.size_mib", "cube.hbm.size_gib", "cube.pe.pe_tcm.size_mb", "cube.pe.pe_tcm.tile_buffer_mb",
    "cube.pe.pe_tcm.kernel_scratch_mb", "cube.pe.pe_tcm.scratch_result_kib", "cube.pe.pe_ipcq.sram_setup_ns",
    "cube.pe.pe_ipcq.hbm_setup_ns", "cube.pe.pe_gemm.macs_per_cycle.", "cost.", "system.host.", "cube.noc.router.",
    "system.sip_link.router.", "system.sip_switch.", "system.fat_tree.", "system.nic.", "cube.llc.",
    "cube.hbm.interleave_bytes", "cube.pe.pe_ipcq.channels", "cube.pe.pe_ipcq.ll.", "cube.pe.pe_ipcq.ll128.",
    "cube.pe.pe_ipcq.simple.",
)  # fmt: skip


def test_every_default_without_a_source_is_a_factor():
    together = {name for names in fidelity._TOGETHER.values() for name in names}
    known = {*_FACTORS, *ZEROS, *together}
    unsourced = {key for key, mark in marks().items() if mark != "std"}
    assert {key for key in unsourced if not key.startswith(NOT_A_RATE)} <= known
    assert known - SOURCED.keys() <= unsourced
    assert {key for key in known if marks()[key] == "std"} == SOURCED.keys()


def test_every_default_without_a_source_is_chosen_with_the_range_tried():
    machine = kb.load("preset:six_sip_torus")
    tried = {}
    for factor, changes in fidelity._changes(machine, {}, (*_FACTORS, *ZEROS)):
        if factor not in SOURCED:
            tried.setdefault(factor, []).append(changes[factor])
    assert tried.keys() == {*_FACTORS, *ZEROS} - SOURCED.keys()
    model, lines = (ROOT / "docs" / "model.md").read_text(), commented(ROOT / "topology.yaml")
    for factor, values in tried.items():
        said = "tried " + " to ".join(f"{value:g}" for value in sorted(values))
        assert re.search(rf"^\| `{factor}` \|.*\| chosen \|.*\b{said} \|$", model, re.MULTILINE), factor
        assert re.search(rf"\(chosen: .*{said}\)$", lines[factor]), factor


def commented(path):
    """The line of each key of a YAML file, by its path."""
    text = path.read_text()
    lines, found = text.splitlines(), {}

    def walk(node, prefix):
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            found[prefix + key.value] = lines[key.start_mark.line]
            walk(value, f"{prefix}{key.value}.")

    walk(yaml.compose(text), "")
    return found


@pytest.mark.slow
def test_every_figure_has_a_time():
    study = FidelityStudy()
    machine = kb.load("preset:default")
    own, _ = FIGURES["decode step"]
    assert study.simulate(machine.with_(own) if own else machine, workload="decode step")["ours"] > 0


def test_the_committed_data_can_be_read():
    paths = sorted((ROOT / "milestones" / "fidelity" / "data").rglob("*.csv"))
    paths = [path for path in paths if path.stem != "streams"]  # inputs of a run
    assert paths
    references = read_references(paths)
    assert not [fault for one in references for fault in fidelity._wrong(one)]


def test_the_command_prints_the_table_and_refuses_a_wrong_file(tmp_path, capsys):
    assert main(["fidelity", str(csv(tmp_path, f"gemm,{GEMM},1,us,a")), "--topology", "preset:small"]) == 0
    assert "gemm m 64, k 64, n 64" in capsys.readouterr().out
    assert main(["fidelity", str(tmp_path / "none.csv"), "--topology", "preset:small"]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err


def test_figures_are_repeated_with_the_validated_models(tmp_path):
    """Pairs: the preset as a whole gives the time of the machine `detailed`, and its parts have all of its changes."""
    figure = "GEMM 256^3, load_ref"
    rows = FidelityStudy().run("preset:default", pairs=[figure])
    ours = {row["models"]: row["ours"] for row in rows}
    assert list(ours) == ["ideal", "detailed", "HBM3", "credits", "systolic array", "headers"]
    for name, preset in (("ideal", "default"), ("detailed", "detailed")):
        assert ours[name] == FIGURES[figure][1](kb.load(f"preset:{preset}"))
    parts = [dict(row) for name, row in _detailed().items() if name not in ("ideal", "detailed")]
    assert {key: value for part in parts for key, value in part.items()} == _detailed()["detailed"]
    assert sum(map(len, parts)) == len(_detailed()["detailed"])
    assert kb.load("preset:default").with_(_detailed()["detailed"]).hash == kb.load("preset:detailed").hash
    (shown,) = FidelityStudy().tables(rows)["Figures with the validated models"].to_dict("records")
    assert shown["detailed_us"] == ours["detailed"] / 1000
    assert shown["HBM3 alone [%]"] == pytest.approx(100 * (ours["HBM3"] / ours["ideal"] - 1))
    (finding,) = FidelityStudy().findings(rows)
    assert finding.values == {"over_ideal": {figure: pytest.approx(ours["detailed"] / ours["ideal"])}}
