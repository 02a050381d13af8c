"""Small models, and how their outputs are judged."""

from __future__ import annotations

import torch


class Mlp(torch.nn.Module):
    """RMSNorm and SwiGLU, with a bias."""

    def __init__(self, width: int = 64, inner: int = 128) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest error, relative to the largest element."""
    return ((found.float() - exact.float()).abs().max() / exact.float().abs().max()).item()


def errors(model, compile_model, *inputs) -> tuple[float, float]:
    """Return the error of the machine's f16 outputs and of eager f16, both against eager f32."""
    with torch.no_grad():
        exact = model.float()(*inputs)
        half = [x.half() if x.is_floating_point() else x for x in inputs]
        eager = model.half()(*half)
        found = compile_model(model)(*half)
    return worst(found, exact), worst(eager, exact)


def leaves(x: object) -> list[torch.Tensor]:
    """Return the tensors in what a model gives."""
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]
