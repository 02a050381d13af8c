"""Where the time of a layer goes under tensor parallelism 1, 2, 4, 8: compute, and messages hidden or exposed."""

from __future__ import annotations

from itertools import pairwise

import pytest

import kernbench as kb
from kernbench import tp
from kernbench.analysis.breakdown import overlap
from kernbench.config import default_ccl_path
from kernbench.tp import parallel_state as ps
from kernbench.tp.llama import LlamaBlock, LlamaConfig
from tests.tp.test_layers import F32, machine

RANKS = (1, 2, 4, 8)
SIZES = LlamaConfig(hidden=128, ffn=256, heads=16, kv_heads=8, head_dim=16)


def mlp(torch):
    first, second = tp.ColumnParallelLinear(256, 1024, config=F32), tp.RowParallelLinear(1024, 256, config=F32)
    return lambda x: second(first(x)[0])[0], 256


def llama(torch):
    return LlamaBlock(SIZES, F32), SIZES.hidden


def split(model, ranks, sip_link=1.0):
    """The time of one forward pass, its parts, and the launches that it took; `sip_link`: bandwidth, as a factor."""
    window = []

    def program(rank, torch):
        torch.distributed.init_process_group("ahbm")
        ps.initialize_model_parallel(ranks, torch=torch)
        forward, width = model(torch)
        x = torch.empty(16, 1, width, dtype=torch.float32, device="ahbm")
        torch.ahbm.synchronize()
        window.append(torch.engine.now_ns)
        forward(x)
        torch.ahbm.synchronize()
        window.append(torch.engine.now_ns)

    own = machine(ranks)
    own = own.with_({"system.sip_link.bw_gbs": own.config.system.sip_link.bw_gbs * sip_link})
    with kb.session(own) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)
    start, end = min(window), max(window)
    launches = [launch.name for launch in torch.result.launches if launch.start_ps >= start * 1000]
    return end - start, overlap(torch.result.records, (round(start * 1000), round(end * 1000))), launches


@pytest.mark.slow
@pytest.mark.parametrize(("model", "reductions"), [(mlp, 1), (llama, 2)])
def test_compute_shrinks_and_messages_grow_with_the_ranks(model, reductions):
    found = [split(model, ranks) for ranks in RANKS]
    for ranks, (total, parts, launches) in zip(RANKS, found, strict=True):
        sum_ns = parts.work_ns + parts.hidden_ns + parts.exposed_ns + parts.idle_ns
        assert sum_ns == pytest.approx(total, abs=0.01)
        assert sum("all_reduce" in name for name in launches) == (reductions * ranks if ranks > 1 else 0)
    compute = [parts.work_ns + parts.hidden_ns for _, parts, _ in found]
    messages = [parts.hidden_ns + parts.exposed_ns for _, parts, _ in found]
    assert messages[0] == 0
    assert all(a < b for a, b in pairwise(messages))
    # No more than ranks times as fast; less where what is not spread weighs more.
    assert all(a > b > a / 2 for a, b in pairwise(compute))


def test_a_slower_link_between_ranks_is_exposed_and_changes_no_work(tmp_path, monkeypatch):
    # auto would choose another algorithm for the slower link.
    text = default_ccl_path().read_text().replace("algorithm: auto", "algorithm: ring_allreduce_tcm", 1)
    (tmp_path / "ccl.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    _, whole, _ = split(mlp, 2)
    _, half, _ = split(mlp, 2, sip_link=0.25)
    assert half.work_ns + half.hidden_ns == pytest.approx(whole.work_ns + whole.hidden_ns, rel=1e-3)
    assert 1.2 * whole.exposed_ns < half.exposed_ns < 4 * whole.exposed_ns
