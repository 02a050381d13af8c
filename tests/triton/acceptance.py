"""Kernels of packages from the index, unmodified, on the PEs of the default machine, against torch.

    python -m tests.triton.acceptance [--markdown] [name ...]

Runs the forward kernels of Liger-Kernel, and kernels of fla-core and cut-cross-entropy, at sizes that no block
divides. What has no short reference in torch is compared with Triton's own interpreter. Needs torch, triton,
liger-kernel, fla-core and cut-cross-entropy; the exit status is 1 if a kernel fails.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("TRITON_INTERPRET", "1")  # as the reference; inside of the block nothing is interpreted
warnings.simplefilter("ignore")

import torch
import torch.nn.functional as F  # noqa: N812 : its usual name
from triton.runtime.autotuner import Autotuner

import kernbench as kb
from kernbench.triton._session import on
from tests.acceptance.table import table

T = torch.Tensor
F32, F16 = 1e-5, 2e-3  # largest errors allowed, of the largest value; cut-cross-entropy computes in f16
CASES: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {}


def case(name: str, run: Callable[[], object], reference: Callable[[], object] | None = None) -> None:
    """Enter a case; without a reference it is compared with the interpreter."""
    CASES[name] = (run, reference)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> T:
    """Return random numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def tensors(x: object) -> list[T]:
    """Return the tensors in what a function gives."""
    if isinstance(x, T):
        return [x.detach().to(torch.float64)]
    return [t for item in x for t in tensors(item)] if isinstance(x, (tuple, list)) else []


