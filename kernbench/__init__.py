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

from kernbench import _engine_selection  # noqa: F401 - selects the engine, before any of its modules is imported
from kernbench._names import found as _found

if TYPE_CHECKING:
    from kernbench import ccl, errors, ops, pipeline, serving, torch, tp, triton
    from kernbench.analysis.compare import compare
    from kernbench.analysis.result import Result
    from kernbench.benches.registry import run
    from kernbench.chakra import read_chakra
    from kernbench.notebook._picture import picture
    from kernbench.notebook._view import explore
    from kernbench.policy.placement.dp import DPPolicy
    from kernbench.runtime_api.context import session
    from kernbench.runtime_api.tensor import Tensor
    from kernbench.sim_engine._limits import Limits
    from kernbench.studies.calibration import calibrate
    from kernbench.studies.choice import gemm
    from kernbench.studies.fidelity import fidelity
    from kernbench.studies.load_curve import load_curve
    from kernbench.studies.study import Study
    from kernbench.sweeps._saved import read
    from kernbench.sweeps._sweep import sweep
    from kernbench.topology.builder import Machine
    from kernbench.topology.builder import resolve_topology as load
    from kernbench.triton_emu.tl_context import TLContext as tl  # noqa: N813 - what a kernel calls it
    from kernbench.viz.report import report

__all__ = [
    "DPPolicy", "Limits", "Machine", "Result", "Study", "Tensor", "calibrate", "ccl", "compare", "errors", "explore",
    "fidelity", "gemm", "load", "load_curve", "ops", "picture", "pipeline", "read", "read_chakra", "report", "run",
    "serving", "session", "sweep", "tl", "torch", "tp", "triton",
]  # fmt: skip

_WHERE = {
    "DPPolicy": "kernbench.policy.placement.dp",
    "Limits": "kernbench.sim_engine._limits",
    "Machine": "kernbench.topology.builder",
    "Result": "kernbench.analysis.result",
    "Study": "kernbench.studies.study",
    "Tensor": "kernbench.runtime_api.tensor",
    "calibrate": "kernbench.studies.calibration",
    "ccl": "",
    "compare": "kernbench.analysis.compare",
    "errors": "",
    "explore": "kernbench.notebook._view",
    "fidelity": "kernbench.studies.fidelity",
    "gemm": "kernbench.studies.choice",
    "load": "kernbench.topology.builder:resolve_topology",
    "load_curve": "kernbench.studies.load_curve",
    "ops": "",
    "picture": "kernbench.notebook._picture",
    "pipeline": "",
    "read": "kernbench.sweeps._saved",
    "read_chakra": "kernbench.chakra",
    "report": "kernbench.viz.report",
    "run": "kernbench.benches.registry",
    "serving": "",
    "session": "kernbench.runtime_api.context",
    "sweep": "kernbench.sweeps._sweep",
    "tl": "kernbench.triton_emu.tl_context:TLContext",
    "torch": "",
    "tp": "",
    "triton": "",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kernbench")
    value = _found(__name__, _WHERE, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
