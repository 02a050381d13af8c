"""Layers of experts over ranks: values of transformers' blocks, drawn assignments, times and waits."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
hf = pytest.importorskip("transformers", reason="transformers is not installed")

import kernbench as kb  # noqa: E402
from kernbench.analysis._chakra import COLLECTIVE, read_nodes  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.torch._experts import Assignment  # noqa: E402
from tests.ops.test_blocks import device  # noqa: E402
from tests.torch.models import errors  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PLAN = {"*.experts": "experts"}
HIDDEN, INNER, EXPERTS = 64, 128, 8
SIZES = {"hidden_size": HIDDEN, "num_experts_per_tok": 2, "hidden_act": "silu"}


def mixtral(**sizes):
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    given = {**SIZES, "intermediate_size": INNER, "num_local_experts": EXPERTS, **sizes}
    return MixtralSparseMoeBlock(hf.MixtralConfig(**given))


def qwen():
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

    return Qwen2MoeSparseMoeBlock(
        hf.Qwen2MoeConfig(**SIZES, moe_intermediate_size=INNER, shared_expert_intermediate_size=96, num_experts=EXPERTS)
    )


def deepseek():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    return DeepseekV3MoE(
        hf.DeepseekV3Config(**SIZES, moe_intermediate_size=INNER, n_routed_experts=EXPERTS, n_shared_experts=1,
                            n_group=4, topk_group=2, norm_topk_prob=True)
    )  # fmt: skip


BLOCKS = {"Mixtral": mixtral, "Qwen": qwen, "DeepSeek": deepseek}


def filled(block):
    """Set weights such that outputs are about 1."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.15)
    return block.eval()


def machine(ranks: int):
    return kb.load("preset:small", {"system.sips": {"count": ranks, "topology": "ring_1d"}} if ranks > 1 else {})


def compiled(block, ranks: int, **options):
    return kb.torch.compile(block.half(), machine(ranks), tp=ranks, plan=PLAN, **options)


def result_of(block, x, ranks: int, **options):
    """Return the result of the second call: the first one also maps memory and installs queues."""
    model = compiled(block, ranks, **options)
    with torch.no_grad():
        model(x), model(x)
    model.close()
    return model.result


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("name", BLOCKS)
def test_values_are_those_of_the_block(name, ranks):
    found, eager = errors(filled(BLOCKS[name]()), lambda block: compiled(block, ranks), torch.randn(2, 12, HIDDEN))
    assert found <= 2 * eager


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_values_of_experts_in_parts_are_those_of_the_block(name):
    """Each rank has some columns of the first products of all experts: transformers' moe_tp_experts."""
    block, x, plan = filled(BLOCKS[name]()), torch.randn(2, 12, HIDDEN), {"*.experts": "moe_tp_experts"}
    for ranks in (1, 4):
        found, eager = errors(block, lambda b, n=ranks: kb.torch.compile(b.half(), machine(n), tp=n, plan=plan), x)
        assert found <= 2 * eager


@pytest.mark.slow
def test_values_of_experts_on_pes_that_share_memory():
    """Blocks of all experts are dealt to the PEs, where the host knows the sizes."""
    block, shared = filled(mixtral()), device()
    found, eager = errors(
        block, lambda b: kb.torch.compile(b.half(), shared, tp=1, plan=PLAN), torch.randn(2, 12, HIDDEN)
    )
    assert found <= 2 * eager


@pytest.mark.slow
def test_ranks_without_tokens_or_rows_take_part():
    """One token has rows for two experts of eight: of four ranks, three have no token, and at least two no row."""
    found, eager = errors(filled(mixtral()), lambda block: compiled(block, 4), torch.randn(1, 1, HIDDEN))
    assert found <= 2 * eager


@pytest.mark.slow
def test_products_of_one_row_are_computed_while_weights_are_read():
    """Four tokens have one row for each of 8 experts, and 16 have 4: the weights are the same, and bound the time."""
    block = mixtral(hidden_size=512, intermediate_size=1024)
    few, many = (
        sum(p.ns for p in result_of(block, torch.randn(1, n, 512).half(), 1, data=False).launches
            if p.operators == ("grouped_mm",))
        for n in (4, 16)
    )  # fmt: skip
    assert few <= 1.1 * many


def test_a_routing_on_the_device_needs_no_values():
    model = kb.torch.compile(mixtral().half(), plan=PLAN, routing=kb.torch.Routing(on_device=True))
    with (
        pytest.raises(ArgumentError, match="Routing: on_device = True: values need sizes on the host"),
        torch.no_grad(),
    ):
        model(torch.randn(1, 4, HIDDEN).half())
    model.close()