def liger() -> None:
    """Enter the forward kernels of Liger-Kernel."""
    from liger_kernel.ops.attn_res import LigerAttnResFunction
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.dyt import LigerDyTFunction
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    from liger_kernel.ops.fused_ce_tvd import LigerFusedCETVDFunction
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
    from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction
    from liger_kernel.ops.fused_linear_kl_div import LigerFusedLinearKLDivFunction
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction
    from liger_kernel.ops.fused_neighborhood_attention import LigerFusedNeighborhoodAttentionFunction
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.group_norm import LigerGroupNormFunction
    from liger_kernel.ops.grpo_loss import GrpoLossFunction
    from liger_kernel.ops.jsd import LigerJSDFunction
    from liger_kernel.ops.kl_div import LigerKLDivLossFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.llama4_rope import LigerLlama4RopeFunction
    from liger_kernel.ops.mhc import LigerMHCCoeffsFunction, LigerMHCPostResFunction, LigerMHCPreFunction
    from liger_kernel.ops.modulated_rms_norm import LigerModulatedRMSNormFunction
    from liger_kernel.ops.multi_token_attention import LigerMultiTokenAttentionFunction
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction
    from liger_kernel.ops.qwen2vl_mrope import LigerQwen2VLMRopeFunction
    from liger_kernel.ops.relu_squared import LigerReLUSquaredFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction
    from liger_kernel.ops.sparsemax import LigerSparsemaxFunction
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction, LigerSiLUMulFunction
    from liger_kernel.ops.tvd import LigerTVDLossFunction

    rows, n, vocab = 5, 77, 131
    x, y, w, b = randn(rows, n), randn(rows, n, seed=1), randn(n), randn(n, seed=2)
    logits, teacher = randn(rows, vocab), randn(rows, vocab, seed=3)
    target = torch.tensor([3, 130, -100, 77, 0])
    weight = randn(vocab, n, seed=4) * 0.1

    def rms(x: T) -> T:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    case("liger rms_norm", lambda: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False), lambda: rms(x) * w)
    case(
        "liger layer_norm",
        lambda: LigerLayerNormFunction.apply(x, w, b, 1e-5),
        lambda: F.layer_norm(x, (n,), w, b, 1e-5),
    )
    case(
        "liger fused_add_rms_norm",
        lambda: LigerFusedAddRMSNormFunction.apply(x.clone(), y.clone(), w, 1e-6, 0.0, "llama", False),
        lambda: (rms(x + y) * w, x + y),
    )
    case(
        "liger poly_norm",
        lambda: LigerPolyNormFunction.apply(x, w[:3], b[:1], 1e-6, False),
        lambda: rms(x**3) * w[0] + rms(x**2) * w[1] + rms(x) * w[2] + b[0],
    )
    case(
        "liger dyt",
        lambda: LigerDyTFunction.apply(x, torch.tensor([0.7]), w, b),
        lambda: torch.tanh(0.7 * x) * w + b,
    )
    g = randn(3, 6, 35)
    case(
        "liger group_norm",
        lambda: LigerGroupNormFunction.apply(g, w[:6], b[:6], 6, 3, 1e-5),
        lambda: F.group_norm(g, 3, w[:6], b[:6], 1e-5),
    )
    gain, shift = randn(1, n, seed=8), randn(1, n, seed=9)
    case(
        "liger modulated_rms_norm",
        lambda: LigerModulatedRMSNormFunction.apply(x[None], w, gain, shift, 1e-6, 0.0, "llama", False),
        lambda: rms(x[None]) * w * (1 + gain) + shift,
    )
    case("liger geglu", lambda: LigerGELUMulFunction.apply(x, y), lambda: F.gelu(x, approximate="tanh") * y)
    case("liger swiglu", lambda: LigerSiLUMulFunction.apply(x, y), lambda: F.silu(x) * y)
    both = randn(rows, 2 * n)
    case(
        "liger swiglu_fused_gate_up",
        lambda: LigerFusedGateUpSiLUMulFunction.apply(both),
        lambda: F.silu(both[:, :n]) * both[:, n:],
    )
    case("liger relu_squared", lambda: LigerReLUSquaredFunction.apply(x), lambda: F.relu(x) ** 2)
    case("liger softmax", lambda: LigerSoftmaxFunction.apply(x), lambda: torch.softmax(x, -1))

    def sparsemax(x: T) -> T:
        z = x.sort(-1, descending=True).values
        k = torch.arange(1, x.shape[-1] + 1)
        inside = 1 + k * z > z.cumsum(-1)
        count = inside.sum(-1, keepdim=True)
        return torch.clamp(x - (z.cumsum(-1).gather(-1, count - 1) - 1) / count, min=0)

    case("liger sparsemax", lambda: LigerSparsemaxFunction.apply(x, -1), lambda: sparsemax(x))

    q, k = randn(2, 3, 9, 20), randn(2, 1, 9, 20, seed=5)
    angle = torch.cat([randn(1, 9, 10)] * 2, -1)
    cos, sin = angle.cos(), angle.sin()

    def turned(x: T) -> T:
        return x * cos[:, None] + torch.cat((-x[..., 10:], x[..., :10]), -1) * sin[:, None]

    case("liger rope", lambda: LigerRopeFunction.apply(q.clone(), k.clone(), cos, sin), lambda: (turned(q), turned(k)))
    three = torch.cat([randn(3, 2, 9, 10)] * 2, -1)
    sections = [2, 4, 4]

    def by_section(x: T) -> T:
        return torch.cat([part[i % 3] for i, part in enumerate(x.split(sections * 2, dim=-1))], -1)[:, None]

    def turned_by_section(x: T) -> T:
        half = torch.cat((-x[..., 10:], x[..., :10]), -1)
        return x * by_section(three.cos()) + half * by_section(three.sin())

    case(
        "liger qwen2vl_mrope",
        lambda: LigerQwen2VLMRopeFunction.apply(q.clone(), k.clone(), three.cos(), three.sin(), sections),
        lambda: (turned_by_section(q), turned_by_section(k)),
    )
    place = torch.polar(torch.ones(9, 10), randn(9, 10))

    def complex_turned(x: T) -> T:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * place[None, :, None]).flatten(3)

    lq, lk = randn(2, 9, 3, 20), randn(2, 9, 1, 20, seed=6)
    case(
        "liger llama4_rope",
        lambda: LigerLlama4RopeFunction.apply(lq.clone(), lk.clone(), place),
        lambda: (complex_turned(lq), complex_turned(lk)),
    )
    case(
        "liger cross_entropy",
        lambda: LigerCrossEntropyFunction.apply(logits.clone(), target, None, -100, 0.0, 0.1, "mean", None)[0],
        lambda: F.cross_entropy(logits, target, label_smoothing=0.1),
    )
    case(
        "liger fused_linear_cross_entropy",
        lambda: LigerFusedLinearCrossEntropyFunction.apply(x, weight, target)[0],
        lambda: F.cross_entropy(x @ weight.T, target),
    )
    logp, logq = logits.log_softmax(-1), teacher.log_softmax(-1)
    case(
        "liger kl_div",
        lambda: LigerKLDivLossFunction.apply(logp.clone(), logq.exp(), "batchmean", False),
        lambda: F.kl_div(logp, logq.exp(), reduction="batchmean"),
    )

    def jsd(a: T, b: T) -> T:
        middle = (0.5 * a.exp() + 0.5 * b.exp()).log()
        return 0.5 * sum(F.kl_div(middle, z, reduction="sum", log_target=True) for z in (a, b)) / a.shape[0]

    case("liger jsd", lambda: LigerJSDFunction.apply(logp.clone(), logq), lambda: jsd(logp, logq))
    case(
        "liger tvd",
        lambda: LigerTVDLossFunction.apply(logp.exp(), logq.exp()),
        lambda: 0.5 * (logp.exp() - logq.exp()).abs().sum() / rows,
    )
    other = randn(vocab, n, seed=7) * 0.1
    case(
        "liger fused_linear_jsd",
        lambda: LigerFusedLinearJSDFunction.apply(x, weight, y, other),
        lambda: jsd((x @ weight.T).log_softmax(-1), (y @ other.T).log_softmax(-1)),
    )
    case(
        "liger fused_linear_kl_div",
        lambda: LigerFusedLinearKLDivFunction.apply(x, weight, logq.exp()),
        lambda: F.kl_div((x @ weight.T).log_softmax(-1), logq.exp(), reduction="batchmean"),
    )
    case("liger fused_ce_tvd", lambda: LigerFusedCETVDFunction.apply(logits.clone(), teacher, target))
    ids = torch.randint(0, vocab, (2, 4), generator=torch.Generator().manual_seed(1))
    policy, older, reference = randn(2, 5, vocab), randn(2, 4) * 0.1 - 3, randn(2, 4, seed=2) * 0.1 - 3
    case("liger grpo_loss", lambda: GrpoLossFunction.apply(
        policy.clone(), older, reference, ids, torch.tensor([0.5, -1.0]), torch.ones(2, 4, dtype=torch.int32), 0.9,
        0.04, 0.2, 0.4, False)[0])  # fmt: skip
    scores = randn(1, 2, 11, 11)
    filters, offset = randn(2, 2, 3, 3) * 0.3, randn(2)

    def multi_token() -> T:
        seen = torch.tril(torch.ones(11, 11, dtype=torch.bool))
        p = torch.softmax(scores.masked_fill(~seen, -1e9), -1)
        return F.conv2d(p, filters, offset, padding=1).masked_fill(~seen, 0.0)

    case(
        "liger multi_token_attention",
        lambda: LigerMultiTokenAttentionFunction.apply(scores, filters, offset, 1, 1, 1, 1, False),
        multi_token,
    )
    nq, nk, nv = (randn(1, 2, 21, 16, seed=s) for s in (1, 2, 3))
    case("liger fused_neighborhood_attention", lambda: LigerFusedNeighborhoodAttentionFunction.apply(nq, nk, nv, 5, 1))
    case("liger attn_res", lambda: LigerAttnResFunction.apply(randn(3, rows, n), w, b.abs() + 0.5, 1e-6))
    tokens, inner = randn(6, 4, 33), randn(4 * 33, 24) * 0.05
    case("liger mhc_coeffs", lambda: LigerMHCCoeffsFunction.apply(
        tokens, inner, randn(24), torch.tensor(0.5), torch.tensor(0.4), torch.tensor(0.3), True, 5, 1e-6, 0.0, 1e-6,
        2.0))  # fmt: skip
    pre, post, mix = randn(6, 4).sigmoid(), randn(6, 4, seed=1).sigmoid(), torch.softmax(randn(6, 4, 4), -1)
    case(
        "liger mhc_pre",
        lambda: LigerMHCPreFunction.apply(tokens, pre),
        lambda: torch.einsum("tc,tcd->td", pre, tokens),
    )
    made = randn(6, 33, seed=3)
    case("liger mhc_post_res", lambda: LigerMHCPostResFunction.apply(tokens, made, post, mix))
    expert, down = randn(3, 2 * 18, n) * 0.1, randn(3, n, 18) * 0.1
    index = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 1], [0, 1]], dtype=torch.int32)
    share = torch.softmax(randn(rows, 2), -1)

    def experts() -> T:
        out = torch.zeros(rows, n)
        for t in range(rows):
            for e, s in zip(index[t].tolist(), share[t], strict=True):
                gate, up = (expert[e] @ x[t]).chunk(2)
                out[t] += s * (down[e] @ (F.silu(gate) * up))
        return out

    case("liger fused_moe", lambda: LigerFusedMoEFunction.apply(x, expert, down, index, share), experts)


