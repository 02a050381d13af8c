"""Programs made of a kernel, of a module of `kernbench.tp`, or of a part of a step of a served model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from kernbench._dtypes import as_dtype
from kernbench.benches._parameters import ShapeText
from kernbench.errors import ConfigError, MissingModuleError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.serving._attention import attend_batch
from kernbench.serving._models import fields_of, heads_of
from kernbench.serving._parts import lognormal_contexts
from kernbench.tp import parallel_state

SHAPE = "64x64"


def is_kernel(given: Callable[..., object]) -> bool:
    return "tl" in inspect.signature(given).parameters


def is_module(given: Callable[..., object]) -> bool:
    return inspect.isclass(given) and callable(getattr(given, "forward", None))


def tensors_of(function: Callable[..., object]) -> list[str]:
    """Parameters that get tensors: those without a default whose annotation is no plain value."""
    found = inspect.signature(function).parameters.values()
    return [
        x.name for x in found
        if x.default is x.empty and x.name not in ("self", "tl", "config") and x.annotation not in _PLAIN
        and x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD, x.KEYWORD_ONLY)
    ]  # fmt: skip


_PLAIN = {kind for plain in (int, float, bool, str) for kind in (plain, plain.__name__)}


def program_of(given: Callable[..., object]) -> Callable[..., object]:
    """Return the program that runs a kernel or a module once, on tensors of random values.

    Parameters
    ----------
    given : callable
        A kernel: a function with a parameter `tl`; or a class of modules: with a method `forward`.

    Returns
    -------
    callable
        `program(torch, **parameters)`. The parameters are the shape of each tensor, as "64x64", the other parameters
        of the kernel or the class, and `dtype`; of a kernel `cubes` and `pes`: how many of a SIP run it, each with its
        rows of the tensors; of a module `ranks`, a SIP each.

    Raises
    ------
    ConfigError
        If it is neither.

    Examples
    --------
    >>> from functools import partial
    >>> import kernbench as kb
    >>> def double(x, y, n: int = 64, *, tl):
    ...     tl.store(y, tl.load(x, shape=(n, n), dtype="f16") * 2)
    >>> program = partial(program_of(double), x="64x64", y="64x64")
    >>> kb.run(program, "preset:small").result.launches[0].name
    'double'
    """
    if is_module(given):
        return lambda torch, **values: run_module(torch, given, **values)
    if is_kernel(given):
        return lambda torch, **values: _run_kernel(torch, given, **values)
    raise ConfigError(f"{given!r} is neither a kernel, with a parameter tl, nor a class with a method forward")


def step_part(
    torch: RuntimeContext,
    model: Literal["llama3-8b", "llama3-70b", "mixtral-8x7b"] = "llama3-8b",
    part: Annotated[
        Literal["attention", "layer", "head"], "of a step; a layer and the head need PyTorch"
    ] = "attention",
    tp: Annotated[int, "SIPs over which the model is distributed"] = 1,
    requests: Annotated[int, "that get their next token"] = 16,
    context: Annotated[int, "tokens of a request, on average"] = 1024,
) -> None:
    """Run a part of a decode step of a served model, as kb.serving.steps simulates it: of one SIP, with collectives."""
    fields = fields_of(model)
    if part == "attention":
        attend_batch(torch, 1, lognormal_contexts(requests, context), **heads_of(fields, tp))
    elif all(map(find_spec, ("torch", "transformers"))):
        from kernbench.torch._serving import run_part

        run_part(torch, part, fields, tp, requests)
    else:
        raise MissingModuleError(f"part = {part!r} needs PyTorch: pip install 'kernbench[torch,frontends]'")


def _run_kernel(
    torch: RuntimeContext, kernel: Callable[..., object], *, dtype: str = "f16", cubes: int = 1, pes: int = 1,
    **values: Any,
) -> None:  # fmt: skip
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    shared = {"dtype": dtype, "cubes": cubes, "pes": pes}
    args = []
    tensors = tensors_of(kernel)
    for name, parameter in inspect.signature(kernel).parameters.items():
        if name in tensors:
            args.append(_random(torch, name, values[name], dtype, dp))
        elif name != "tl":
            args.append({name: parameter.default, **shared, **values}[name])
    torch.launch(getattr(kernel, "__name__", "kernel"), kernel, *args)
    torch.ahbm.synchronize()


def run_module(
    torch: RuntimeContext, module: Callable[..., Any], *, dtype: str = "f16", ranks: int = 1, **values: Any
) -> None:
    inputs = tensors_of(module.forward)  # type: ignore[attr-defined]

    def rank_program(rank: int) -> None:
        torch.distributed.init_process_group("ahbm")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks, torch=torch)
        made = module(**{name: value for name, value in values.items() if name not in inputs})
        made.forward(*(_random(torch, name, values[name], dtype) for name in inputs))
        torch.ahbm.synchronize(rank)
        parallel_state.destroy_model_parallel()

    torch.multiprocessing.spawn(rank_program, nprocs=ranks)


def _random(torch: RuntimeContext, name: str, shape: str, dtype: str, dp: DPPolicy | None = None) -> Any:
    where = {"dp": dp} if dp else {}
    return torch.randn(*ShapeText(shape).sizes, dtype=as_dtype(dtype), device="ahbm", name=name, **where)
