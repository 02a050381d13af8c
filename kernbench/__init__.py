"""kernbench: simulate AI accelerators from a notebook.

    import kernbench as kb
    machine = kb.load()
    with kb.session(machine, data=True) as torch:
        ...
    torch.result

Names are imported when first used, so that `import kernbench` costs nothing.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes milliseconds to import
import os
import sys

if (
    # The command, not a user's program: `orig_argv` is what Python was asked to run and, last, the arguments.
    os.path.basename(sys.orig_argv[-len(sys.argv) :][0]) in {"kernbench", "-mkernbench", "kernbench.exe"}  # noqa: PTH119
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
):
    # Until `handle_interrupts`, Ctrl-C ends the process silently.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from typing import TYPE_CHECKING, Any

from kernbench import build as _build  # noqa: F401 - selects the engine, before any of its modules is imported

if TYPE_CHECKING:
    from kernbench import ccl, torch, triton
    from kernbench.analysis.compare import compare
    from kernbench.benches.registry import run
    from kernbench.notebook._picture import picture
    from kernbench.notebook._view import explore
    from kernbench.policy.placement.dp import DPPolicy
    from kernbench.runtime_api.context import session
    from kernbench.sim_engine._limits import Limits
    from kernbench.studies.best import gemm
    from kernbench.studies.fidelity import fidelity
    from kernbench.studies.load_curve import load_curve
    from kernbench.sweeps._saved import read
    from kernbench.sweeps._sweep import sweep
    from kernbench.topology.builder import resolve_topology as load

__all__ = [
    "DPPolicy", "Limits", "ccl", "compare", "explore", "fidelity", "gemm", "load", "load_curve", "picture", "read",
    "run", "session", "sweep", "torch", "triton",
]  # fmt: skip

_WHERE = {
    "DPPolicy": "kernbench.policy.placement.dp:DPPolicy",
    "Limits": "kernbench.sim_engine._limits:Limits",
    "ccl": "kernbench.ccl",
    "compare": "kernbench.analysis.compare:compare",
    "explore": "kernbench.notebook._view:explore",
    "fidelity": "kernbench.studies.fidelity:fidelity",
    "gemm": "kernbench.studies.best:gemm",
    "load_curve": "kernbench.studies.load_curve:load_curve",
    "load": "kernbench.topology.builder:resolve_topology",
    "picture": "kernbench.notebook._picture:picture",
    "read": "kernbench.sweeps._saved:read",
    "run": "kernbench.benches.registry:run",
    "session": "kernbench.runtime_api.context:session",
    "sweep": "kernbench.sweeps._sweep:sweep",
    "torch": "kernbench.torch",
    "triton": "kernbench.triton",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'kernbench' has no attribute {name!r}; known: {', '.join(__all__)}")
    from importlib import import_module
    from operator import attrgetter

    module, _, attribute = _WHERE[name].partition(":")
    found = import_module(module)
    globals()[name] = value = attrgetter(attribute)(found) if attribute else found
    return value


def __dir__() -> list[str]:
    return __all__