@pytest.mark.slow
def test_rows_that_are_exchanged_are_not_in_memory_of_later_steps():
    """Each rank sends 24 rows, as many as the output of a layer has, which is read after all layers."""

    class Together(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(mixtral() for _ in range(3))

        def forward(self, x):
            first, second, third = (layer(x) for layer in self.layers)
            return first + second + third

    found, eager = errors(filled(Together()), lambda block: compiled(block, 2), torch.randn(2, 24, HIDDEN))
    assert found <= 2 * eager


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_without_values_a_block_takes_about_as_long(name):
    """The router is not balanced with values, so that its products take longer; other steps are equal."""
    block, x, times = filled(BLOCKS[name]()), torch.randn(2, 12, HIDDEN).half(), []
    for data in (True, False):
        result = result_of(block, x, 4, data=data)
        own = {"permute", "dispatch", "grouped_mm", "silu+mul", "combine"}
        times.append(sum(p.ns for p in result.launches if p.operators[0] not in own))
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_drawn_assignments():
    balanced = kb.torch.Routing().drawn(tokens=16, k=2, experts=8, ranks=4)
    assert np.bincount(balanced.reshape(-1)).tolist() == [4] * 8  # 16 * 2 / 8
    assert Assignment(balanced, 8, 4).counts.tolist() == [[1] * 8] * 4  # each rank sends one row to each expert
    skewed = kb.torch.Routing(skew=1).drawn(tokens=300, k=1, experts=3, ranks=2)
    # shares 6/11, 3/11 and 2/11: 163.6, 81.8 and 54.5 rows
    assert sorted(np.bincount(skewed.reshape(-1)).tolist()) == [54, 82, 164]
    for seed in range(4):
        chosen = kb.torch.Routing(skew=2, seed=seed).drawn(tokens=10, k=4, experts=6, ranks=3)
        assert all(len(set(row)) == 4 for row in chosen.tolist())  # a token has different experts
        assert np.bincount(chosen.reshape(-1)).max() == 10  # the share of the first exceeds all tokens


def test_a_full_expert_drops_its_later_tokens():
    chosen = np.array([[0, 1], [0, 2], [0, 3], [0, 1]])
    # 8 rows, 4 experts: two rows on average
    assert kb.torch.Routing(capacity=1.0).kept(chosen, 4).tolist() == [[0, 1], [0, 2], [-1, 3], [-1, 1]]
    assert kb.torch.Routing(capacity=1.5).kept(chosen, 4).tolist() == [[0, 1], [0, 2], [0, 3], [-1, 1]]
    assert Assignment(kb.torch.Routing(capacity=1.0).kept(chosen, 4), 4, 2).counts.sum() == 6


def test_rows_arrive_by_expert_and_return_where_they_came_from():
    chosen = kb.torch.Routing(skew=0.7, seed=3).drawn(tokens=13, k=2, experts=6, ranks=3)
    assigned = Assignment(chosen, 6, 3)
    rows = [[(int(at) // 2, int(chosen.reshape(-1)[at])) for at in own] for own in assigned.slots]  # (token, expert)
    received = [[None] * assigned.ends(rank)[-1] for rank in range(3)]
    for source, first, target, at, n in assigned.dispatch:
        received[target][at : at + n] = rows[source][first : first + n]
    for rank, own in enumerate(received):
        experts = [expert for _, expert in own]
        assert experts == sorted(experts)
        assert set(experts) <= {2 * rank, 2 * rank + 1}
    back = [[None] * len(own) for own in rows]
    for source, first, target, at, n in assigned.combine:
        back[target][at : at + n] = received[source][first : first + n]
    assert back == rows


@pytest.mark.slow
def test_waiting_for_the_slowest_experts_is_not_transfer():
    """With skew, ranks wait in the combining all-to-all for the busiest one; its transfer begins then."""
    block, x = filled(mixtral(hidden_size=256, intermediate_size=512)), torch.randn(1, 256, 256).half()
    of = {}
    for skew in (0, 1):
        result = result_of(block, x, 4, data=False, routing=kb.torch.Routing(skew=skew))
        parts = {part.operators[0]: part for part in result.launches}
        products = next(part for part in result.launches if part.operators == ("grouped_mm",))
        of[skew] = parts["combine"], [launch.end_ps - launch.start_ps for launch in products.launches]
    assert of[0][0].wait_ps < of[1][0].wait_ps / 5
    assert max(of[0][1]) < 1.01 * min(of[0][1])
    rows = np.bincount(kb.torch.Routing(skew=1).drawn(256, 2, EXPERTS, 4).reshape(-1), minlength=EXPERTS)
    by_rank = rows.reshape(4, 2).sum(1)
    # The products of a rank take a time for its weights, which is the same on all, and a time for its rows.
    assert 1.2 < max(of[1][1]) / np.mean(of[1][1]) < by_rank.max() / by_rank.mean()
    assert of[1][0].wait_ps > 0.5 * (max(of[1][1]) - min(of[1][1]))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_an_all_to_all_is_not_faster_than_its_links(ranks):
    block, x = filled(mixtral(hidden_size=256)), torch.randn(1, 256, 256).half()
    result = result_of(block, x, ranks, data=False)
    assigned = Assignment(kb.torch.Routing().drawn(256, 2, EXPERTS, ranks), EXPERTS, ranks)
    link = machine(ranks).config.system.sip_link
    sent = max(sum(m.n for m in assigned.dispatch if m.source == rank and m.target != rank) for rank in range(ranks))
    bound_ns = sent * 256 * 2 / (2 * link.bw_gbs)  # a rank of a ring has two links
    parts = {part.operators[0]: part for part in result.launches}
    for name in ("dispatch", "combine"):
        assert parts[name].ns >= bound_ns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "width", "inner", "ranks"),
    [(512, 256, 256, 2), (1024, 512, 512, 2), (512, 512, 1024, 4), (1024, 512, 1024, 4)],
)
def test_balanced_experts_are_not_slower_than_a_dense_layer_of_the_same_flops(tokens, width, inner, ranks):
    """Their products are not, with the moves and sums of the dense ones; permutation and weighed sum come on top."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    block, x = filled(mixtral(hidden_size=width, intermediate_size=inner)), torch.randn(1, tokens, width).half()
    result = result_of(block, x, ranks, data=False)
    dense = kb.torch.compile(
        LlamaMLP(hf.LlamaConfig(hidden_size=width, intermediate_size=2 * inner)).half(), machine(1), data=False,
        fuse=True,
    )  # fmt: skip
    with torch.no_grad():
        dense(x[:, : tokens // ranks])
    own = [
        part for part in result.launches if part.operators[0] in ("permute", "grouped_mm", "silu+mul", "weighed_sum")
    ]
    of_experts = [p for p in own if p.operators == ("grouped_mm",)]
    of_dense = [p for p in dense.result.launches if p.operators[0].startswith("mm")]
    flops, of_all = (sum(p.flops for p in parts) for parts in (of_dense, of_experts))
    assert of_all == pytest.approx(ranks * flops, rel=0.01)
    assert sum(p.ns for p in of_experts) <= sum(p.ns for p in of_dense)
    assert sum(part.ns for part in own) <= 1.12 * dense.result.latency_ns


@pytest.mark.slow
def test_a_trace_has_the_bytes_of_the_exchanges(tmp_path):
    block, x, routing = filled(mixtral()), torch.randn(2, 12, HIDDEN).half(), kb.torch.Routing(skew=1)
    with kb.session(machine(2), data=False) as session:
        model = kb.torch.compile(block.half(), session, tp=2, plan=PLAN, routing=routing)
        with torch.no_grad():
            model(x)
    paths = session.result.chakra(tmp_path / "first")
    assigned = Assignment(routing.drawn(24, 2, EXPERTS, 2), EXPERTS, 2)
    for rank, path in enumerate(sorted(paths)):
        sizes = [x.attrs["comm_size"] for x in read_nodes(path) if x.type == COLLECTIVE]
        sent = [sum(m.n for m in part if m.source == rank) for part in (assigned.dispatch, assigned.combine)]
        assert sizes == [n * HIDDEN * 2 for n in (*sent, 12)]  # and 12 tokens, which all gather
    again = kb.read_chakra(tmp_path / "first").run(machine(2)).chakra(tmp_path / "second")
    kept = ("comm_type", "comm_size", "pg_ranks", "kernbench")
    for pair in zip(sorted(paths), sorted(again), strict=True):
        first, second = ([[x.attrs[k] for k in kept] for x in read_nodes(p) if x.type == COLLECTIVE] for p in pair)
        assert first == second


@pytest.mark.slow
def test_a_graph_gives_the_same_output_sooner():
    block, x, times = filled(mixtral()), torch.randn(2, 12, HIDDEN).half(), {}
    with torch.no_grad():
        outputs = []
        for graph in (False, True):
            model = compiled(block, 2, graph=graph)
            outputs = [*outputs, model(x), model(x)]
            times[graph] = model.result.latency_ns
    assert all(torch.equal(y, outputs[0]) for y in outputs)
    assert times[True] < times[False]


@pytest.mark.slow
def test_tokens_of_a_full_expert_get_nothing_from_it():
    block, x = filled(mixtral()), torch.randn(2, 12, HIDDEN).half()
    with torch.no_grad():
        _, weights, index = block.half().gate(x.view(-1, HIDDEN))
        kept = kb.torch.Routing(capacity=0.5).kept(index.numpy(), EXPERTS)
        assert (kept < 0).any()
        exact = block.experts(x.view(-1, HIDDEN), index, weights * torch.from_numpy(kept >= 0))
        found = compiled(block, 2, routing=kb.torch.Routing(capacity=0.5))(x)
    assert torch.allclose(found.view(-1, HIDDEN), exact, atol=5e-3 * exact.abs().max().item())


@pytest.mark.parametrize(
    ("ranks", "plan", "message"),
    [
        (2, {"*.expert": "experts"}, r"no layer of experts is '\*.expert'; did you mean experts"),
        (2, {"gate": "experts"}, "no layer of experts is 'gate'"),
        (3, PLAN, "experts has 8 experts, which tp = 3 does not divide"),
    ],
)
def test_wrong_plans_are_refused(ranks, plan, message):
    with pytest.raises(ArgumentError, match=message):
        kb.torch.compile(mixtral(), machine(4), tp=ranks, plan=plan)


@pytest.mark.parametrize(("given", "message"), [({"skew": -1}, "skew = -1"), ({"capacity": 0}, "capacity = 0")])
def test_wrong_routing_is_refused(given, message):
    with pytest.raises(ArgumentError, match=message):
        kb.torch.Routing(**given)
