"""The registry of benches: `@bench` adds one, `resolve` finds it."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench import compat
from kernbench._registry import hint
from kernbench.errors import ConfigError
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine._limits import Limits
from kernbench.topology.builder import Machine
from kernbench.triton_emu._runner import check_plain

# All environment variables that the package's benches read.
SETTINGS = (
    "CCL_ALGORITHM", "CCL_N_ELEM", "GPT3_D_MODEL", "GPT3_QKV_TOKENS", "MATMUL_DTYPE", "MATMUL_K", "MATMUL_M",
    "MATMUL_N", "MATMUL_VARIANT",
)  # fmt: skip


def env_settings() -> dict[str, str]:
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def env_text(name: str, default: str) -> str:
    """`name` must be in `SETTINGS`, so that results record it."""
    assert name in SETTINGS, name
    return os.environ.get(name, default)


def env_int(name: str, default: int) -> int:
    text = env_text(name, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"environment: {name} = {text!r} must be an integer >= 1")
    return int(text)


@contextmanager
def env_set(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable temporarily; None leaves it unchanged."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def env_choice(name: str, default: str, known: Sequence[str]) -> str:
    text = env_text(name, default)
    if text not in known:
        raise ConfigError(f"environment: {name} = {text!r} is unknown; known: {', '.join(known)}")
    return text


Run = Callable[["RuntimeContext"], object]


@dataclass(frozen=True, slots=True)
class Bench:
    name: str
    description: str
    run: Run
    is_milestone: bool = False
    takes_algorithm: bool = False

    def __post_init__(self) -> None:
        check_plain(self.run, "bench")

    def __call__(self, torch: RuntimeContext) -> object:
        return self.run(torch)


_benches: dict[str, Bench] = {}


def bench(
    name: str, description: str, *, milestone: bool = False, takes_algorithm: bool = False
) -> Callable[[Run], Run]:
    """Register the decorated function `run(torch)` as a bench.

    Parameters
    ----------
    name : str
        In kebab-case: words of lower-case letters and digits, joined by hyphens.
    description : str
        One line, for `kernbench list`.
    milestone : bool
        Whether it regenerates a milestone's report.
    takes_algorithm : bool
        Whether it runs the collective algorithm named by CCL_ALGORITHM, which `kernbench run --algorithm` sets.

    Raises
    ------
    ConfigError
        If the name is not kebab-case, the description is empty, or the name is taken.
    TypeError
        If the function is a generator or a coroutine.

    Examples
    --------
    >>> @bench("my-bench", "Adds two vectors")
    ... def run(torch): ...
    >>> resolve("my_bench").description
    'Adds two vectors'
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        kebab = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
        raise ConfigError(f'@bench: name = {name!r} is not in kebab-case; use for example "{kebab or "my-bench"}"')
    if not (description or "").strip():
        raise ConfigError(f"@bench: bench {name!r} has no description; give one line, which `kernbench list` shows")

    def register(run: Run) -> Run:
        known = _benches.get(name)
        if known is not None and _where(known.run) != _where(run):
            raise ConfigError(f"bench {name!r} is taken by {_where(known.run)}; give {_where(run)} another name")
        _benches[name] = Bench(name, description, run, milestone, takes_algorithm)
        return run

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
        if module.name == "registry":
            continue
        name = importlib.import_module(f"{package.__name__}.{module.name}").__name__
        if not any(known.run.__module__ == name for known in _benches.values()):
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
    registered = next((b for b in _benches.values() if b.run is run), None)
    return registered or Bench(_kebab(path), (run.__doc__ or "").strip().partition("\n")[0], run)


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _where(run: Run) -> str:
    return f"{run.__module__}:{getattr(run, '__qualname__', run)}"


def run(
    bench: str | Callable[[RuntimeContext], object],
    machine: Machine | str | Path | Mapping[str, Any] | None = None,
    *,
    data: bool = False,
    log: str = "operation",
    device: DeviceSelector | str | None = None,
    limits: Limits | Mapping[str, float] | None = None,
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
