"""A decoder layer has numpy's values on every preset."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.config import presets

TOKENS, HEADS, HEAD_DIM = 20, 2, 16
HIDDEN = HEADS * HEAD_DIM
rng = np.random.default_rng(0)
X = rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)
WEIGHTS = {name: (rng.standard_normal((HIDDEN, HIDDEN)) / 4).astype(np.float32) for name in ("qkv", "o", "up", "down")}


def layer(torch, x, w):
    """Attention with equal queries, keys and values, then an MLP, each behind a norm and with a residual."""
    functional = torch.nn.functional
    heads = functional.linear(functional.rms_norm(x, HIDDEN), w["qkv"]).view(TOKENS, HEADS, HEAD_DIM).transpose(0, 1)
    y = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    x = x + functional.linear(torch.cat([*y], dim=1), w["o"])
    y = functional.linear(functional.rms_norm(x, HIDDEN), w["up"])
    return x + functional.linear(functional.silu(y), w["down"])


def expected(x, w):
    def normed(x):
        return x / np.sqrt((x * x).mean(1, keepdims=True))

    heads = (normed(x) @ w["qkv"].T).reshape(TOKENS, HEADS, HEAD_DIM).transpose(1, 0, 2)
    scores = heads @ heads.transpose(0, 2, 1) / HEAD_DIM**0.5
    shares = np.exp(np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf))
    y = shares / shares.sum(2, keepdims=True) @ heads
    x = x + y.transpose(1, 0, 2).reshape(TOKENS, HIDDEN) @ w["o"].T
    y = normed(x) @ w["up"].T
    return x + (y / (1 + np.exp(-y))) @ w["down"].T


@pytest.mark.parametrize("preset", presets())
def test_a_layer_has_its_values_on_every_preset(preset):
    machine = kb.load(f"preset:{preset}")
    if machine.config.cubes_per_sip > 1:  # estimates of placements take time for each PE
        machine = machine.with_({"sip.cube_mesh.w": 2 if preset == "default" else 1, "sip.cube_mesh.h": 1})
    with kb.session(machine, data=True, log="off") as torch:
        weights = {name: torch.tensor(values, device="ahbm") for name, values in WEIGHTS.items()}
        y = layer(torch, torch.tensor(X, device="ahbm"), weights)
        np.testing.assert_allclose(y.numpy(), expected(X, WEIGHTS), rtol=1e-4, atol=1e-4)
