"""Algorithms from entries of ccl.yaml, dotted paths, or functions of a notebook.

Their queues are installed by runtime_api/_queues.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast, overload

from kernbench._registry import MAPPERS, TOPOLOGIES, VALIDATORS, hint, locate
from kernbench.ccl.algorithm import Algorithm, algorithm
from kernbench.ccl.algorithms import Collective
from kernbench.ccl.stages import CostTerms
from kernbench.config import AUTO, CclConfig, MachineConfig, find, read_ccl
from kernbench.config._ccl import PROGRAM
from kernbench.config._schema import PROTOCOLS
from kernbench.errors import ConfigError, quote

CclLike = CclConfig | str | Path | Mapping[str, Any]
AlgorithmLike = str | Algorithm | Collective | ModuleType | Callable[..., object]

_SETTINGS = (
    "buffer_kind", "n_slots", "slot_size", "channels", *PROTOCOLS, "vc_chunk_size", "n_elem", "root_cube", "world_size",
)  # fmt: skip


def load_ccl_config(path: CclLike | None = None, machine: MachineConfig | None = None) -> CclConfig:
    """Return the content of a ccl.yaml.

    Parameters
    ----------
    path : path, mapping or CclConfig, optional
        By default the nearest ccl.yaml, upward from the working directory, else the packaged one.
    machine : MachineConfig, optional
        The machine that it must fit.

    Raises
    ------
    ConfigError
        With every fault of the file.
    """
    source = find("ccl.yaml") if path is None else path
    if isinstance(source, (str, Path)) and Path(source).is_file():
        return _of_file(Path(source), Path(source).read_bytes(), machine)
    return read_ccl(source, machine)


@lru_cache(maxsize=32)
def _of_file(path: Path, _content: bytes, machine: MachineConfig | None) -> CclConfig:
    return read_ccl(path, machine)


@overload
def resolve_algorithm_config(
    name: AlgorithmLike | None = None, config: CclLike | None = None, machine: MachineConfig | None = None
) -> Algorithm: ...
@overload
def resolve_algorithm_config(name: CclConfig | Mapping[str, Any], config: str | None = None) -> dict[str, Any]: ...
@overload
def resolve_algorithm_config(*, config: CclLike, algorithm: str) -> dict[str, Any]: ...
@overload
def resolve_algorithm_config(name: CclConfig | Mapping[str, Any], *, algorithm: str | None) -> dict[str, Any]: ...
def resolve_algorithm_config(
    name: AlgorithmLike | CclLike | None = None, config: CclLike | None = None,
    machine: MachineConfig | None = None, **reference: Any,
) -> Algorithm | dict[str, Any]:  # fmt: skip
    """Return the algorithm that `name` means.

    Parameters
    ----------
    name : str, Algorithm, callable or module, optional
        An entry of ccl.yaml, or "pkg.mod:attribute"; an algorithm as it is; a kernel, or a module that holds one
        (and `kernel_args`), for a ring. By default the algorithm in the file's defaults.
    config : CclConfig, path or mapping, optional
        As for `load_ccl_config`; read only where a name needs it.
    machine : MachineConfig, optional
        The machine that ccl.yaml must fit; supplies the sizes of rings that it leaves open.
    **reference
        As in the reference design, after a configuration in place of `name`: `algorithm`; returns a mapping.

    Raises
    ------
    ConfigError
        If the algorithm does not exist, or its module does not define one.

    Examples
    --------
    >>> from kernbench.config import default_ccl_path
    >>> resolve_algorithm_config("ring_allreduce_hbm", default_ccl_path()).buffer_kind
    'hbm'
    """
    if isinstance(name, Mapping) or reference:
        from kernbench import compat

        given: list[Any] = [each for each in (name, config) if each is not None]
        return compat.resolve_algorithm_config(*given, **reference)
    found = _named(name, config, machine) if name is None or isinstance(name, str) else _own(cast("Any", name))
    return found if machine is None else found.on(machine)


def names(config: CclConfig, collective: str | None = None, contribution: str | None = None) -> list[str]:
    """Return the entries of ccl.yaml, in its order, that do a collective with some contribution."""
    return [
        name
        for name, entry in config.algorithms.items()
        if collective in (None, entry.collective) and contribution in (None, entry.contribution)
    ]


def unnamed(config: CclConfig) -> Algorithm:
    """Return an algorithm with the queues of the file's defaults, for what needs no other: its kernel does nothing."""
    own = config.defaults
    return algorithm(_nothing, channels=own.channels, **{name: getattr(own, name) for name in PROTOCOLS})


