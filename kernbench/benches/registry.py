"""The registry of benches: `@bench` adds one, `resolve` finds it."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from kernbench import compat
from kernbench._registry import hint
from kernbench.benches._parameters import ParameterValue, ProgramParameter, signature_parameters
from kernbench.errors import ConfigError
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine._limits import Limits
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.triton_emu._runner import check_plain

_Run = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Bench:
    name: str
    description: str
    function: _Run
    is_milestone: bool = False
    arguments: Mapping[str, ParameterValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_plain(self.function, "bench")

    def __call__(self, torch: RuntimeContext) -> object:
        return self.run(torch, **self.arguments)

    def run(self, torch: RuntimeContext, **options: object) -> object:
        return self.function(torch, **self.given(torch.engine.machine, options).arguments)

    @property
    def parameters(self) -> tuple[ProgramParameter, ...]:
        """The function's parameters that have a default; the environment may give another default."""
        found = []
        for each in signature_parameters(self.function):
            variable = compat.BENCH_VARIABLES.get(each.name, "")
            text = os.environ.get(variable)
            found.append(each if text is None else replace(each, default=_of_environment(each, variable, text)))
        return tuple(found)

    def given(self, machine: Machine, options: Mapping[str, object]) -> Bench:
        """Return the bench with a value of each parameter: that of `options`, else its default.

        A ConfigError if an option is no parameter or no value of it.
        """
        parameters = {each.name: each for each in self.parameters}
        for name in options:
            if name not in parameters:
                said = hint(name, parameters) if parameters else "it has none"
                raise ConfigError(f"bench {self.name}: {name} is no parameter of it; {said}")
        try:
            values = {
                name: each.parse(options[name], machine) if name in options else each.usual(machine)
                for name, each in parameters.items()
            }
        except ConfigError as error:
            raise ConfigError(f"bench {self.name}: {error}") from None
        return replace(self, arguments=values)


_benches: dict[str, Bench] = {}


def _of_environment(parameter: ProgramParameter, variable: str, text: str) -> ParameterValue:
    try:
        return parameter.parse(text, resolve_topology("preset:small"))
    except ConfigError as error:
        raise ConfigError(f"environment: {variable}: {error}") from None


def bench(name: str, description: str, *, milestone: bool = False) -> Callable[[_Run], _Run]:
    """Register the decorated function `run(torch)` as a bench.

    Its further parameters, which have a default, are options of `kernbench run NAME` and `kb.run`, and fields of the
    explorer. Their types are int, float, bool, str or a Literal of choices; `Annotated[int, "meaning"]` adds a help
    text.

    Parameters
    ----------
    name : str
        In kebab-case: words of lower-case letters and digits, joined by hyphens.
    description : str
        One line, for `kernbench list`.
    milestone : bool
        Whether it regenerates a milestone's report.

    Raises
    ------
    ConfigError
        If the name is not kebab-case, the description is empty, the name is taken, or a parameter has no such type or
        the name of one of `run`.
    TypeError
        If the function is a generator or a coroutine.

    Examples
    --------
    >>> @bench("my-bench", "Adds two vectors")
    ... def add(torch, n: int = 1024): ...
    >>> resolve("my_bench").parameters[0].default
    1024
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        kebab = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
        raise ConfigError(f'@bench: name = {name!r} is not in kebab-case; use for example "{kebab or "my-bench"}"')
    if not (description or "").strip():
        raise ConfigError(f"@bench: bench {name!r} has no description; give one line, which `kernbench list` shows")

    def register(given: _Run) -> _Run:
        known = _benches.get(name)
        if known is not None and _where(known.function) != _where(given):
            raise ConfigError(f"bench {name!r} is taken by {_where(known.function)}; give {_where(given)} another name")
        if taken := {each.name for each in signature_parameters(given)} & set(inspect.signature(run).parameters):
            raise ConfigError(f"bench {name!r}: {', '.join(sorted(taken))}: kb.run has this parameter; rename it")
        _benches[name] = Bench(name, description, given, milestone)
        return given

    return register


def resolve(name: str) -> Bench:
    """Return a bench by name, by number in `kernbench list`, or by the dotted path "pkg.mod:run"."""
    if ":" in name:
        return _imported(name)
    _load()
    if name.isdecimal():
        numbered = benches()
        if not 1 <= int(name) <= len(numbered):
            raise ConfigError(f"bench {name}: expected a number from 1 to {len(numbered)}, as `kernbench list` shows")
        return numbered[int(name) - 1]
    key = compat.BENCHES.get(_kebab(name), _kebab(name))
    if key not in _benches:
        raise ConfigError(f"bench {name!r} is unknown; {hint(key, sorted(_benches))}, or a path pkg.mod:run")
    return _benches[key]


def benches() -> list[Bench]:
    """Return all benches, by name: the order of the numbers in `kernbench list`."""
    _load()
    return [_benches[name] for name in sorted(_benches)]


def _load() -> None:
    """Import the package's benches, which register themselves."""
    import kernbench.benches as package

    for module in pkgutil.iter_modules(package.__path__):
        if module.name in ("registry", "_parameters"):
            continue
        name = importlib.import_module(f"{package.__name__}.{module.name}").__name__
        if not any(known.function.__module__ == name for known in _benches.values()):
            raise ConfigError(
                f'module {name} registers no bench; decorate its function: @bench("name", "what it does"), or move the '
                "module out of kernbench/benches"
            )


def _imported(path: str) -> Bench:
    module, _, attribute = path.partition(":")
    try:
        run = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"bench {path!r} cannot be imported: {error}") from error
    if isinstance(run, Bench):
        return run
    if not callable(run):
        raise ConfigError(f"bench {path!r} is {run!r}, expected a function run(torch)")
    registered = next((b for b in _benches.values() if b.function is run), None)
    return registered or Bench(_kebab(path), (run.__doc__ or "").strip().partition("\n")[0], run)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _where(run: _Run) -> str:
    return f"{run.__module__}:{getattr(run, '__qualname__', run)}"


def run(
    bench: str | Callable[[RuntimeContext], object],
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    *,
    data: bool = False,
    log: str = "operation",
    device: DeviceSelector | str | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    **options: object,
) -> BenchResult:
    """Run a bench and return its result.

    Parameters
    ----------
    bench : str or callable
        A name (see `kernbench list benches`), a path "pkg.mod:run", or a function of the torch-like namespace.
    machine : Machine, path, mapping, optional
        As for `kb.load`.
    data : bool
        Compute values, too, so that the bench can check them.
    log : str
        Detail of the result: "off", "operation" or "tile".
    device : DeviceSelector or str, optional
        "all" or "sip:N": the device that is current at first.
    limits : Limits or mapping, optional
        Limits of the run, as for `kb.session`.
    **options
        Parameters of the bench; `kernbench run NAME --help` lists them.

    Raises
    ------
    ConfigError
        If an option is no parameter of the bench, or no value of it.
    TypeError
        If the bench is a generator or a coroutine.

    Examples
    --------
    >>> import kernbench as kb
    >>> kb.run("matmul", "preset:small", m=32, k=64, n=32, dtype="i8", data=True).correctness
    'PASSED'
    """
    found = resolve(bench) if isinstance(bench, str) else bench
    check_plain(found, "bench")
    machine = resolve_topology(machine)
    if isinstance(found, Bench):
        found = found.given(machine, options)
    elif options:
        found = update_wrapper(partial(found, **options), found)
    return run_bench(
        topology=machine,
        bench_fn=found,
        device=device,
        data=data,
        log=log,
        limits=limits,
    )
