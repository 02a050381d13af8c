"""PyTorch models on a simulated machine: `kb.torch.compile`, or `torch.compile(model, backend="kernbench")`."""

from typing import Any

from kernbench.errors import MissingModuleError

_WHERE = {
    "backend": "kernbench.torch._compile",
    "compile": "kernbench.torch._compile",
    "program": "kernbench.torch._program",
    "result": "kernbench.torch._compile",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'kernbench.torch' has no attribute {name!r}; known: {', '.join(_WHERE)}")
    from importlib import import_module

    try:
        module = import_module(_WHERE[name])
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise MissingModuleError(f"kb.torch.{name} needs PyTorch: pip install 'kernbench[torch]'") from error
    return getattr(module, name)