def _nothing(*_: object, tl: object) -> None:
    pass


def _named(name: str | None, config: CclLike | None, machine: MachineConfig | None) -> Algorithm:
    if name is not None and ":" in name:
        return _own(_attribute(name))
    ccl = load_ccl_config(config, machine)
    name = ccl.defaults.algorithm if name is None else name
    if name == AUTO:
        raise ConfigError(
            f"algorithm {AUTO!r} is the best for a size on a machine: the tuner says which (kernbench.ccl.tuner); "
            f"here, name one: {', '.join(ccl.algorithms)}"
        )
    if name not in ccl.algorithms:
        raise ConfigError(
            f"algorithm {quote(name)} is unknown; {hint(name, ccl.algorithms)}; or a path pkg.mod:algorithm"
        )
    entry = ccl.algorithms[name]
    settings = {key: ccl.setting(name, key) for key in _SETTINGS}
    settings |= {"credit_bytes": ccl.setting(name, "ipcq_credit_size_bytes"), "options": entry.options}
    if entry.module.endswith(PROGRAM):
        from kernbench.ccl._msccl import from_msccl

        del settings["world_size"]  # set by the program
        return from_msccl(entry.module, name=name, collective=entry.collective, **settings)
    holder = _located(name, entry.module)
    cost = getattr(holder, "cost", None)
    return Algorithm(
        name=name,
        kernel=_held(name, holder, "kernel"),
        kernel_args=_held(name, holder, "kernel_args"),
        topology=TOPOLOGIES.resolve(entry.topology),
        mapper=MAPPERS.resolve(entry.mapper),
        validator=VALIDATORS.resolve(entry.validator),
        collective=entry.collective,
        contribution=entry.contribution,
        cost=cost if isinstance(cost, CostTerms) else None,
        **settings,
    )


def _own(given: Algorithm | Collective | ModuleType | Callable[..., object]) -> Algorithm:
    if isinstance(given, Algorithm):
        return given
    if isinstance(given, ModuleType):
        name = given.__name__.rpartition(".")[2]
        return algorithm(_held(name, given, "kernel"), _held(name, given, "kernel_args"), name=name)
    if not callable(given) and not isinstance(given, Collective):
        raise ConfigError(f"{quote(given)} is not an algorithm; give a name of ccl.yaml, an Algorithm, or a kernel")
    return algorithm(given)


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ConfigError(f"algorithm {quote(path)} is not a path; expected pkg.mod:algorithm, or a name of ccl.yaml")
    return _held(path, _located(path, module), attribute)


def _located(name: str, path: str) -> object:
    try:
        return locate(path)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"algorithm {quote(name)}: module {path!r} cannot be imported: {why}; mend it, or put it on the Python path"
        ) from error


def _held(name: str, holder: object, attribute: str) -> Any:
    found = getattr(holder, attribute, None)
    if not callable(found) and not isinstance(found, Algorithm | Collective):
        raise ConfigError(
            f"algorithm {quote(name)}: module {getattr(holder, '__name__', holder)} has no {quote(attribute)}; it "
            "has to define kernel(t_ptr, ..., *, tl) and kernel_args(*, n_elem, world_size)"
        )
    return found