def fla() -> None:
    """Enter kernels of flash-linear-attention."""
    from fla.modules.l2warp import l2_warp  # noqa: F401 : the package is whole
    from fla.modules.norm.l2norm import l2norm_fwd
    from fla.ops.utils.cumsum import chunk_local_cumsum
    from fla.ops.utils.logsumexp import logsumexp_fwd
    from fla.ops.utils.softmax import softmax_fwd

    x = randn(7, 45)
    case(
        "fla l2norm",
        lambda: l2norm_fwd(x)[0],
        lambda: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6),
    )
    case("fla softmax", lambda: softmax_fwd(x), lambda: torch.softmax(x, -1))
    case("fla logsumexp", lambda: logsumexp_fwd(x), lambda: torch.logsumexp(x, -1))
    gate = randn(2, 50, 3)

    def local() -> T:
        parts = [p.cumsum(1) for p in gate.split(16, dim=1)]
        return torch.cat(parts, 1)

    case("fla chunk_local_cumsum", lambda: chunk_local_cumsum(gate, 16), local)


def fla_attention() -> None:
    """Enter the attention kernels of flash-linear-attention."""
    from fla.ops.linear_attn import fused_recurrent_linear_attn
    from fla.ops.retention import fused_recurrent_retention
    from fla.ops.simple_gla import chunk_simple_gla

    q, k, v = (randn(1, 37, 2, 16, seed=s) for s in (1, 2, 3))

    def linear() -> T:
        score = torch.einsum("bthd,bshd->bhts", q * 16**-0.5, k).tril()
        return torch.einsum("bhts,bshd->bthd", score, v)

    case("fla fused_recurrent_linear_attn", lambda: fused_recurrent_linear_attn(q, k, v, normalize=False)[0], linear)
    case("fla fused_recurrent_retention", lambda: fused_recurrent_retention(q, k, v)[0])
    decay = F.logsigmoid(randn(1, 37, 2))

    def gated() -> T:
        total = decay.cumsum(1)
        weight = (total[:, :, None] - total[:, None]).permute(0, 3, 1, 2).exp().tril()
        score = torch.einsum("bthd,bshd->bhts", q * 16**-0.5, k) * weight
        return torch.einsum("bhts,bshd->bthd", score, v)

    case("fla chunk_simple_gla", lambda: chunk_simple_gla(q, k, v, decay)[0], gated)


