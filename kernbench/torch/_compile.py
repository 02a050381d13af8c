"""`kb.torch.compile`, and the backend of `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError, Unsupported, UserError

from kernbench._registry import hint
from kernbench.errors import ArgumentError, KernbenchError, StateError
from kernbench.ops.matmul import PlacementLike
from kernbench.torch import _inductor as inductor
from kernbench.torch._device import ModelDevice
from kernbench.torch._experts import Routing
from kernbench.torch._parallel import EXPERT_PARTS, EXPERTS, Ranks
from kernbench.torch._result import ModelResult


def _place(error: Unsupported | TorchRuntimeError | UserError) -> str:
    """Return dynamo's report of a graph break: the innermost line of the user's code, and the reason."""
    text = str(error).strip()
    frames = [f"{frame.filename}:{frame.lineno}" for frame in getattr(error, "real_stack", None) or ()]
    return f"{frames[-1]}: {text.splitlines()[0]}" if frames else text


@contextmanager
def _whole() -> Iterator[None]:
    """Make dynamo trace the operators inside torch's recurrent layers, and inside its encoder."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch._dynamo.config.patch(allow_rnn=True):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class CompiledModel:
    """A model on a simulated machine: call it as the model; it returns torch's outputs."""

    def __init__(self, model: Any, device: ModelDevice, plan: Mapping[str, Any]) -> None:
        self.model, self._device = model, device
        of_experts = {EXPERTS, EXPERT_PARTS}.intersection(map(str, plan.values()))
        self._ranks = Ranks(model, device.tp, plan) if device.tp > 1 or of_experts else None
        own = model
        if self._ranks is not None:
            device.ranks(self._ranks.models, of_experts)
            self._ranks.collect(device.gradients)
            own = self._ranks.models[0]
        # Dynamo counts compilations per code object, shared by all models of a class: by default, the ninth fails.
        limit = torch._dynamo.config.accumulated_recompile_limit
        self._own = own
        self._call = torch.compile(own, backend=device.compile, fullgraph=True, dynamic=False, recompile_limit=limit)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._ranks is not None:
            self._ranks.follow()
        try:
            with _whole():
                return self._call(*args, **kwargs)
        except (Unsupported, TorchRuntimeError, UserError) as error:
            if isinstance(error, TorchRuntimeError) or "Observed exception" in str(error):
                self._own(*args, **kwargs)  # raises the error that the model raises without a compiler
            raise ArgumentError(f"the model cannot be compiled as one graph: {_place(error)}") from error
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, KernbenchError):  # its message is complete; dynamo adds pages
                raise error.inner_exception from None
            raise

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self._own.parameters())

    @property
    def result(self) -> ModelResult:
        """The time of the last call by module, and its limits; with the backward pass that followed."""
        return ModelResult.of(self._device)

    def close(self) -> None:
        self._device.close()


def compile(
    model: Any, machine: Any = "preset:default", *, data: bool = True, graph: bool = False,
    placement: Mapping[str, PlacementLike] | None = None, tp: int = 1, plan: Mapping[str, Any] | None = None,
    fuse: bool = False, routing: Routing | None = None,
) -> CompiledModel:  # fmt: skip
    """Compile a model for a simulated machine.

    Inductor turns the model into Triton kernels, which run on the PEs; matrix products, convolutions and attention run
    as native kernels. Weights are placed once, activations stay on the device, and launches are queued.

    Parameters
    ----------
    model : torch.nn.Module or callable
        Unmodified, on the CPU.
    machine : Machine, str, Path, mapping or session
        As for `kb.load`, or an open session, which also says whether values are computed.
    data : bool
        Whether values are computed. Times are the same; without, outputs are NaN, and model and inputs may be made
        inside of `torch._subclasses.FakeTensorMode`, so that there are no weights either.
    graph : bool
        Whether the launches and collectives of a call are sent to each device as one graph.
    placement : mapping, optional
        Placement of matrix products by module path, "" for the model itself or a function: "rows", "columns",
        "2-D", "2-D turned", "split-K", "split-K in cubes", "replicated", a `DPPolicy`, or "best": the fastest of
        those with the lowest estimates, simulated once and cached on disk. Other products have the
        placement with the lowest estimate.
    tp : int
        Number of SIPs over which the model is distributed: each has its part of the weights in `plan`.
    plan : mapping, optional
        With `tp`, by path of a linear layer, in which `*` matches any part: "columns" or "rows", or a style of
        DTensor. The results of a row-parallel layer are summed by an all-reduce. Without `data`, one rank is
        simulated, and collectives over all: the ranks do the same at the same time. "experts", for a module as
        transformers writes it (`gate_up_proj`, `down_proj`, SiLU): each SIP has some of the experts and some of the
        tokens. The host reads the experts of the tokens; rows are sent to their experts and back by all-to-all with
        uneven parts, and the results of all tokens are gathered. All ranks are simulated. With "moe_tp_experts", each
        SIP has a part of each expert instead, and results are summed. Experts have no gradients.
    fuse : bool
        Whether products of one matrix with several weights are one launch, such as those for q, k and v; without
        gradients. The launch belongs to the module that they share.
    routing : Routing, optional
        With experts in the plan: which experts the tokens have without `data`, and how many rows an expert takes.

    Returns
    -------
    CompiledModel
        Call it as the model; `result` then says where the time goes.

    Raises
    ------
    KernbenchError
        At the first call, if the model uses what the machine does not have: with module and operator.

    Examples
    --------
    >>> import kernbench as kb, torch  # doctest: +SKIP
    >>> compiled = kb.torch.compile(torch.nn.Linear(64, 64).half(), "preset:small")  # doctest: +SKIP
    >>> y = compiled(torch.randn(8, 64).half())  # doctest: +SKIP
    >>> compiled.result.why()  # doctest: +SKIP
    """
    return CompiledModel(model, ModelDevice(machine, data, graph, placement, tp, fuse, routing), plan or {})


_OPTIONS = ("machine", "data", "graph", "placement", "fuse")
_devices: dict[str, ModelDevice] = {}


def backend(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Any:
    """Compile a graph for `torch.compile(model, backend="kernbench", options={...})`.

    Parameters
    ----------
    gm : torch.fx.GraphModule
        The graph that dynamo captured.
    inputs : sequence
        Its example inputs.
    options : mapping, optional
        `machine`, `data`, `graph`, `placement` and `fuse`, as for `compile`.
    **others
        Rejected: `mode` is for other backends.

    Raises
    ------
    ArgumentError
        If an option is unknown, or needs the model: `tp`, `plan` and `routing`.
    """
    given = {**(options or {}), **others}
    for name in given:
        if name in ("tp", "plan", "routing"):
            raise ArgumentError(f"options: {name!r} needs the whole model: kb.torch.compile(model, {name}=...)")
        if name not in _OPTIONS:
            raise ArgumentError(f"options: {name!r} is unknown; {hint(name, _OPTIONS)}")
    why = inductor.graph_break(gm)
    if why:
        raise ArgumentError(f"the model cannot be compiled as one graph: {why}; what follows would run on the host")
    key = repr(sorted(given.items(), key=str))
    if key not in _devices:
        _devices[key] = ModelDevice(**given)
    _devices["last"] = _devices[key]
    return _devices[key].compile(gm, inputs)


def result() -> ModelResult:
    """Return the result of the last call of a model that `torch.compile(model, backend="kernbench")` made."""
    if "last" not in _devices:
        raise StateError('no model was compiled: call torch.compile(model, backend="kernbench") first')
    return ModelResult.of(_devices["last"])
