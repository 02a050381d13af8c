"""Random small PyTorch functions and modules, compiled and eager: outputs, gradients, buffers and changed inputs."""

from __future__ import annotations

import random
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernbench.errors import ArgumentError
from tests.fuzz.report import Report

MACHINE = "preset:small"
SIZES = (1, 2, 5, 7, 16, 33, 63, 64, 65, 127)
# How far a result may be from eager's, relative to its largest element: eager rounds to 16 bits after each operator.
ROOM = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 1e-1}
SHRINKS = 12  # statements that are left out on trial after a failure

# Statements that make a value of x's shape and type from values of it. `{n}` is the size of the last dim.
SMOOTH = (
    "x + y", "x - y * 2", "x * y", "x / (y.abs() + 1)", "torch.relu(x)", "torch.sigmoid(x)", "torch.tanh(x)",
    "F.gelu(x)", "F.silu(x)", "F.leaky_relu(x, 0.1)", "F.softplus(x)", "F.elu(x)", "F.hardswish(x)", "F.mish(x)",
    "x.clamp(-1, 1)", "x.clamp(min=0)", "torch.maximum(x, y)", "torch.minimum(x, y)",
    "torch.where(x > y, x, y * 0.5)", "x.abs().sqrt()", "x.square()", "torch.exp(-x.abs())", "torch.log1p(x.abs())",
    "torch.sin(x)", "torch.cos(x)", "torch.rsqrt(x * x + 1)", "torch.erf(x)", "torch.atan2(x, y + 3)",
    "torch.lerp(x, y, 0.25)", "x.softmax(-1)", "F.log_softmax(x, 0)", "x - x.mean(-1, keepdim=True)",
    "x - x.amax(0, keepdim=True)", "x + x.sum(0)", "x.flip(0)", "x.roll(1, -1)", "x.cumsum(-1)",
    "x.t().contiguous().t()", "torch.addcmul(x, y, y, value=0.5)", "x / (x.norm(dim=-1, keepdim=True) + 1)",
    "F.layer_norm(x, (n,))", "F.rms_norm(x, (n,))", "F.normalize(x, dim=-1, eps=1.0)",
    "torch.cat([x, y])[m // 2 : m // 2 + m]", "torch.stack([x, y]).mean(0)", "x.masked_fill(y > 0.5, 0.25)",
    "F.dropout(x, 0.0)", "x.expand(2, m, n).sum(0)", "x.reshape(-1).view(m, n)", "torch.tril(x)", "torch.triu(x)",
    "x.logsumexp(-1, keepdim=True) + y", "x.std(-1, correction=0, keepdim=True) * y", "F.threshold(x, 0.1, 0.0)",
    "x.prod(-1, keepdim=True).clamp(-2, 2) + y", "torch.logaddexp(x, y)", "torch.hypot(x, y + 1)",
    "torch.nan_to_num(x)", "F.pad(x, (1, 2))[:, 1 : n + 1]", "(x @ y.t()) @ y / n",
    "torch.einsum('ij,kj->ik', x, y) @ x / n", "x.unsqueeze(0).repeat(3, 1, 1)[1]", "torch.outer(x[:, 0], y[0])",
    "x.movedim(0, 1).movedim(1, 0)", "x.tanh().sinh()", "torch.asinh(x)", "torch.expm1(x.clamp(max=1))",
    "torch.pow(x.abs() + 0.5, 1.5)", "x ** 3",
)  # fmt: skip
# Of inputs alone: a small error of an operand is a large one of theirs.
STEPS = (
    "x.floor()", "x.round()", "x.sign()", "x.trunc()", "(x > y).to(x.dtype)", "torch.fmod(x, y.abs() + 1)",
    "torch.remainder(x, y.abs() + 1)", "x.sort(-1).values", "x.sort(0, descending=True).values",
    "x.argsort(dim=-1, stable=True).to(x.dtype)", "x.argmax(-1, keepdim=True).to(x.dtype) + y",
    "x.max(-1, keepdim=True)[0] + y", "x.min(0).indices.to(x.dtype) + y",
    "x.topk((n + 1) // 2).values.mean(-1, keepdim=True) + y", "torch.isnan(x).to(x.dtype) + y", "torch.fmax(x, y)",
    "torch.fmin(x, y)", "x.cummax(-1).values", "x.cummin(0)[0]", "torch.frac(x)", "(x == x).to(x.dtype)",
    "torch.copysign(x, y)", "x.median(-1, keepdim=True).values + y", "torch.floor_divide(x, y.abs() + 0.5)",
    "x.amin((0, 1)) + y", "torch.heaviside(x, y)", "x.count_nonzero() + y",
)  # fmt: skip
INDEXED = (
    "x[i]", "x.index_select(0, i)", "torch.gather(x, 0, i[:, None].expand(m, n))", "x[:, j]", "F.embedding(i, x)",
    "torch.zeros_like(x).index_add(0, i, x)", "x.index_copy(0, torch.arange(m), y)",
    "x.scatter(0, torch.argsort(i, stable=True)[:, None], y[:, :1])",
    "torch.zeros_like(x).scatter_add(0, i[:, None].expand(m, n), x)", "x.index_fill(0, i[:1], 0.5)", "x[-i - 1]",
    "x.masked_fill(i[:, None] > m // 2, 0.0)", "F.one_hot(i, m).to(x.dtype) @ x", "torch.take(x, i)[:, None] + y",
    "x.index_put((i,), y[0])", "x.index_put((i,), y, accumulate=True)", "torch.where((i % 2 == 0)[:, None], x, y)",
    "x.scatter_reduce(0, i[:, None].expand(m, n), y, 'amax')", "torch.take_along_dim(x, i[:, None], 0)[:, :1] + y",
    "x[torch.arange(m), j[0]][:, None] + y", "x.diagonal().sum() + y", "F.embedding_bag(i[None], x).expand(m, n)",
)  # fmt: skip
CHANGES = (
    "x.add_(1)", "x.mul_(y)", "x[0] = 0.5", "x[:, ::2] += 1", "x.clamp_(-1, 1)", "x.copy_(y)", "x.t().add_(1)",
    "x.view(-1)[: n].zero_()", "x[i] = 2.0", "x.index_add_(0, i, y)", "x.fill_(0.25)", "x[y > 0] = 0.0",
    "x.masked_fill_(y > 0, 1.0)", "x.scatter_(0, i[:, None], 0.5)", "x.relu_()", "x.sub_(x.mean())",
)  # fmt: skip
INTEGERS = (
    "x + y", "x - y", "x * y", "x // (y.abs() + 1)", "x % (y.abs() + 1)",
    "torch.div(x, y.abs() + 1, rounding_mode='trunc')", "x & y", "x | y", "x ^ y", "~x", "x << 1", "x >> 1",
    "x.abs()", "-x", "torch.maximum(x, y)", "x.clamp(-2, 3)", "torch.where(x > y, x, y)", "x.cumsum(-1).to(x.dtype)",
    "x.sum(0).to(x.dtype) + y", "x.amax(-1, keepdim=True) + y", "x.sign()", "(x == y).to(x.dtype)", "x.flip(-1)",
    "x.sort(-1).values", "x[i]", "x.float().mean().to(x.dtype) + y", "torch.remainder(x, y.abs() + 1)",
    "torch.fmod(x, y.abs() + 1)", "x.prod(-1, keepdim=True) + y", "x.t().reshape(m, n)",
    "x.argmin(0).to(x.dtype) + y", "(x > 0).any(0).to(x.dtype) + y", "torch.bitwise_left_shift(x, 1)",
    "x.to(torch.uint8).to(x.dtype)",
)  # fmt: skip
BOOLEANS = (
    "x & y", "x | y", "x ^ y", "~x", "x.logical_and(y)", "x.any(-1, keepdim=True) | y", "x.all(0) & y", "x == y",
    "x[i]", "torch.where(x, y, ~y)", "x.flip(0)", "x.cumsum(-1) > 2", "x.sum(0) > y.sum(0, keepdim=True)",
    "x.t().reshape(m, n)",
)  # fmt: skip
LOSSES = (
    "F.mse_loss(x, y)", "F.l1_loss(x, y)", "F.smooth_l1_loss(x, y)", "F.huber_loss(x, y)", "F.cross_entropy(x, j[0])",
    "F.cross_entropy(x, y.softmax(-1))", "F.nll_loss(x.log_softmax(-1), j[0])",
    "F.kl_div(x.log_softmax(-1), y.softmax(-1))", "F.binary_cross_entropy_with_logits(x, y.sigmoid())",
    "F.binary_cross_entropy(x.sigmoid(), y.sigmoid())", "F.cross_entropy(x, j[0], label_smoothing=0.1)",
    "F.cross_entropy(x, j[0], ignore_index=0, reduction='sum')", "F.cosine_embedding_loss(x, y, i % 2 * 2 - 1)",
    "F.hinge_embedding_loss(x, i[:, None] % 2 * 2 - 1)", "x.sum()",
    "F.margin_ranking_loss(x, y, i[:, None] % 2 * 2 - 1)", "F.triplet_margin_loss(x, y, y.flip(0))", "x.var()",
    "x.norm()", "F.gaussian_nll_loss(x, y, x * x + 1)", "F.soft_margin_loss(x, y.sign())",
    "F.multi_margin_loss(x, j[0])", "F.poisson_nll_loss(x, y.abs())", "F.cosine_similarity(x, y).sum()",
    "torch.cdist(x, y).sum()", "x.mean()", "x.std()",
)  # fmt: skip
# Modules and the shape of what they take, as text; `c` channels.
MODULES = (
    ("nn.Linear({n}, 5)", "({m}, {n})"), ("nn.LayerNorm({n})", "({m}, {n})"), ("nn.RMSNorm({n})", "({m}, {n})"),
    ("nn.BatchNorm1d({n})", "({m} + 1, {n})"), ("nn.BatchNorm2d(3)", "(2, 3, 5, {k})"),
    ("nn.GroupNorm(2, 4)", "(2, 4, {n})"), ("nn.InstanceNorm1d(3)", "(2, 3, {n} + 1)"), ("nn.PReLU()", "({m}, {n})"),
    ("nn.Conv1d(2, 3, 3, padding=1)", "(2, 2, {n})"), ("nn.Conv2d(2, 4, 3, padding=1)", "(1, 2, {k}, 6)"),
    ("nn.Conv2d(4, 4, 3, groups=4)", "(2, 4, 5, {k} + 2)"), ("nn.ConvTranspose1d(2, 3, 3)", "(1, 2, {k})"),
    ("nn.Conv2d(2, 4, 3, stride=2, dilation=2, padding=2)", "(1, 2, {k} + 4, 7)"),
    ("nn.Bilinear(3, 3, 2)", "({m}, 3)"), ("nn.MaxPool1d(3, 2, 1)", "(2, 3, {n} + 2)"),
    ("nn.MaxPool2d(2)", "(1, 2, {k} + 1, 6)"), ("nn.GLU()", "({m}, {n} * 2)"),
    ("nn.AvgPool2d(3, 1, 1)", "(1, 2, {k}, 5)"), ("nn.AdaptiveAvgPool1d(4)", "(2, 3, {n})"),
    ("nn.Softmax2d()", "(1, 3, 4, {k})"), ("nn.Upsample(scale_factor=2)", "(1, 2, {k})"),
    ("nn.Upsample(scale_factor=2, mode='bilinear')", "(1, 2, 3, {k})"),
    ("nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)", "(1, {k}, 16)"),
    ("nn.PixelShuffle(2)", "(1, 8, {k}, 3)"), ("nn.TransformerDecoderLayer(16, 2, 32, 0.0)", "({k}, 1, 16)"),
    ("nn.GRU(4, 5)", "(3, 2, 4)"), ("nn.LSTM(4, 5)", "(3, 2, 4)"),
    ("nn.MultiheadAttention(16, 4, batch_first=True)", "(2, {k}, 16)"), ("nn.LocalResponseNorm(2)", "(1, 4, {k})"),
    ("nn.Sequential(nn.Linear({n}, 8), nn.ReLU(), nn.Linear(8, {n}))", "({m}, {n})"), ("nn.RNN(4, 5)", "(3, 2, 4)"),
    ("nn.Sequential(nn.Linear({n}, 8), nn.BatchNorm1d(8), nn.GELU())", "({m} + 1, {n})"),
    ("nn.LPPool1d(2, 2)", "(1, 3, {n} + 1)"),
)  # fmt: skip
ATTENTION = (
    "F.scaled_dot_product_attention(q, k, v)", "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "F.scaled_dot_product_attention(q, k, v, attn_mask=q @ k.transpose(-1, -2) > -1)",
    "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)", "F.scaled_dot_product_attention(q, k, v, scale=0.3)",
    "torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v", "(q @ k.transpose(-1, -2)).relu() @ v",
    "torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1) @ v",
    "torch.softmax((q @ k.transpose(-1, -2)).tril(), -1) @ v",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A function, or a module, and its inputs, as the text of a program."""

    seed: int
    dtype: str
    inputs: tuple[str, ...]
    statements: tuple[str, ...]
    result: str
    module: str = ""
    has_gradient: bool = False

    @property
    def source(self) -> str:
        """The program: it defines `function` and `inputs`."""
        head = ["import torch", "from torch import nn", "F = nn.functional", f"torch.manual_seed({self.seed})"]
        names = [line.split(" = ")[0] for line in self.inputs]
        body = [f"    {line}" for line in self.statements]
        function = [f"def function({', '.join(names)}):", *body, f"    return {self.result}"]
        if self.module:
            function = [f"function = {self.module}"]
        return "\n".join([*head, *self.inputs, *function, f"inputs = [{', '.join(names)}]", ""])


def drawn(seed: int) -> Case:
    """Return the case of a seed."""
    chosen = random.Random(seed)
    family = chosen.choice(["smooth", "smooth", "steps", "index", "change", "int", "bool", "loss", "module", "module",
                            "attention", "special"])  # fmt: skip
    m, n = chosen.choice(SIZES), chosen.choice(SIZES)
    dtype = chosen.choice(["float32", "float32", "float16", "bfloat16"])
    if family == "module":
        text, shape = chosen.choice(MODULES)
        sizes = {"m": min(m, 33), "n": n, "k": chosen.choice([1, 3, 4, 7, 9])}
        count = 3 if "Multihead" in text else 2 if "Decoder" in text or "Bilinear" in text else 1
        inputs = tuple(f"{x} = torch.randn({shape.format(**sizes)})" for x in "xyz"[:count])
        mode = chosen.choice(["", "", ".eval()"])
        return Case(seed, "float32", inputs, (), "", text.format(**sizes) + mode, chosen.random() < 0.7)
    if family == "attention":
        t, s, h = chosen.choice([1, 5, 16]), chosen.choice([1, 5, 16, 33]), chosen.choice([1, 2])
        inputs = tuple(f"{x} = torch.randn(2, {h}, {r}, 8)" for x, r in (("q", t), ("k", s), ("v", s)))
        inputs += (f"mask = torch.where(torch.rand({t}, {s}) > 0.3, 0.0, -2.0)",)
        return Case(seed, "float32", inputs, (), chosen.choice(ATTENTION), "", chosen.random() < 0.5)
    value, dims = f"torch.randn({m}, {n})", f"m, n = {m}, {n}"
    if family == "special":
        dtype = "float32"
        special = "torch.tensor([1.0, -2.0, 0.0, -0.0, float('nan'), float('inf'), -float('inf'), 3.5])"
        value = f"{special}[torch.randint(8, ({m}, {n}))]"
    elif family == "int":
        dtype = chosen.choice(["int64", "int64", "int32", "int16", "int8"])
        value = f"torch.randint(-9, 10, ({m}, {n}))"
    elif family == "bool":
        dtype, value = "bool", f"torch.rand({m}, {n}) > 0.5"
    elif family == "loss":
        dtype = "float32"  # in 16 bits, eager rounds a sigmoid to 1, and its logarithm is that of 0
    layout = chosen.choice(["", "", "", ".t().contiguous().t()", ".repeat(1, 2)[:, ::2]"])
    cast = "" if dtype in ("float32", "bool") else f".to(torch.{dtype})"
    inputs = tuple(f"{name} = ({value}){cast}{layout}" for name in "xy")
    inputs += (
        f"i = torch.randint({m}, ({m},))",
        f"j = torch.randint({n}, ({m}, {m})) if {m} < 70 else torch.randint({n}, (1, {m}))",
    )
    steps = chosen.randrange(1, 5)
    texts: list[str] = []
    if family == "smooth":
        texts = [chosen.choice(SMOOTH) for _ in range(steps)]
    elif family == "steps":
        texts = [chosen.choice(STEPS)]
    elif family == "index":
        texts = [chosen.choice(INDEXED), *(chosen.choice(SMOOTH) for _ in range(steps - 1))]
    elif family == "int":
        texts = [chosen.choice(INTEGERS) for _ in range(steps)]
    elif family == "bool":
        texts = [chosen.choice(BOOLEANS) for _ in range(steps)]
    elif family == "special":
        texts = [chosen.choice((*SMOOTH, *STEPS))]
    elif family == "loss":
        texts = [chosen.choice(SMOOTH) for _ in range(steps - 1)]
    statements: tuple[str, ...] = (dims, *(f"x = {text}" for text in texts))
    result, gradient = "x", False
    if family == "change":
        statements = (dims, *(chosen.choice(CHANGES) for _ in range(steps)))
        result = chosen.choice(["x", "x * 2", "x.sum()"])
    elif family == "loss":
        result, gradient = chosen.choice(LOSSES), True
    elif family in ("smooth", "index"):
        # Inductor does not round to 16 bits between operators, on a GPU neither: a kink may be on the other side.
        gradient = chosen.random() < 0.6 and (dtype == "float32" or len(texts) == 1)
    return Case(seed, dtype, inputs, statements, result, "", gradient)


def _run(source: str, has_gradient: bool, compile_function: Callable[[Any], Any]) -> list[Any]:
    """Return outputs, inputs after the call, gradients and buffers."""
    import torch

    names: dict[str, Any] = {}
    exec(source, names)
    function, inputs = names["function"], names["inputs"]
    given = [x.clone(memory_format=torch.preserve_format) for x in inputs]
    if has_gradient:
        given = [x.requires_grad_(x.is_floating_point()) for x in given]
    with torch.set_grad_enabled(has_gradient):
        out = compile_function(function)(*given)
    found = [x for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
    if has_gradient:
        floats = [x for x in found if x.requires_grad]
        sum(
            ((x.float() * torch.linspace(0.5, 1.5, x.numel()).view(x.shape)).sum() for x in floats), torch.zeros(())
        ).backward()
    parameters = list(function.named_parameters()) if isinstance(function, torch.nn.Module) else []
    buffers = list(function.named_buffers()) if isinstance(function, torch.nn.Module) else []
    return [
        *((f"output {k}", x.detach()) for k, x in enumerate(found)),
        *((f"input {k} after the call", x.detach()) for k, x in enumerate(given)),
        *((f"the gradient of input {k}", x.grad) for k, x in enumerate(given) if x.grad is not None),
        *((f"the gradient of {name}", x.grad) for name, x in parameters if x.grad is not None),
        *((f"buffer {name}", x) for name, x in buffers),
    ]


def difference(found: Any, expected: Any, room: float, least: float) -> str:
    """Return how a tensor differs from eager's by more than `room` of its largest element or `least`, or nothing."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {tuple(found.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not found.numel():
        return ""
    if not expected.is_floating_point():
        wrong = int((found != expected).sum())
        return (
            f"{wrong} of {found.numel()} elements differ: {found.tolist()} instead of {expected.tolist()}"[:300]
            if wrong
            else ""
        )
    a, b = found.double(), expected.double()
    if not a.isnan().equal(b.isnan()):
        return f"NaN differs: {found.flatten()[:8].tolist()} instead of {expected.flatten()[:8].tolist()}"
    if not (a.isinf() == b.isinf()).all() or not (a[a.isinf()] == b[b.isinf()]).all():
        return f"infinity differs: {found.flatten()[:8].tolist()} instead of {expected.flatten()[:8].tolist()}"
    keep = a.isfinite()
    if not keep.any():
        return ""
    worst, scale = (a - b)[keep].abs().max().item(), b[keep].abs().max().item()
    if worst <= room * max(scale, least):
        return ""
    shown = f"{found.flatten()[:8].tolist()} instead of {expected.flatten()[:8].tolist()}"
    return f"off by {worst:.3g} of {scale:.3g}: {shown}"


def fault(case: Case) -> tuple[str, str]:
    """Return ("", "") for a case that agrees, else what kind of fault it has, and which."""
    import torch

    import kernbench as kb

    torch._dynamo.reset()
    try:
        expected = _run(case.source, case.has_gradient, lambda function: function)
    except Exception as error:  # noqa: BLE001 : what eager refuses
        return "eager", f"{type(error).__name__}: {error}"
    try:
        found = _run(case.source, case.has_gradient, lambda function: kb.torch.compile(function, MACHINE))
    except ArgumentError as error:
        return "refused", str(error)
    except Exception as error:  # noqa: BLE001 : a fault
        last = traceback.extract_tb(error.__traceback__)[-1]
        return "error", f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"
    room = ROOM.get(case.dtype, 1e-5)
    if [name for name, _ in found] != [name for name, _ in expected]:
        return "differs", f"{[name for name, _ in found]} instead of {[name for name, _ in expected]}"
    for (name, a), (_, b) in zip(found, expected, strict=True):
        # A gradient that is 0 exactly is the difference of terms near 1.
        text = difference(a, b, *((3 * room, 0.5) if "gradient" in name else (room, 0.05)))
        if text:
            return "differs", f"{name}: {text}"
    return "", ""


def smallest(case: Case, kind: str) -> Case:
    """Return the case with fewer statements that has a fault of the same kind."""
    tries = 0
    for statement in case.statements[1:]:
        fewer = tuple(s for s in case.statements if s is not statement)
        if len(fewer) < len(case.statements) and tries < SHRINKS and len(fewer) > 1:
            tries += 1
            shorter = replace(case, statements=fewer)
            if fault(shorter)[0] == kind:
                case = shorter
    return case


def run(seeds: range, _: Path) -> Report:
    """Compare cases; a refusal by name is noted."""
    report = Report("models")
    if find_spec("torch") is None or find_spec("triton") is None:
        report.tried = len(seeds)
        report.count("left out without PyTorch")
        return report
    for seed in seeds:
        report.tried += 1
        case = drawn(seed)
        with warnings.catch_warnings(action="ignore"):  # torch's own
            kind, text = fault(case)
            if kind in ("error", "differs"):
                case = smallest(case, kind)
                report.failed(seed, f"{fault(case)[1] or text}\n{case.source}")
        if kind in ("eager", "refused"):
            report.count("that eager refuses" if kind == "eager" else "refused by name")
    return report
