"""Attention over a SIP: values by both front ends' operator, which PE computes what, and how many parts there are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kernbench as kb
from kernbench import DPPolicy
from kernbench.analysis._roofline import matrix_ns
from kernbench.errors import ArgumentError
from kernbench.ops import attention
from kernbench.ops.attention import Attention, Heads
from kernbench.runtime_api._operators import _attend

MACHINE = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
ROWS = DPPolicy(cube="row_wise", pe="row_wise")
PLACES = {
    "one PE": None, "rows": ROWS, "copies": DPPolicy(),
    "columns": DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2, num_pes=2),
}  # fmt: skip


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def expected(q, k, v, mask=None, behind=None, scale=None, gqa=False):
    """The definition of torch; rows that see nothing are 0."""
    if gqa:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    scores = (q @ np.swapaxes(k, -1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if behind is not None:
        mask = np.tril(np.ones(scores.shape[-2:], bool), behind)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    with np.errstate(invalid="ignore"):
        weights = np.nan_to_num(np.exp(scores - scores.max(-1, keepdims=True)))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v


def placed(torch, x, place="one PE"):
    return torch.from_numpy(x).to("ahbm", dp=PLACES[place])


def found(q, k, v, mask=None, place="one PE", behind=None, gqa=False, machine=MACHINE, **options):
    """The result on the machine, and its launches."""
    with kb.session(machine, data=True) as torch:
        tensors = [placed(torch, x, place) for x in (q, k, v)]
        mask = None if mask is None else placed(torch, mask)
        torch.ahbm.synchronize()
        before = len(torch.result.launches)
        if behind is None:
            function = torch.nn.functional.scaled_dot_product_attention
            out = function(*tensors, mask, enable_gqa=gqa, **options)
        else:
            out = _attend(*tensors, mask, behind, None, gqa)
        result = out.numpy()
        return result, [x.name for x in torch.result.launches[before:]]


FLASH_2, FLASH_3 = (MACHINE.with_({"system.attention": name}) for name in ("flash_2", "flash_3"))


@pytest.mark.parametrize(
    ("machine", "batch", "heads", "kv_heads", "q_len", "kv_len", "launches"),
    [
        (FLASH_2, 2, 4, 2, 1, 600, ["regroup", "attention", "attention_merge", "regroup"]),
        (FLASH_2, 1, 4, 2, 1, 600, ["attention", "attention_merge"]),
        (FLASH_2, 2, 4, 2, 1, 20, ["regroup", "attention", "regroup"]),
        (FLASH_2, 2, 4, 4, 1, 600, ["attention"]),
        (FLASH_2, 1, 4, 2, 70, 300, ["attention"]),
        (FLASH_3, 2, 4, 2, 1, 600, ["attention", "merge"]),
        (FLASH_3, 2, 4, 2, 1, 512, ["attention"]),
        (FLASH_3, 2, 4, 4, 1, 600, ["attention", "merge"]),
        (FLASH_3, 1, 4, 2, 140, 300, ["attention"]),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_values_and_launches_of_libraries(machine, batch, heads, kv_heads, q_len, kv_len, launches, causal):
    q, behind = values(batch, heads, q_len, 16), kv_len - q_len if causal else None
    k, v = (values(batch, kv_heads, kv_len, 16, seed=seed) for seed in (1, 2))
    result, ran = found(q, k, v, machine=machine, gqa=True, behind=behind)
    close(result, expected(q, k, v, gqa=True, behind=behind))
    assert ran == launches


@pytest.mark.parametrize(
    ("batch", "kv_len", "parts"),
    # 16 PEs have 32 places. All 4 tiles apart; 25 of them: 25 x 5 units fill 0.98 of 4 waves, fewer at most 0.78.
    [(1, 512, 4), (1, 513, 5), (25, 4096, 5), (26, 4096, 1), (16, 4096, 2), (17, 4096, 5)],
)
def test_parts_as_flash_2(batch, kv_len, parts):
    own = Heads(tuple(range(batch)), (0, 0, 1))
    sizes = Attention(8, 1, 1, kv_len, 128, 128, 1.0, "f16", own, own, own, own)
    assert attention.parts_of(FLASH_2, sizes) == parts


@pytest.mark.parametrize(
    ("batch", "heads", "kv_len", "parts"),
    # 16 places. Not 4 tiles; all 5 of them apart; 13 x 1 units are 0.8 of a wave; 3 x 5 units fill 0.94 of it.
    [(1, 8, 512, 1), (1, 8, 513, 5), (13, 1, 4096, 1), (3, 8, 640, 5), (1, 1, 4096, 16)],
)
def test_parts_as_flash_3(batch, heads, kv_len, parts):
    own = Heads(tuple(range(batch)), (0, 0, 1))
    sizes = Attention(heads, 1, 1, kv_len, 128, 128, 1.0, "f16", own, own, own, own)
    assert attention.parts_of(FLASH_3, sizes) == parts


def test_a_unit_of_flash_3_begins_when_the_one_before_has_its_result():
    """16 PEs with one, two and three units each, whose reads take 1 us: none is hidden behind the unit before."""
    times = []
    for batch in (16, 32, 48):
        with kb.session(FLASH_3.with_({"cube.hbm.access_ns": 1000})) as torch:
            q, k, v = (torch.empty(batch, 1, 1, 128, dtype=torch.float16, device="ahbm") for _ in range(3))
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
            torch.ahbm.synchronize()
        [launch] = torch.result.launches
        times.append(launch.done_ps - launch.start_ps)
    one, two = times[1] - times[0], times[2] - times[1]
    assert one == pytest.approx(two, rel=0.02)
    assert one > times[0] - 300_000


@pytest.mark.parametrize(
    ("library", "q_len", "kv_len", "tiles", "rows"),
    [
        (FLASH_2, 1, 1, 1, 64), (FLASH_2, 1, 128, 1, 64), (FLASH_2, 1, 129, 2, 64), (FLASH_2, 64, 64, 1, 64),
        (FLASH_2, 65, 130, 4, 64), (FLASH_3, 1, 129, 2, 64), (FLASH_3, 64, 64, 1, 64), (FLASH_3, 65, 130, 2, 128),
    ],
)  # fmt: skip
def test_engines_compute_whole_tiles_as_libraries_do(library, q_len, kv_len, tiles, rows):
    times = []
    for machine in (library, MACHINE):
        with kb.session(machine) as torch:
            q, k, v = (torch.empty(1, 1, n, 128, dtype=torch.float16, device="ahbm") for n in (q_len, kv_len, kv_len))
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
            torch.ahbm.synchronize()
        busy = torch.result.records.busy_by_component()
        times.append(sum(ps for name, ps in busy.items() if name.endswith("pe_gemm")))
    products = (128, 128, rows), (rows, 128, 128)
    assert times[0] == pytest.approx(1000 * tiles * sum(matrix_ns(MACHINE.config, mkn, "f16") for mkn in products))
    assert times[0] > times[1]


def close(a, b, tolerance=1e-4):
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= tolerance


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 20), (3, 50), (1, 600)])
def test_values_wherever_the_operands_are(place, q_len, kv_len):
    q, k, v = values(2, 4, q_len, 16), values(2, 4, kv_len, 16, seed=1), values(2, 4, kv_len, 32, seed=2)
    result, launches = found(q, k, v, place=place)
    close(result, expected(q, k, v))
    assert launches[-1].startswith("attention")
    assert ("copy" in launches) == (place == "columns")


@pytest.mark.parametrize("behind", [0, 3, 30, -2])
@pytest.mark.parametrize("q_len", [1, 2, 33])
def test_a_query_token_sees_the_tokens_up_to_its_own(behind, q_len):
    q, k, v = values(2, 4, q_len, 16), values(2, 2, 70, 16, seed=1), values(2, 2, 70, 16, seed=2)
    close(found(q, k, v, behind=behind, gqa=True)[0], expected(q, k, v, behind=behind, gqa=True))
    if not behind:
        close(found(q, k, v, is_causal=True, gqa=True)[0], expected(q, k, v, behind=0, gqa=True))


def test_decoding_is_cut_into_parts_if_all_keys_are_seen_by_an_offset():
    q, k, v = values(1, 4, 1, 16), values(1, 1, 1024, 16, seed=1), values(1, 1, 1024, 16, seed=2)
    result, launches = found(q, k, v, behind=1023, gqa=True)
    assert launches == ["attention", "attention_merge"]
    close(result, expected(q, k, v, gqa=True))


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(20, 50), (2, 1, 20, 50), (4, 1, 50), (1, 1024)])
def test_masks_broadcast(kind, shape):
    keep = values(*shape) > -0.5
    mask = keep if kind == "bool" else np.where(keep, values(*shape, seed=3), -np.inf).astype(np.float32)
    q_len, kv_len = max(shape[-2], 1 if shape[-1] == 1024 else 20), shape[-1]
    q, k, v = values(2, 4, q_len, 16), values(2, 4, kv_len, 16, seed=1), values(2, 4, kv_len, 16, seed=2)
    close(found(q, k, v, mask)[0], expected(q, k, v, mask))


@pytest.mark.parametrize("scale", [0.3, 0.7, 96**-0.5])  # whose product with a large number is rounded
@pytest.mark.parametrize("q_len", [1, 4])
def test_the_first_keys_may_be_masked(q_len, scale):
    mask = np.arange(2048)[None, :] >= 1100
    q, k, v = values(1, 1, q_len, 32), values(1, 1, 2048, 32, seed=1), values(1, 1, 2048, 32, seed=2)
    close(found(q, k, v, mask, scale=scale)[0], expected(q, k, v, mask, scale=scale))


@pytest.mark.parametrize("kv_len", [10, 2000])
def test_a_query_that_sees_nothing_is_zero(kv_len):
    mask = np.ones((2, 1, 1, kv_len), bool)
    mask[1] = False
    q, k, v = values(2, 4, 1, 32), values(2, 4, kv_len, 32, seed=1), values(2, 4, kv_len, 32, seed=2)
    result, _ = found(q, k, v, mask)
    assert not result[1].any()
    close(result, expected(q, k, v, mask))


@pytest.mark.parametrize(
    ("of_q", "of_k", "of_v"),
    [
        ((5, 16), (7, 16), (7, 8)),
        ((3, 5, 16), (7, 16), (3, 7, 8)),
        ((2, 1, 4, 5, 16), (3, 4, 7, 16), (1, 1, 7, 8)),
        ((2, 1, 5, 16), (2, 4, 7, 16), (2, 4, 7, 8)),
    ],
)
def test_the_dims_before_the_last_two_broadcast(of_q, of_k, of_v):
    q, k, v = values(*of_q), values(*of_k, seed=1), values(*of_v, seed=2)
    close(found(q, k, v)[0], expected(q, k, v))


@pytest.mark.parametrize("q_len", [1, 5])
def test_without_keys_the_result_is_zero_and_without_elements_there_is_no_launch(q_len):
    q, k, v = values(2, 4, q_len, 16), values(2, 4, 0, 16), values(2, 4, 0, 8)
    close(found(q, k, v)[0], np.zeros((2, 4, q_len, 8), np.float32))
    result, launches = found(*(values(0, 4, n, 16) for n in (q_len, 7, 7)))
    assert (result.shape, launches) == ((0, 4, q_len, 16), [])


def test_heads_between_tokens_need_no_copy():
    q, k, v = values(2, 6, 4, 16), values(2, 9, 4, 16, seed=1), values(2, 9, 4, 16, seed=2)
    with kb.session(MACHINE, data=True) as torch:
        tensors = [placed(torch, x, "rows").transpose(1, 2) for x in (q, k, v)]
        before = len(torch.result.launches)
        out = torch.nn.functional.scaled_dot_product_attention(*tensors, scale=0.3)
        result = out.numpy()
        assert [x.name for x in torch.result.launches[before:]] == ["attention"]
    close(result, expected(*(x.swapaxes(1, 2) for x in (q, k, v)), scale=0.3))


def test_half_precision_is_rounded_once():
    q, k, v = (values(1, 2, 40, 64, seed=i).astype(ml_dtypes.bfloat16) for i in range(3))
    wide = expected(*(x.astype(np.float32) for x in (q, k, v)))
    result, _ = found(q, k, v)
    assert result.dtype == q.dtype
    close(result.astype(np.float32), wide, 2e-2)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"dropout_p": 0.1}, ArgumentError, "no dropout: use 0.0"),
        ({"is_causal": True, "attn_mask": np.ones((5, 7), bool)}, RuntimeError, "let the mask say"),
        ({"attn_mask": np.ones((4, 7), bool)}, RuntimeError, "broadcast"),
        ({"attn_mask": np.ones((5, 7), np.int32)}, RuntimeError, "expected bool"),
        ({"key": values(2, 7, 16), "enable_gqa": True}, RuntimeError, "divide those of query"),
        ({"key": values(3, 7, 16)}, RuntimeError, "broadcast"),
        ({"key": values(4, 7, 8)}, RuntimeError, "one head size"),
        ({x: values(4, 7, 0) for x in ("query", "key")}, RuntimeError, "one head size"),
        ({"key": values(4, 8, 16)}, RuntimeError, "as many tokens"),
        ({"value": values(7)}, RuntimeError, "at least 2 dims"),
        ({"value": values(4, 7, 16).astype(np.float16)}, RuntimeError, "convert them first"),
        ({x: values(4, 7, 16).astype(np.int32) for x in ("query", "key", "value")}, ArgumentError, "convert all three"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, error, text):
    given = {"query": values(4, 5, 16), "key": values(4, 7, 16), "value": values(4, 7, 16)} | changes
    with kb.session(MACHINE) as torch:
        arguments = {k: placed(torch, x) if isinstance(x, np.ndarray) else x for k, x in given.items()}
        with pytest.raises(error, match=text):
            torch.nn.functional.scaled_dot_product_attention(**arguments)


def decoding(machine, batch, context):
    """One query token of 4 heads that share a kv head of 128, with keys cut by rows over the PEs."""
    config = machine.config

    def at(tokens, heads):
        rows = batch * heads * tokens
        size = -(-rows // config.pes_per_sip)
        held = [(i * size * 128, size * 128, (i,)) for i in range(config.pes_per_sip) if i * size < rows]
        offsets = tuple(i * heads * tokens * 128 for i in range(batch))
        return Heads(offsets, (tokens * 128, 128, 1), tuple(held))

    q, k = at(1, 4), at(context, 1)
    return Attention(4, 1, 1, context, 128, 128, 128**-0.5, "f16", q, k, k, q)


def test_units_of_a_query_token_are_computed_where_their_keys_are():
    machine = kb.load("preset:default")
    sizes = decoding(machine, 8, 8192)
    first, merging = attention.steps(machine, sizes)
    assert attention.parts_of(machine, sizes) == 16
    for (cube, pe), (unit,) in first.kernel.keywords["units"].items():
        assert sizes.k.holder(unit.batch, 0, unit.kv[0]) == cube * 8 + pe
    assert len(merging.pes) == 32


@pytest.mark.parametrize("width", [128, 256])
def test_as_many_parts_as_there_are_pes(width, monkeypatch):
    q, k, v = (values(1, 1, n, width, seed=i) for i, n in enumerate((1, 4096, 4096)))
    monkeypatch.setattr(attention, "parts_of", lambda machine, sizes: 128)
    with kb.session("preset:default", data=True) as torch:
        tensors = [torch.from_numpy(x.reshape(-1, width)).to("ahbm", dp=ROWS).view(*x.shape) for x in (q, k, v)]
        out = torch.nn.functional.scaled_dot_product_attention(*tensors).numpy()
        assert [x.name for x in torch.result.launches[-2:]] == ["attention", "attention_merge"]
    close(out, expected(q, k, v))


def decode_ns(batch, context):
    """The time of the launches for one query token of 4 heads of 128, as a graph, with keys cut by rows [ns]."""
    with kb.session("preset:default") as torch:
        made = {"dtype": torch.float16, "device": "ahbm"}
        few = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=-(-batch // 16))  # 2 KiB on a PE
        q = torch.empty(max(1, batch // 2), min(batch, 2) * 512, dp=few, **made).view(batch, 4, 1, 128)
        k, v = (torch.empty(batch * context, 128, dp=ROWS, **made).view(batch, 1, context, 128) for _ in "kv")
        torch.ahbm.synchronize()
        with torch.ahbm.graph() as graph:
            torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        graph.replay()
        torch.ahbm.synchronize()
        return sum(x.end_ps - x.start_ps for x in torch.result.launches if x.name.startswith("attention")) / 1000


@pytest.mark.parametrize(
    ("batch", "context"),
    [(1, 1024), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 16384), (4, 4096), (16, 1024)))],
)
def test_the_number_of_parts_is_near_the_best(batch, context, monkeypatch):
    chosen, times = decode_ns(batch, context), []
    for parts in (2**i for i in range(8) if batch * 2**i <= 128):
        monkeypatch.setattr(attention, "parts_of", lambda machine, sizes, parts=parts: parts)
        times.append(decode_ns(batch, context))
    assert chosen <= 1.1 * min(times) < max(times)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [[(1, 1024 * 2**i) for i in range(5)], [(2**i, 4096) for i in range(2, 6)]], ids=["context", "batch"]
)
def test_decoding_more_takes_longer(sizes):
    times = [decode_ns(*each) for each in sizes]
    assert all(shorter <= 1.02 * longer for i, shorter in enumerate(times) for longer in times[i + 1 :]), times
