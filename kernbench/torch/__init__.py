"""PyTorch models on a simulated machine: `kb.torch.compile`, or `torch.compile(model, backend="kernbench")`."""

from typing import Any

_WHERE = {
    "backend": "kernbench.torch._compile",
    "compile": "kernbench.torch._compile",
    "result": "kernbench.torch._compile",
}


def __getattr__(name: str) -> Any:
    """Return a public function of `kernbench.torch`, imported when first used."""
    if name not in _WHERE:
        raise AttributeError(f"module 'kernbench.torch' has no attribute {name!r}; known: {', '.join(_WHERE)}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
