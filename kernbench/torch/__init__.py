"""PyTorch models on a simulated machine: `kb.torch.compile`, or `torch.compile(model, backend="kernbench")`."""

from typing import Any

from kernbench._names import found
from kernbench.errors import MissingModuleError

_WHERE = {
    "Routing": "kernbench.torch._experts",
    "Stages": "kernbench.torch._stages",
    "backend": "kernbench.torch._compile",
    "compile": "kernbench.torch._compile",
    "program": "kernbench.torch._program",
    "result": "kernbench.torch._compile",
}


def __getattr__(name: str) -> Any:
    """Return a public function of `kernbench.torch`, imported when first used."""
    try:
        return found(__name__, _WHERE, name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise MissingModuleError(f"kb.torch.{name} needs PyTorch: pip install 'kernbench[torch]'") from error
