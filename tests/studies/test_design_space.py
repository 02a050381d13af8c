"""The design-space study: parts sum to the whole, figures and sentences come from the rows."""

from __future__ import annotations

import pandas as pd
import pytest

from kernbench.errors import KernbenchError
from kernbench.studies import design_space, design_space_report
from kernbench.studies.design_space_work import gpt2_layers, llama3_70b_decode
from kernbench.topology.builder import resolve_topology

TWO = resolve_topology("preset:small", {"system.sips.count": 2, "sip.cube_mesh": {"w": 2, "h": 1}})
SIZE = {"context": 128, "hidden": 256, "ffn": 512}
PARAMETERS = {"decode": SIZE, "gpt2": {"layer_list": "gpt2 QKTV"}}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:  # points share their parts by the cache
        patch.setenv("KERNBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        return swept()


def swept():
    return design_space.sweep(
        TWO,
        meshes=[[1, 1], [2, 1], [9, 9]],
        ucie_gbs=[64, 128],
        hbm_scale={"decode": [1], "gpt2": [1]},
        topologies=["ring_1d"],
        parameters=PARAMETERS,
        factors=["UCIe bandwidth", "SIP topology"],
        ties=2,
    )


def test_a_decode_step_is_its_parts():
    row = llama3_70b_decode(TWO, **SIZE)
    assert row["latency_ns"] == pytest.approx(row["attention_ns"] + row["products_ns"] + row["allreduce_ns"])
    assert min(row[name] for name in ("attention_ns", "products_ns", "allreduce_ns")) > 0
    assert row["sip_link_bytes"] > 0
    # Keys, values and weights are read once; parts of attention go to HBM and back as often as they are merged.
    kv = 2 * 8 * 128 * 128 * 2
    weights = 2 * (256 * (256 + 2048) + 256 * 256 + 256 * 1024 + 512 * 256)
    assert row["hbm_bytes"] > kv + weights
    # Weights alone: twice as wide a network has as many bytes more as there are more weights.
    wider = llama3_70b_decode(TWO, **{**SIZE, "ffn": 1024})
    assert wider["hbm_bytes"] - row["hbm_bytes"] == pytest.approx(2 * (256 * 1024 + 512 * 256), rel=0.1)


def test_one_sip_reduces_nothing():
    row = llama3_70b_decode(TWO.with_({"system.sips.count": 1}), **SIZE)
    assert row["allreduce_ns"] == row["sip_link_bytes"] == 0


def test_heads_and_context_have_to_be_cut_evenly():
    for machine, context in ((TWO.with_({"system.sips.count": 3}), 128), (TWO, 100)):
        with pytest.raises(KernbenchError, match="expected divisors"):
            llama3_70b_decode(machine, context=context)


def test_of_several_placements_the_fastest_counts():
    each = [gpt2_layers(TWO, layer_list="gpt2 QKTV", placements=[p])["latency_ns"] for p in ("rows", "2-D")]
    assert gpt2_layers(TWO, layer_list="gpt2 QKTV", placements=["rows", "2-D"])["latency_ns"] == min(each)


def test_tables(rows):
    tables = dict.fromkeys(row["table"] for row in rows)
    assert list(tables) == [
        f"{workload} {kind}" for workload in ("decode", "gpt2") for kind in ("grid", "factors", "ties")
    ]
    invalid = [row for row in rows if row["status"] == "invalid"]
    assert {row["cube mesh"] for row in invalid} == {"9x9"}
    assert all("must be <= 16" in row["error"] for row in invalid)
    assert len(design_space.frame(rows, "decode grid")) == 4
    assert {row["machine"] for row in rows} == {TWO.hash}


def test_what_is_written_is_read_and_drawn_again(rows, tmp_path):
    design_space.write(rows, tmp_path)
    again = design_space.read(tmp_path)["rows"]
    assert again == rows
    drawn = design_space_report.draw(again, tmp_path, 0.2)
    assert len(drawn) == 6
    assert all(path.is_file() for path in drawn)
    assert len(pd.read_csv(tmp_path / "gpt2_grid.csv")) == 6


def test_sentences_are_of_the_rows(rows, tmp_path):
    said = " ".join(design_space_report.findings(rows))
    assert "Of 4 machines for a layer of Llama-3 70B in decode" in said
    assert "points cannot be, the first since sip.cube_mesh = 9 x 9 = 81 cubes must be <= 16" in said
    assert "change first: UCIe bandwidth up" in said
    assert "Over 3 orders of simultaneous arrivals the latency of a layer of Llama-3 70B in decode at a context" in said
    text = design_space_report.write_findings([said], rows, tmp_path).read_text()
    assert TWO.hash[:12] in text


def made(workload, factors, ties):
    """Return rows by hand: latencies of `factors` (name, direction: ns) and of other orders."""
    same = {"status": "ok", "area_mm2": 10.0}
    rows = [
        same | {"table": f"{workload} factors", "factor": name, "direction": way, "latency_ns": ns}
        for (name, way), ns in factors.items()
    ]
    return rows + [same | {"table": f"{workload} ties", "tie_seed": i, "latency_ns": ns} for i, ns in enumerate(ties)]


def test_what_moves_less_than_the_order_of_ties_has_no_effect():
    factors = {
        ("base", ""): 1000.0, ("a", "up"): 996.0, ("a", "down"): 1004.0, ("b", "up"): 1000.0, ("b", "down"): 1030.0,
        ("c", "up"): 990.0,
    }  # fmt: skip
    for ties, none in (
        ([1005.0], {"a"}),
        ([1000.0], set()),
        ([1011.0], {"a", "c"}),
        ([995.0, 1040.0], {"a", "b", "c"}),
    ):
        table = design_space_report.first(made("gpt2", factors, ties), "gpt2")
        assert set(table.loc[table["effect"] == "none", "factor"]) == none
        assert table["effect"].tolist() == [""] * (3 - len(none)) + ["none"] * len(none)
    assert design_space.chance(made("gpt2", factors, [995.0, 1040.0]), "gpt2") == pytest.approx(100 * (1040 / 995 - 1))


def test_unknown_factors_are_refused():
    with pytest.raises(KernbenchError, match="factors: luck unknown; known: HBM bandwidth"):
        design_space.sweep(
            TWO, meshes=[], ucie_gbs=[], hbm_scale={}, topologies=[], parameters=PARAMETERS, factors=["luck"]
        )


def test_topologies_with_two_sides_get_them():
    axes = design_space.axes([[1, 1]], [64], [1], ["ring_1d", "torus_2d"], 8)
    assert axes["SIP topology"]["torus_2d"] == {
        "system.sips.topology": "torus_2d", "system.sips.w": 4, "system.sips.h": 2,
    }  # fmt: skip
    assert axes["SIP topology"]["ring_1d"] == {"system.sips.topology": "ring_1d"}