def cut_cross_entropy() -> None:
    """Enter the kernels of cut-cross-entropy."""
    from cut_cross_entropy.cce_lse_forward import cce_lse_forward_kernel
    from cut_cross_entropy.indexed_dot import indexed_neg_dot_forward_kernel

    e, c = randn(35, 48, dtype=torch.float16), randn(150, 48, seed=1, dtype=torch.float16)
    target = torch.randint(0, 150, (35,), generator=torch.Generator().manual_seed(2))
    case(
        "cut_cross_entropy lse",
        lambda: cce_lse_forward_kernel(e, c),
        lambda: torch.logsumexp(e.float() @ c.float().T, -1),
    )
    case(
        "cut_cross_entropy indexed_dot",
        lambda: indexed_neg_dot_forward_kernel(e, c, target),
        lambda: -(e.float() * c.float()[target]).sum(-1),
    )


PACKAGES = (liger, fla, fla_attention, cut_cross_entropy)


def first_config(self: Autotuner, *args: object, **kwargs: object) -> object:
    """Run the interpreter with the first configuration: it cannot measure."""
    return self.fn.run(*args, **{**kwargs, **self.configs[0].all_kwargs()})


def interpreted(run: Callable[[], object]) -> list[T]:
    """Return what Triton's own interpreter gives."""
    before, Autotuner.run = Autotuner.run, first_config
    try:
        return tensors(run())
    finally:
        Autotuner.run = before


def measure(name: str) -> tuple[str, ...]:
    """Run one case; return its row of the table."""
    run, reference = CASES[name]
    start = time.process_time()
    with kb.session(data=True) as machine, on(machine):
        found = tensors(run())
    against = "interpreter" if reference is None else "torch"
    expected = interpreted(run) if reference is None else tensors(reference())
    if not found or len(found) < len(expected):
        raise AssertionError(f"{len(found)} tensors where {len(expected)} are expected")
    error = 0.0
    for a, b in zip(found, expected, strict=False):
        error = max(error, float((a - b.reshape(a.shape)).abs().max() / max(1e-30, float(b.abs().max()))))
    if not error <= (F16 if name.startswith("cut") else F32):
        raise AssertionError(f"the error is {error:.1e} of the largest value")
    launches = machine.result.launches
    ns = sum(launch.end_ps - launch.start_ps for launch in launches) / 1000
    host = time.process_time() - start
    return name, str(len(launches)), f"{ns:,.0f}", f"{error:.0e}", against, f"{host:.1f}"


def main() -> int:
    """Run the cases and print a table."""
    for enter in PACKAGES:
        enter()
    packages = ("torch", "triton", "liger-kernel", "fla-core", "cut-cross-entropy")
    columns = ("function", "launches:", "simulated ns:", "error:", "against", "host s:")
    return table(__doc__, packages, list(CASES), columns, measure)


if __name__ == "__main__":
    sys.exit(main())
