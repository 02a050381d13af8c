from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._domains import REPORT, validity
from kernbench.analysis._records import Launch, LinkTable
from kernbench.analysis.result import Result
from kernbench.errors import ConfigError, StateError
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology
from tests.analysis.synthetic import records_of
from tests.repo import ROOT


@pytest.fixture
def result():
    links = LinkTable(
        ("a->b", "b->c", "idle->x"), np.array([4096, 64, 0]), np.array([16_000, 500, 0]), np.array([256.0, 128.0, 64.0])
    )
    rows = [("dma_in", 20, 36, 0, {}), ("fetch", 36, 52, 0, {}), ("gemm", 52, 68, 0, {}), ("h2d", 0, 10, None, {})]
    return Result(
        records_of(rows, links=links, launches=(Launch("matmul", 10_000, 80_000, 1),), makespan_ps=80_000), "tiny"
    )


def test_a_stage_has_its_busy_time_whatever_else_is_busy(result):
    assert result.latency_ns == 80.0
    found = {row["stage"]: (row["busy_ns"], row["share"]) for row in result.summary()}
    assert found == {"matrix": (16, 0.2), "fetch": (16, 0.2), "dma in": (16, 0.2), "host": (10, 0.125)}


def test_the_table_blames_what_the_critical_path_blames():
    # Half of its time, the matrix engine is busy while HBM limits.
    run = gemm.run(resolve_topology("preset:default"), (128, 1024, 128), "ref_ref")
    why, found = run.why(), run.to_dict()
    matrix = next(row for row in found["stages"] if row["stage"] == "matrix")
    assert matrix["busy_ns"] > 0.4 * why.device_ns
    assert why[0].what == "HBM slice"
    assert found["critical_path"][0] == {"resource": "HBM slice", "host": False, "ns": why[0].ns, "share": why[0].share}
    assert sum(row["ns"] for row in found["critical_path"]) == pytest.approx(run.latency_ns)
    first, host = f"{why[0].ns:,.2f}", next(x for x in why if x.host)
    for text in (repr(run), run._repr_html_()):
        for part in ("critical path", "on the device", "busy stages", first, f"{why[0].share:.1%}", f"{host.ns:,.2f}"):
            assert part in text
        path = text[text.index("on the device") :]
        assert path.index("HBM slice") < path.index("matrix engine")
        assert "exclusive" not in text
    lines = [line.split("  ->")[0] for line in repr(why).splitlines() if line.startswith("  1. ")]
    assert [line.split() for line in lines] == [
        line.split() for line in repr(run).splitlines() if line.startswith("  1. ")
    ]


def test_without_dependencies_the_table_says_that_there_is_no_path(result):
    assert "critical path" in repr(result)
    assert result.explained in repr(result)
    assert result.to_dict()["critical_path"] == []


def test_the_busiest_come_first_and_the_idle_are_left_out(result):
    assert [x.name for x in result.busiest_links()] == ["a->b", "b->c"]
    assert result.busiest_links(1)[0].share == 0.2
    assert result.busiest_components(1)[0].busy_ns == 16.0


def test_a_component_that_only_waits_for_others_is_not_busy(result):
    assert "host" not in [x.name for x in result.busiest_components()]


def test_a_run_that_stopped_early_says_so(result):
    line = "INCOMPLETE: the run stopped before its end"
    assert line in repr(Result(replace(result.records, complete=False)))
    assert line not in repr(result)


def test_results_name_a_page_of_the_documentation(result):
    assert f"{REPORT}\n" in repr(result)
    title = REPORT.removesuffix(", in the documentation")
    assert f" {title}: docs/" in (ROOT / "mkdocs.yml").read_text()


def test_a_result_says_which_of_its_parts_are_validated_and_which_field_validates_the_others(result):
    def on(timing, component):
        records = replace(result.records, spec={"cube": {"hbm": {"timing": timing}}})
        return validity(replace(records, components=(component, *records.components[1:])))

    assert "sip0.cube0.pe0.pe_gemm" in result.records.components
    first = result.records.components[0]
    assert "HBM" not in on("hbm3", first)
    slice_ = "sip0.cube0.hbm_ctrl.pe0"
    assert "validated: HBM 1.00x of Ramulator 2.1.0 (nine of ten within 1.02x); " in on("hbm3", slice_)
    assert "not validated: HBM (cube.hbm.timing = simple; validated: hbm2e or hbm3), " in on("simple", slice_)


def test_the_text_names_what_it_shows(result):
    text = repr(result)
    for part in (
        "tiny: 80.00 ns",
        "machine 0123456789ab",
        "launch matmul on sip1: 70.00 ns",
        "matrix",
        "a->b",
        "4,096 B at 256 GB/s",
    ):
        assert part in text
    assert "of 1 PEs" not in text


def test_json_is_plain(result):
    got = json.loads(result.to_json())
    assert got["launches"] == [{"name": "matmul", "sip": 1, "start_ns": 10.0, "latency_ns": 70.0}]
    assert got["digest"] == result.records.digest()


