"""Run a bench from Python, by its name or as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.limits import Limits
from kernbench.topology.builder import Machine
from kernbench.triton_emu.runner import check_plain


def run(
    bench: str | Callable[[RuntimeContext], object],
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    *,
    data: bool = False,
    log: str = "operation",
    device: DeviceSelector | str | None = None,
    limits: Limits | Mapping[str, float] | None = None,
) -> BenchResult:
    """Run a bench and return what came of it.

    Parameters
    ----------
    bench : str or callable
        A name (see `kernbench list benches`), a path "pkg.mod:run", or a function of the torch-like namespace.
    machine : Machine, path, mapping, optional
        As for `kb.load`.
    data : bool
        Compute values, too, so that the bench checks them.
    log : str
        What the result can tell: "off", "operation" or "tile".
    device : DeviceSelector or str, optional
        "all" or "sip:N": the device that is current at first.
    limits : Limits or mapping, optional
        How much the run may take, as for `kb.session`.

    Raises
    ------
    TypeError
        If the bench is a generator or a coroutine.
    """
    found = resolve(bench) if isinstance(bench, str) else bench
    check_plain(found, "bench")
    return run_bench(
        topology=machine,
        bench_fn=found,
        device=device,
        data=data,
        log=log,
        limits=limits,
    )
