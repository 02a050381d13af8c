"""`kb.torch.program`: the call of a model as a program, for any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import no_grad

from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice
from kernbench.torch._result import ModelResult

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


class _Program:
    """A call of a model as a program; made by `kb.torch.program`."""

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = model, args, kwargs
        self._made: tuple[ModelDevice, CompiledModel] | None = None
        self.__name__ = getattr(model, "__name__", type(model).__name__)
        self.__doc__ = f"The PyTorch model {self.__name__}, called once."

    def __call__(self, torch: RuntimeContext, graph: bool = False) -> ModelResult:
        model, args, kwargs = self._given
        if self._made is None:
            device = ModelDevice(torch)
            self._made = device, CompiledModel(model, device, {})
        device, compiled = self._made
        device.use(torch)
        device.graph = graph
        with no_grad():
            compiled(*args, **kwargs)
        return compiled.result

    def __reduce__(self) -> tuple[Any, ...]:
        return _Program, self._given


def program(model: Any, *args: Any, **kwargs: Any) -> _Program:
    """Return the call of a model as a program, for `kb.run`, `kb.sweep` and `kb.explore`.

    The model is compiled at the first run, and reused on other machines. Gradients are not computed.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Unmodified, on the CPU.
    *args, **kwargs : object
        Example inputs of the model: tensors on the CPU, of the shapes to simulate.

    Returns
    -------
    callable
        `program(torch, graph=False)`, which returns the time by module. With `graph`, the launches of the call are sent
        to the device as one graph.

    Examples
    --------
    >>> import kernbench as kb, torch  # doctest: +SKIP
    >>> call = kb.torch.program(torch.nn.Linear(64, 64).half(), torch.randn(8, 64).half())  # doctest: +SKIP
    >>> kb.explore("preset:small", call)  # doctest: +SKIP
    >>> kb.sweep("preset:small", call, {"cube.hbm.channel_bw_gbs": [16, 32]})  # doctest: +SKIP
    """
    return _Program(model, args, kwargs)
