"""Run one bench on one machine, from a fresh engine to a result."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError, StateError, VerificationError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.limits import Limits, limited
from kernbench.topology.builder import Machine, resolve_topology

OK, FAILED, NO_REQUESTS = "OK", "FAILED", "NO_REQUESTS"
PASSED, WRONG, NOT_CHECKED = "PASSED", "FAILED", "NOT_CHECKED"


@dataclass(frozen=True, slots=True, repr=False)
class BenchResult:
    """What came of a bench.

    Attributes
    ----------
    name : str
        The bench.
    completion : str
        "OK"; "FAILED": it ended with `error`, be it a number that is wrong; "NO_REQUESTS": it asked nothing of the
        machine.
    correctness : str
        "PASSED", "FAILED", or "NOT_CHECKED": without data, or the bench compared nothing.
    result : Result
        Times; of a bench that failed, up to there.
    error : KernbenchError or None
        Why it failed.
    """

    name: str
    completion: str
    correctness: str
    result: Result
    error: KernbenchError | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and no number was wrong."""
        return self.completion == OK

    def __repr__(self) -> str:
        return f"{self._headline()}\n{self.result!r}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self._headline())}</b></p>{self.result._repr_html_()}"

    def _headline(self) -> str:
        error = f": {self.error}" if self.error else ""
        return f"{self.name}: {self.completion}, numbers {self.correctness}{error}"


def run_bench(
    *,
    topology: Machine | str | Path | Mapping[str, Any] | None,
    bench_fn: Callable[[RuntimeContext], object],
    device: DeviceSelector | str | None = None,
    engine_factory: Callable[[Machine], GraphEngine] | None = None,
    data: bool = False,
    log: str = "operation",
    limits: Limits | Mapping[str, float] | None = None,
) -> BenchResult:
    """Run `bench_fn(torch)` and say what came of it.

    Parameters
    ----------
    topology : Machine, path, mapping or None
        As for `kb.load`.
    bench_fn : callable
        A bench, or any function of the namespace. One that is registered as a milestone may ask nothing of this
        machine: its study makes its own.
    device : DeviceSelector or str, optional
        "all" or "sip:N": the device that is current at first.
    engine_factory : callable, optional
        Makes the engine of a machine, for one run; without it `data` and `log` say what to make.
    data : bool
        Whether values are moved and computed, so that benches check their numbers.
    log : str
        Level of the op log.
    limits : Limits or mapping, optional
        How much the run may take, as for `kb.session`; those that it opens besides, too.

    Raises
    ------
    Exception
        Whatever the bench raises that is no KernbenchError: a bug in it, not an outcome.
    """
    machine = resolve_topology(topology)
    selector = resolve_device(device, machine.config.n_sips)
    engine = engine_factory(machine) if engine_factory is not None else GraphEngine(machine, data, log=log)
    name = str(getattr(bench_fn, "name", getattr(bench_fn, "__name__", "bench")))
    limits = Limits.of(limits)
    torch = RuntimeContext(engine, selector, correlation_id=name, limits=limits)
    error: KernbenchError | None = None
    try:
        with limited(limits), torch:
            bench_fn(torch)
    except KernbenchError as caught:
        error = caught
    completion = OK if error is None else FAILED
    correctness = PASSED if torch.checks and completion == OK else NOT_CHECKED
    if isinstance(error, VerificationError):
        correctness = WRONG
    if completion == OK and not torch.requests and not getattr(bench_fn, "is_milestone", False):
        completion = NO_REQUESTS
        error = StateError(f"{name}: NO_REQUESTS: the bench launched nothing and copied nothing; launch a kernel")
    return BenchResult(name, completion, correctness, torch.result, error)
