"""`kb.triton.program`: the launch of a kernel as a program, for any machine."""

from __future__ import annotations

import inspect
from inspect import Parameter, Signature
from typing import Any, Literal, NoReturn

from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton._arguments import known_names, unwrapped
from kernbench.triton._grid import ASSIGNMENTS
from kernbench.triton._session import On
from kernbench.triton._translate import raw


class _Program:
    """A kernel launch as a program; made by `kb.triton.program`."""

    def __init__(self, kernel: Any, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function = raw(kernel)
        own = inspect.signature(function)
        given = own.bind_partial(*args, **{k: v for k, v in kwargs.items() if k in own.parameters}).arguments
        self._launch = kernel, grid, kwargs | {k: unwrapped(v) for k, v in given.items()}
        self.__name__, self.__doc__ = function.__name__, inspect.getdoc(function)
        self.__signature__ = Signature([
            Parameter("torch", Parameter.POSITIONAL_OR_KEYWORD),
            Parameter("placement", Parameter.KEYWORD_ONLY, default=ASSIGNMENTS[0], annotation=Literal[ASSIGNMENTS]),
            *(
                Parameter(k, Parameter.KEYWORD_ONLY, default=unwrapped(v))
                for k, v in given.items()
                if k in known_names(own) and isinstance(unwrapped(v), (int, float, str))
            ),
        ])  # fmt: skip

    def __call__(self, torch: RuntimeContext, placement: str = ASSIGNMENTS[0], **constants: Any) -> None:
        """Launch the kernel on the machine of a session."""
        kernel, grid, arguments = self._launch
        with On(torch, placement) as on:
            on.run(kernel, (), arguments | constants, grid)

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            f"{self.__name__}: a Triton kernel cannot be given to another process; call kb.run for each point, or "
            "kb.triton.autotune"
        )


def program(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> _Program:
    """Return the launch of a kernel as a program, for `kb.run` and `kb.explore`.

    Parameters
    ----------
    kernel : function
        Decorated with `@triton.jit`, and perhaps other decorators.
    grid : tuple of int or callable
        As in `kernel[grid](...)`.
    *args, **kwargs : object
        Arguments of the kernel: numpy arrays or torch tensors of the CPU, and numbers. With values (`data=True`), each
        run writes to these arrays.

    Returns
    -------
    callable
        `program(torch, placement="round-robin", **constants)`. The constants are the kernel's own `tl.constexpr`
        parameters, by default as given here: fields of the explorer's form.

    Raises
    ------
    TypeError
        If the arguments do not fit the kernel.

    Examples
    --------
    >>> import kernbench as kb
    >>> kernels = kb.triton.load("kernels.py")  # doctest: +SKIP
    >>> grid = lambda meta: (-(-meta["n"] // meta["BLOCK"]),)
    >>> add = kb.triton.program(kernels.add, grid, x, y, out, n, BLOCK=128)  # doctest: +SKIP
    >>> kb.explore("preset:small", add)  # doctest: +SKIP
    >>> kb.run(partial(add, BLOCK=256), "preset:small")  # doctest: +SKIP
    """
    return _Program(kernel, grid, args, kwargs)
