"""Operators on a device whose cores and memory ports are on a torus: numpy's values, and reads of all ports."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.ops.matmul import PLACEMENTS

MACHINE = kb.load("preset:wormhole_n150")
_RNG = np.random.default_rng(0)
A, B = (_RNG.standard_normal(shape).astype(np.float32) for shape in ((96, 160), (160, 72)))
Q, K, V = (_RNG.standard_normal((1, heads, 40, 32)).astype(np.float32) for heads in (4, 2, 2))


def soft(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attended(q_len: int):
    k, v = (np.repeat(x, 2, axis=1) for x in (K, V))
    scores = Q[:, :, -q_len:] @ k.swapaxes(-1, -2) / np.sqrt(32)
    visible = np.tri(40, dtype=bool)[-q_len:]
    return soft(np.where(visible, scores, -np.inf)) @ v


def attend(torch, q_len: int):
    q, k, v = (torch.tensor(x, device="ahbm") for x in (Q[:, :, -q_len:].copy(), K, V))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=True)


OPERATORS = {
    "matmul": (lambda torch, a, b: a @ b, A @ B),
    "softmax": (lambda torch, a, b: torch.softmax(a, dim=-1), soft(A)),
    "layer_norm": (
        lambda torch, a, b: torch.nn.functional.layer_norm(a, (160,)),
        (A - A.mean(-1, keepdims=True)) / np.sqrt(A.var(-1, keepdims=True) + 1e-5),
    ),
    "rms_norm": (
        lambda torch, a, b: torch.nn.functional.rms_norm(a, (160,), eps=1e-5),
        A / np.sqrt((A * A).mean(-1, keepdims=True) + 1e-5),
    ),
    "silu": (lambda torch, a, b: torch.nn.functional.silu(a), A / (1 + np.exp(-A))),
    "add": (lambda torch, a, b: a + 2 * a, 3 * A),
    "transpose": (lambda torch, a, b: a.T, A.T),
    "sum": (lambda torch, a, b: a.sum(1), A.sum(1)),
    "prefill": (lambda torch, a, b: attend(torch, 40), attended(40)),
    "decode": (lambda torch, a, b: attend(torch, 1), attended(1)),
}


def check(operator, expected):
    with kb.session(MACHINE, data=True) as torch:
        a, b = (torch.tensor(x, device="ahbm") for x in (A, B))
        np.testing.assert_allclose(operator(torch, a, b).numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_the_values_of_numpy(name):
    check(*OPERATORS[name])


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_of_a_product_has_the_values_of_numpy(placement):
    check(lambda torch, a, b: torch.matmul(a, b, placement=placement), A @ B)


def test_six_ports_serve_a_tensor_evenly_and_near_their_bandwidth():
    nbytes = 64 * 8 * 6 * 2048  # of each PE eight rows of blocks, with one block on each port
    with kb.session(MACHINE) as torch:
        x = torch.empty(nbytes // 2, dtype=torch.float16, device="ahbm", dp=kb.DPPolicy(pe="row_wise"))
        x.clone()
        torch.ahbm.synchronize()
        result = torch.result
    sent = {
        link.name: link.nbytes for link in result.busiest_links(10_000) if link.name.startswith("sip0.cube0.hbm_ctrl")
    }
    assert len(sent) == 6
    assert min(sent.values()) >= nbytes / 6
    assert max(sent.values()) <= 1.01 * nbytes / 6
    (launch,) = result.launches
    least_ns = 2 * nbytes / MACHINE.config.hbm_gbs_per_sip  # read and written once
    assert least_ns <= (launch.done_ps - launch.begin_ps) / 1000 <= 1.05 * least_ns