def test_the_engine_is_told_but_is_no_difference(result, tmp_path):
    other = Result(replace(result.records, engine="core"), "tiny")
    assert Result.load(other.save(tmp_path / "tiny.npz")).to_dict()["engine"] == "core"
    assert other.to_dict() == result.to_dict() | {"engine": "core"}
    assert repr(other) == repr(result)
    assert other._repr_html_() == result._repr_html_()


def test_a_saved_result_is_the_same(result, tmp_path):
    again = Result.load(result.save(tmp_path / "tiny.npz"))
    assert repr(again) == repr(result)


def saved_by_version_9(result, path):
    """Return the arrays of a result as version 9 saved them, without causes."""
    with np.load(result.save(path)) as file:
        arrays = {
            name: file[name]
            for name in file.files
            if not name.startswith(("step_", "path_", "wait_", "allocation_")) and name not in CAUSES
        }
    return arrays | {"command_issued": result.records.dependencies.issued}


WAITS = ("move_wait", "hop_cycle_ps")
CAUSES = ("causes", "sent", *WAITS)


def saved_by_version_3(result, path, mode, certified):
    """Save a result as version 3 did, whose engine had modes."""
    arrays = saved_by_version_9(result, path)
    del arrays["stages"]
    meta = json.loads(arrays["meta"].tobytes()) | {"schema_version": 3, "mode": mode, "certified": certified}
    np.savez_compressed(path, **arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    return path


@pytest.mark.parametrize(("mode", "certified"), [("exact", None), ("fast", True)])
def test_a_result_of_version_3_is_read(result, tmp_path, mode, certified):
    old = Result.load(saved_by_version_3(result, tmp_path / "tiny.npz", mode, certified)).to_dict()
    assert old.pop("critical_path") == []
    assert old == {name: value for name, value in result.to_dict().items() if name != "critical_path"}


def test_a_log_without_causes_is_read_and_predicts_nothing(tmp_path):
    run = kb.run("matmul", "preset:small").result
    path = run.save(tmp_path / "old.npz")
    arrays = saved_by_version_9(run, path)
    meta = json.loads(arrays["meta"].tobytes()) | {"schema_version": 5}
    meta["commands"] = [fields[:6] for fields in meta["commands"]]
    np.savez_compressed(path, **arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    old = Result.load(path)
    assert old.records.digest() == run.records.digest()
    with pytest.raises(StateError, match="these records are of a version without causes; run the bench again"):
        old.what_if("system.pcie.latency_ns=50")


def test_a_log_without_waits_is_read_explained_and_predicted(tmp_path):
    run = kb.run("matmul", "preset:small").result
    with np.load(run.save(path := tmp_path / "old.npz")) as file:
        arrays = {
            name: file[name]
            for name in file.files
            if not name.startswith(("wait_", "allocation_")) and name not in WAITS
        }
    meta = json.loads(arrays["meta"].tobytes()) | {"schema_version": 10}
    np.savez_compressed(path, **arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    old = Result.load(path)
    assert old.records.digest() == run.records.digest()
    assert sum(x.ns for x in old.why()) == pytest.approx(run.latency_ns)
    assert [x.what for x in old.why()][:3] == [x.what for x in run.why()][:3]
    found, expected = (x.what_if("system.pcie.latency_ns=50").predicted_ns for x in (old, run))
    assert found == pytest.approx(expected, rel=0.001)
    assert {x.quantity for x in run.occupancy} - {x.quantity for x in old.occupancy} == {"allocated"}


def test_an_estimate_of_version_3_is_refused(result, tmp_path):
    with pytest.raises(ConfigError, match=r'tiny.npz: mode = "fast": an estimate, not a simulation; run the bench'):
        Result.load(saved_by_version_3(result, tmp_path / "tiny.npz", "fast", False))


def test_many_launches_are_counted_not_listed(result):
    many = Result(replace(result.records, launches=tuple(Launch(f"k{i}", 0, 1000) for i in range(13))))
    assert "and 3 more launches" in repr(many)


def test_launches_are_listed_by_what_why_takes_and_by_sip(result):
    pair = Launch("sum", 0, 40_000, 0), Launch("sum", 0, 50_000, 1)
    two = Result(replace(result.records, launches=(*pair, *pair)))
    for line in ("sum on sip0", "sum on sip1", "sum #2 on sip0", "sum #2 on sip1"):
        assert f"launch {line}: " in repr(two)
        assert f"{line}</td>" in two._repr_html_()


def test_the_log_is_a_table(result):
    log = result.to_pandas()
    assert list(log["kind"]) == ["dma_in", "fetch", "gemm", "h2d"]
    assert list(log["end_ns"] - log["start_ns"]) == [16, 16, 16, 10]
    assert list(log["tile"]) == [-1] * 4
    matrix = log[log["kind"] == "gemm"].iloc[0]
    assert matrix["component"] == "sip0.cube0.pe0.pe_gemm"
    assert (matrix["sip"], matrix["cube"], matrix["pe"]) == (0, 0, 0)
