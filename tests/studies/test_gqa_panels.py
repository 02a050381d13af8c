"""The panels of the attention study: commands counted, values checked, on the machine and through the bench."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.benches import milestone_gqa_llama70b as bench
from kernbench.ccl._group import Group
from kernbench.errors import KernbenchError, VerificationError
from kernbench.kernels import ring_attention
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.studies import attention as study
from kernbench.studies import milestone
from kernbench.studies.attention import subgroups
from kernbench.studies.gqa import PANELS
from kernbench.topology.builder import resolve_topology
from tests.slow import slow_after

MACHINE = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})


def test_the_bench_writes_the_validation_sweep(monkeypatch, tmp_path):
    monkeypatch.setenv("GQA_VALIDATION", "1")
    monkeypatch.setattr(bench, "_OUTPUT_DIR", tmp_path / "gqa")
    outcome = run_bench(topology=MACHINE, bench_fn=bench.run, data=True)
    assert (outcome.completion, outcome.correctness) == ("OK", "PASSED")
    content = json.loads((tmp_path / "gqa" / "sweep.json").read_text())
    assert (content["version"], content["validation_scale"]) == (1, True)
    assert content["panels"] == [row["panel"] for row in content["rows"]] == list(PANELS)
    assert content["config"]["S_q_prefill"] == content["config"]["S_kv_per_rank"] == 16
    for row in content["rows"]:
        n, counts = row["n_ranks"], row["op_log_summary"]
        assert n == (8 if row["panel"].startswith("single_user") else 4)
        assert counts["ipcq_send_count"] == counts["ipcq_recv_count"] > 0
        if row["panel"].endswith("prefill"):
            assert counts["gemm_count"] == 2 * n * n
            assert counts["ipcq_send_count"] == 2 * n * (n - 1)  # K and V of every rank reach every other
        else:
            assert counts["gemm_count"] == 2 * n
            assert counts["ipcq_send_count"] == 3 * n * (n.bit_length() - 1)  # m, l and o, to each partner
        assert (counts["dma_read_count"], counts["dma_write_count"]) == (3 * n, n)  # q, k, v; the result


def test_values_change_no_time():
    # Blocks of q are turned and dropped; their space is free when that ends, and loads wait for it.
    setting = study.Setting("prefill", 8, tokens=64, group=8, causal=True)
    without, valued = (study.measured(study.run(MACHINE, setting, data=data)) for data in (False, True))
    assert valued == without


def test_elsewhere_the_bench_executes_the_notebook(monkeypatch, tmp_path):
    asked = []
    monkeypatch.delenv("GQA_VALIDATION", raising=False)

    def note(name, **given):
        asked.append((name, given))
        return milestone.MilestoneReport(tmp_path, found=False)

    monkeypatch.setattr(milestone, "run", note)
    machine = kb.load("preset:small")
    assert kb.run("milestone-gqa-llama70b", machine).ok
    assert asked == [("gqa", {"topology": machine, "output": bench._OUTPUT_DIR})]
    assert bench._OUTPUT_DIR.parts[-3:] == ("milestones", "output", "gqa")


SMALL = study.Setting("prefill", 4, cubes=1, pes=8, items=2, group=4, head_dim=32, tokens=24)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("ring", [True, False])
def test_prefill_is_right_on_the_machine(order, ring):
    study.run(MACHINE, replace(SMALL, causal=True, order=order, ring=ring), data=True)


@pytest.mark.parametrize(
    "merge",
    ["ring_allreduce_tcm", "ring_allreduce_hbm", "ring_flat_allreduce", "recursive_doubling_allreduce",
     "halving_doubling_allreduce", "tree_allreduce", "double_tree_allreduce"],
)  # fmt: skip
def test_any_all_reduce_merges_parts(merge):
    study.run(MACHINE, replace(SMALL, phase="decode", merge=merge, tokens=600), data=True)


@pytest.mark.parametrize("dtype", slow_after(1, ["f16", "bf16"]))
@pytest.mark.parametrize("phase", study.PHASES)
def test_ranks_over_cubes_and_sips(phase, dtype):
    over = replace(SMALL, phase=phase, ranks=8, across="cube", sips=2, cubes=4, pes=2, dtype=dtype)
    study.run(MACHINE, over, data=True)


@pytest.mark.parametrize("phase", study.PHASES)
def test_chunks_of_a_prompt(phase):
    study.run(
        MACHINE,
        replace(SMALL, phase=phase, items=1, pes=4, q_tokens=20 if phase == "decode" else 5, tokens=80),
        data=True,
    )


@pytest.mark.slow
def test_times_do_not_depend_on_data():
    for phase in study.PHASES:
        setting = replace(SMALL, phase=phase)
        spans = [study.run(MACHINE, setting, data=data).records.launches[-1] for data in (False, True)]
        assert spans[0].end_ps - spans[0].start_ps == spans[1].end_ps - spans[1].start_ps


LANE = replace(SMALL, pes=4, items=1)
LLAMA = replace(LANE, items=8, group=8)
HARD = {
    "tokens that fill no tile, ranks that see nothing of others": replace(LANE, tokens=77, causal=True),
    "the same, every rank seeing some of each tile": replace(LANE, tokens=77, causal=True, order="striped"),
    "64 query heads on 8, prefill": replace(LLAMA, tokens=10, causal=True, order="zigzag"),
    "64 query heads on 8, decode of many tiles": replace(LLAMA, phase="decode", tokens=601),
    "bf16, half a chunk beyond a tile": replace(LANE, tokens=130, causal=True, order="zigzag", dtype="bf16"),
    "a causal ring over SIPs": replace(LANE, ranks=8, sips=2, tokens=33, causal=True),
    "a causal chain over SIPs": replace(LANE, ranks=8, sips=2, tokens=33, causal=True, ring=False),
    "parts over SIPs, subgroups side by side": replace(
        LANE, phase="decode", ranks=8, across="cube", sips=2, cubes=4, pes=3, tokens=97, dtype="bf16"
    ),
    "one token for each rank": replace(LANE, tokens=1, causal=True),
    "six ranks, no power of two": replace(LANE, phase="decode", ranks=6, pes=6, tokens=37),
    "seven ranks, one slot": replace(LANE, phase="decode", ranks=7, pes=7, items=3, tokens=37, n_slots=1),
    "a chunk of more states than are held at a time": replace(
        LLAMA, phase="decode", items=1, head_dim=128, ranks=2, pes=2, q_tokens=80, tokens=40
    ),
    "one query head for each kv head": replace(LANE, group=1, tokens=70, causal=True),
    "a head that is no power of two": replace(LANE, head_dim=80, tokens=70, causal=True),
}


@pytest.mark.parametrize("name", slow_after(6, HARD))
def test_hard_settings(name):
    study.run(MACHINE, HARD[name], data=True)


@pytest.mark.parametrize(("group", "head_dim"), slow_after(1, [(7, 64), (1, 256), (8, 128), (64, 128)]))
@pytest.mark.parametrize("phase", study.PHASES)
def test_scratch_is_never_exceeded(phase, group, head_dim):
    """Blocks of query rows stay in TCM while many tiles come by, of sizes that leave holes of all kinds."""
    tokens = max(140, 5 * 64 // group + 6)
    long = replace(SMALL, phase=phase, ranks=2, pes=2, items=1, group=group, head_dim=head_dim, tokens=tokens)
    own = {"causal": True, "order": "zigzag"} if phase == "prefill" else {"q_tokens": 9}
    assert study.run(MACHINE, replace(long, **own)).records.commands


def test_a_wrong_value_is_found(monkeypatch):
    monkeypatch.setattr(study, "merge", lambda x, y, tl: x + y)
    monkeypatch.setattr(ring_attention, "_weights", lambda mx, my, tl: (mx, tl.exp(mx), tl.exp(my)))
    for merge in ("recursive_doubling_allreduce", "ring_allreduce_tcm"):
        with pytest.raises(VerificationError, match="decode over 4 ranks"):
            study.run(MACHINE, replace(SMALL, phase="decode", merge=merge), data=True)


def lanes_of(ranks, across, sips=1, cubes=16, pes=8):
    config = resolve_topology("preset:default").config
    places = [(cube, pe) for cube in range(cubes) for pe in range(pes)]
    return subgroups(ranks, across)(Group.of(config, range(sips), places))


def test_ranks_go_round_a_cube_and_forth_and_back_over_cubes():
    """PEs stand NW 0 1, NE 2 3, SW 4 5, SE 6 7; cubes in rows of 4."""
    assert [pe for _, _, pe in lanes_of(8, "pe")[0]] == [0, 1, 2, 3, 7, 6, 5, 4]
    order = [0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12]
    assert [lane[0][1] for lane in lanes_of(8, "pe")] == order
    for pe, lane in enumerate(lanes_of(16, "cube")):
        assert [(cube, own) for _, cube, own in lane] == [(cube, pe) for cube in order]


def test_a_lane_over_sips_has_as_many_ranks_on_each():
    found = lanes_of(16, "pe", sips=2)
    assert len(found) == 16
    for lane in found:
        assert [sip for sip, _, _ in lane] == [0] * 8 + [1] * 8
        assert [place[1:] for place in lane[:8]] == [place[1:] for place in lane[8:]]
    places = [place for lane in found for place in lane]
    assert len(set(places)) == len(places) == 256


def test_unknown_words_are_refused():
    with pytest.raises(KernbenchError, match="known: prefill, decode"):
        study.run(MACHINE, replace(SMALL, phase="training"))
    with pytest.raises(KernbenchError, match="known: pe, cube"):
        subgroups(4, "sip")
    with pytest.raises(KernbenchError, match="expected a multiple of the SIPs and a divisor"):
        study.run(MACHINE, replace(SMALL, ranks=3))
