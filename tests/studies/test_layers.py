"""Layers over a SIP: the values, the bytes counted and moved, the bound, and what is said of each point."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.analysis._launches import span
from kernbench.errors import KernbenchError
from kernbench.ops.matmul import PLACEMENTS, SPLIT_IN_CUBES, SPLIT_K, SPLITS, tasks
from kernbench.studies import layers as study
from kernbench.studies.layers import _LISTS, StoredProduct, layer_work, layers, select_layers, source
from kernbench.topology.builder import resolve_topology

SIP = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
STUDY = study.LayersStudy()
TRANS = [(True, False), (False, True), (True, True)]
SHAPES = [(70, 90, 130), (3, 5, 64), (129, 257, 64), (1, 200, 64), (200, 1, 64)]


def blocks(product):
    """The sizes of the blocks of C that each PE computes, as rows and columns."""
    found = tasks(SIP.config, product.placed(SIP.config), product.placement)
    return [[(rows[1], columns[1]) for x in own for rows in x.rows for columns in x.columns] for own in found.values()]


every_placement = pytest.mark.parametrize("placement", PLACEMENTS)


@every_placement
@pytest.mark.parametrize(
    ("shape", "trans"), [*((shape, (False, False)) for shape in SHAPES), *product(SHAPES[:2], TRANS)]
)
def test_values_are_those_of_numpy(placement, shape, trans):
    study.run(SIP, StoredProduct(*shape, placement, "f16", *trans), data=True)


@every_placement
@pytest.mark.parametrize(("shape", "trans"), [((70, 90, 7000), False), ((9, 40, 7000), True)])
@pytest.mark.slow
def test_values_are_those_of_numpy_where_operands_do_not_fit_into_tcm(placement, shape, trans):
    small = SIP.with_({"cube.pe.pe_tcm.size_mb": 5.2})
    study.run(small, StoredProduct(*shape, placement, "f16", trans, trans), data=True)


def test_a_wrong_value_is_found(monkeypatch):
    monkeypatch.setattr(study, "in_order", lambda config, product, c: c * np.float16(1.1))
    with pytest.raises(KernbenchError, match="differs from numpy"):
        study.run(SIP, StoredProduct(70, 90, 130, "rows"), data=True)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(PLACEMENTS)), st.integers(1, 300), st.integers(1, 300))
def test_every_element_is_computed_once(placement, m, n):
    computed = blocks(StoredProduct(m, n, 64, placement))
    copies = {SPLIT_K: len(computed), SPLIT_IN_CUBES: SIP.config.pes_per_cube}.get(placement, 1)
    assert sum(rows * columns for own in computed for rows, columns in own) == copies * m * n


@every_placement
def test_the_slices_serve_what_was_counted(placement):
    """Each PE reads each operand once: A and B of its own memory, and what was counted of the others'."""
    m, n, k = shape = (64, 128, 256)
    _, traffic = study.run(SIP, StoredProduct(*shape, placement))
    moved = zip(traffic.names, traffic.nbytes, strict=True)
    served = sum(nbytes for name, nbytes in moved if ".hbm_ctrl" in name.split("->")[0])
    written = [
        -(-rows // 32) * -(-columns // 32) for own in blocks(StoredProduct(m, n, k, placement)) for rows, columns in own
    ]
    acknowledged = 16 * (sum(written) + {SPLIT_K: 2 * 16, SPLIT_IN_CUBES: 16}.get(placement, 0))
    own = {
        # Partial sums in its own memory, too: of a cube, one in eight; of all cubes, of the first and the last PE.
        SPLIT_K: (m + n) * k + (2 * m * n + 2 * (m * n // 16)) * 4 // 2,
        SPLIT_IN_CUBES: (m + n) * k + m * n * 4 // 2,
        "rows": (m + n) * k,
        "columns": m * k + (m // 32) * n * k,  # B is read again for each block of rows
        "2-D": n * k + _own_rows(m, k),
        "2-D turned": m * k + _own_columns(n, k),
        "replicated": (m + n) * k // 16,
    }[placement]
    assert served == layer_work(SIP.config, StoredProduct(*shape, placement)).remote_bytes + 2 * own + acknowledged


def _own_rows(m, k):
    """Elements of A that PEs find in their own memory: their place in the cube and their own rows overlap."""
    pes = SIP.config.pes_per_cube
    total = 0
    for cube in range(2):
        for pe in range(pes):
            wanted = range(pe * m // pes, (pe + 1) * m // pes)
            held = range((cube * pes + pe) * m // (2 * pes), (cube * pes + pe + 1) * m // (2 * pes))
            total += len(set(wanted) & set(held)) * k
    return total


def _own_columns(n, k):
    """Elements of B that PEs find in their own memory, in 2-D turned."""
    return _own_rows(n, k)


@every_placement
@pytest.mark.parametrize("shape", SHAPES)
def test_no_run_beats_its_bound(placement, shape):
    result, _ = study.run(SIP, StoredProduct(*shape, placement))
    start, end = span(result.launches)
    assert layer_work(SIP.config, StoredProduct(*shape, placement)).bound_ns < (end - start) / 1000


def test_the_bound_is_near_where_nothing_is_remote():
    one = SIP.with_({"sip.cube_mesh.w": 1, "cube.pe_layout.corners": ["NW"], "cube.pe_layout.pe_per_corner": 1})
    shape = (256, 256, 512)
    result, _ = study.run(one, StoredProduct(*shape, "2-D"))
    launch = result.launches[-1]
    counted = layer_work(one.config, StoredProduct(*shape, "2-D"))
    assert counted.remote_bytes == 0
    assert counted.bound_ns > 0.5 * (launch.end_ps - launch.start_ps) / 1000


def test_weights_exist_once():
    m, n, k = 128, 1024, 8192
    for placement in ("rows", "columns", "2-D"):
        assert study._fullest(SIP.config, StoredProduct(m, n, k, placement)) == 2 * (m * k + k * n + m * n) / 16


def test_a_layer_that_does_not_fit_says_so():
    row = STUDY.simulate(SIP, m=1 << 21, n=1 << 21, k=64, placement="columns", name="huge")
    assert row["left_out"].startswith("does not fit: ")
    assert "makespan_ns" not in row
    assert list(STUDY.tables([row])["Not simulated"]["layer"]) == ["huge"]
    [fault] = STUDY.faults(SIP, m=1 << 21, n=1 << 21, k=64, placement="columns", dtype="f16")
    assert fault.startswith("k = 64: does not fit")


def test_a_long_run_that_cannot_be_near_is_refused(monkeypatch):
    asked = {"layers": ["vit-s L1"], "placements": ["rows", "2-D"], "dtype": "f16"}
    with monkeypatch.context() as long:
        long.setattr(study, "LONG_US", 1.0)
        assert STUDY.refused(SIP, **asked) == {}
    monkeypatch.setattr(study, "FAR", 0.5)  # the bounds are 0.86 and 0.43 times the estimate of 2-D
    assert STUDY.refused(SIP, **asked) == {}
    monkeypatch.setattr(study, "LONG_US", 1.0)
    [(name, why)] = STUDY.refused(SIP, **asked).items()
    assert name == "vit-s L1 in rows"
    assert why.startswith("no run is faster than ")
    assert [point["placement"] for point in STUDY.points(SIP, **asked)] == ["2-D"]


def test_a_row_counts_what_the_launch_did():
    row = STUDY.simulate(SIP, m=64, n=128, k=256, placement="2-D")
    assert row["macs_f16"] == row["tiles"] * 32 * 64 * 32
    assert row["hottest_busy"] == max(value for key, value in row.items() if key.startswith("busy_"))
    assert row["utilization"] == pytest.approx(64 * 128 * 256 / (16 * 4096 * row["makespan_ns"]))
    path = {key: ns for key, ns in row.items() if key.startswith("path_")}
    assert sum(path.values()) == pytest.approx(row["makespan_ns"])
    assert path["path_gemm_ns"] > 0 < path["path_launch_ns"]


def test_twice_the_largest_part_of_the_path_shortens_a_layer():
    product = {"m": 64, "n": 512, "k": 512, "placement": "columns"}
    row = STUDY.simulate(SIP, **product)
    assert max(study.report.PATH_RESOURCES, key=lambda part: row[f"path_{part}_ns"]) == "links"
    cube = SIP.config.cube
    rates = {"cube.noc.link_bw_gbs": 2 * cube.noc.link_bw_gbs, "cube.ucie.bw_gbs": 2 * cube.ucie.bw_gbs}
    faster = SIP.with_({"cube.noc.router.overhead_ns": 0.5, "cube.ucie.port_ns": 4} | rates)
    saved = row["makespan_ns"] - STUDY.simulate(faster, **product)["makespan_ns"]
    assert saved > 0.3 * row["path_links_ns"]


def test_unknown_placements_and_layers_are_refused(tmp_path):
    with pytest.raises(
        KernbenchError,
        match="placements: 'diagonal' is unknown; known: rows, columns, 2-D, 2-D turned, split-K, split-K in cubes, ",
    ):
        STUDY.run(SIP, placements=["diagonal"], folder=tmp_path / "out")
    with pytest.raises(KernbenchError, match="layer list 'resnet' is unknown"):
        STUDY.run(SIP, layers=["resnet"], folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lists_are_read_whole():
    assert {name: len(layers(name)) for name in _LISTS} == {"deepbench": 13, "gpt2": 6, "vit-s": 5, "llama3-70b": 80}
    assert all("Source" in source(name) or "Derived" in source(name) for name in _LISTS)


def test_lists_can_be_narrowed():
    [qkv, *_] = found = layers("llama3-70b tp8 m128")
    assert len(found) == 4
    assert (qkv.label, qkv.m, qkv.n, qkv.k, qkv.tp) == ("llama3-70b qkv tp8 m128", 128, 1280, 8192, 8)
    assert len(select_layers(["vit-s L0", "vit-s"])) == 5
    for wrong in ("resnet", "gpt2 L0"):
        with pytest.raises(KernbenchError):
            layers(wrong)


@pytest.mark.slow
def test_the_report_can_be_drawn_again_from_its_files(tmp_path):
    given = {"layers": ["vit-s L1", "deepbench 64x1216x1"]}
    first = STUDY.report(SIP, folder=tmp_path, **given)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = STUDY.report(SIP, folder=tmp_path, rerender=True, **given)
    assert again.rows == first.rows
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    assert {f"{chart.name}.svg" for chart in STUDY.charts} | {"layers.md", "layers.csv", "layers_links.csv"} <= set(
        written
    )
    assert "README.md" not in written
    assert {row["layer"] for row in first.rows if "links" in row} == {"vit-s L1"}
    assert len(first.findings) <= 7
    assert {finding.chart for finding in first.findings} - {""} <= {chart.name for chart in STUDY.charts}
    assert len(STUDY.tables(first.rows)["Fastest placement"]) == 2


def made(layer, placement, ns, **more):
    """A row of the report, without simulation."""
    usual = {
        "layer": layer, "list": "x", "name": layer, "shape": layer, "placement": placement, "makespan_ns": ns, "m": 2,
        "n": 2, "k": 2, "pes": 16, "remote_bytes": 1000, "issued": 1.0, "utilization": 0.5, "hottest_busy": 0.5,
        "hottest_link": "sip0.cube0.ucie_e.conn0->sip0.cube1.ucie_w.conn0", "left_out": "",
        **{f"path_{part}_ns": ns * (0.6 if part == "hbm" else 0.4 / 7) for part in study.report.PATH_RESOURCES},
    }  # fmt: skip
    return usual | more


def test_findings_say_which_placement_and_why():
    rows = [
        made("a", "rows", 300.0, pes=1), made("a", "2-D", 100.0, hottest_busy=0.9),
        made("b", "rows", 90.0, utilization=0.2), made("b", "2-D", 180.0, remote_bytes=4000),
    ]  # fmt: skip
    first, *rest = sorted(STUDY.findings(rows), key=lambda finding: -finding.weight)
    assert first.text == "Of 2 layers 2-D is fastest for 1, rows for 1."
    assert first.detail.startswith(
        "The wrong placement costs up to 3x: a with rows instead of 2-D has only 1 PE at work"
    )
    said = {finding.text: finding.detail for finding in rest}
    assert "2-D has 4.0x the bytes read from other PEs." in said["b is fastest in rows; 2-D takes 2.00x the time."]
    assert "60%, for a" in said["The largest part of the critical path is HBM slices for 2 of 2 layers."]
    assert "UCIe link for 2" in said["1 of 2 layers has a link that is busy 80% of the time."]


def test_no_finding_compares_placements_that_were_not_run():
    one = STUDY.findings([made("a", "rows", 100.0), made("b", "rows", 50.0)])
    assert not any("fastest for" in finding.text or "x the time" in finding.text for finding in one)
    left = STUDY.findings([made("a", "rows", 100.0, left_out="does not fit: 1 B in one HBM slice of 0 B")])
    assert [finding.text for finding in left] == ["1 of 1 points do not fit in HBM and have no time."]


def test_one_cube_has_no_links_between_cubes_to_draw(tmp_path):
    one = SIP.with_({"sip.cube_mesh.w": 1})
    report = STUDY.report(one, folder=tmp_path, layers=["deepbench 64x1216x1"], placements=["rows"])
    assert report.rows[0]["links"]
    assert not (tmp_path / "layers_links.svg").exists()
    assert not any("fastest for" in finding.text for finding in report.findings)


def test_a_sweep_takes_the_study():
    table = kb.sweep(SIP, "layers", {"placement": ["rows", "2-D"]}, parameters={"m": 64, "n": 64, "k": 64},
                     workers=1, progress=False).table  # fmt: skip
    assert (table["status"] == "ok").all()
    assert table["energy_uj"].min() > 0


def test_narrow_shards_are_read_together():
    """64 columns on 16 PEs: 4 columns of each; all of them are one block, of two tiles instead of 16."""
    shape = (64, 64, 512)
    assert blocks(StoredProduct(*shape, "rows"))[0] == [(4, 64)]
    result, _ = study.run(SIP, StoredProduct(*shape, "rows"))
    assert len(result.records.of_kind("composite")) == 16
    assert layer_work(SIP.config, StoredProduct(*shape, "rows")).busiest_tiles == 2 * 512 // 64


def test_split_k_is_for_long_sums():
    times = {}
    for placement in PLACEMENTS:
        start, end = span(study.run(SIP, StoredProduct(32, 32, 8192, placement))[0].launches)
        times[placement] = end - start
    assert 2 * times[SPLIT_K] < min(ps for placement, ps in times.items() if placement not in SPLITS)


@pytest.mark.parametrize("placement", ["rows", "2-D"])
def test_a_transposed_operand_takes_no_longer(placement):
    plain, transposed = (
        study.run(SIP, StoredProduct(64, 2048, 256, placement, "f16", trans, trans))[0].launches[-1]
        for trans in (False, True)
    )
    assert transposed.end_ps - transposed.start_ps == plain.end_ps - plain.start_ps
