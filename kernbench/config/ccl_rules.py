"""Rules that join keys of ccl.yaml, what its names stand for in Python, and the machine that it is used on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernbench.config.ccl import AUTO, FACTS, GRID, CclConfig, CclEntry
from kernbench.config.faults import Fault, Path
from kernbench.config.outline import MissingModuleError, Outline, Takes
from kernbench.config.schema import MachineConfig
from kernbench.errors import quote
from kernbench.registry import hint

_HOLDS = "kernel(t_ptr, ..., *, tl) and kernel_args(*, n_elem, world_size)"
# Those of the packaged topologies that ask for the grid of all participants.
_ON_A_GRID = ("mesh_2d", "torus_2d", "mesh_2d_no_wrap", "mesh_cycle", "double_torus")


def broken(config: CclConfig) -> Iterator[Fault]:
    """Yield a fault for every rule that `config` breaks, whatever the machine."""
    yield from _choice(config)
    for name, entry in config.algorithms.items():
        yield from _python(("algorithms", name), entry)
        yield from _grid(("algorithms", name), entry)


def misfits(config: CclConfig, machine: MachineConfig) -> Iterator[Fault]:
    """Yield a fault for every value that a machine does not have."""
    cubes = machine.cubes_per_sip
    stated: list[tuple[Path, Any]] = [(("defaults",), config.defaults.root_cube)]
    stated += [(("algorithms", name), entry.root_cube) for name, entry in config.algorithms.items()]
    for path, root in stated:
        if isinstance(root, int) and root >= cubes:
            yield _fault(
                (*path, "root_cube"),
                f"= {root} must be < {cubes}, the cubes of a SIP of this machine; name another, or corner or centre",
            )


def _fault(path: Path, text: str) -> Fault:
    return Fault(f"{'.'.join(path)} {text}", (path,))


def _choice(config: CclConfig) -> Iterator[Fault]:
    chosen, known = config.defaults.algorithm, config.algorithms
    fits = [AUTO, *(name for name, entry in known.items() if entry.collective == "all_reduce")]
    if chosen not in (AUTO, *known):
        yield _fault(("defaults", "algorithm"), f"= {quote(chosen)} names no algorithm; {hint(chosen, fits)}")
    elif chosen not in fits:
        yield _fault(
            ("defaults", "algorithm"),
            f"= {chosen!r} does {known[chosen].collective}, and the default is that of all_reduce; {hint('', fits)}",
        )
    if AUTO in known:
        text = f"algorithms.{AUTO}: the name is taken, it means the best for each call; choose another"
        yield Fault(text, (("algorithms", AUTO),))


def _python(path: Path, entry: CclEntry) -> Iterator[Fault]:
    """Yield what is wrong with the module and the dotted paths of an entry, and with options that its code lacks."""
    for key in ("topology", "mapper", "validator"):
        module, _, attribute = str(getattr(entry, key)).partition(":")
        if attribute:
            yield from _missing((*path, key), f"{module}:{attribute}", module, (attribute,))
    faults = list(_missing((*path, "module"), entry.module, entry.module, ("kernel", "kernel_args")))
    takes = None if faults else Outline(entry.module).takes("kernel_args")
    yield from faults or (() if takes is None else _options((*path, "options"), entry, takes))


def _missing(path: Path, value: str, name: str, functions: Sequence[str]) -> Iterator[Fault]:
    """Yield why a module cannot be read, or which functions it does not have; it is not run."""
    try:
        missing = [f for f in functions if not Outline(name).has(f)]
    except MissingModuleError as error:
        yield _fault(path, f"= {quote(value)} cannot be imported: {error}; mend it, or put it on the Python path")
        return
    if missing:
        what = _HOLDS if "kernel_args" in functions else f"a function {functions[0]}"
        yield _fault(path, f"= {quote(value)}: the module has no {' and no '.join(missing)}; it has to define {what}")


def _options(path: Path, entry: CclEntry, kernel_args: Takes) -> Iterator[Fault]:
    takes, takes_all = kernel_args
    has_grid = entry.topology in _ON_A_GRID or ":" in entry.topology or any(name in takes for name in GRID)
    known = [name for name in takes if name not in ("n_elem", "world_size", *FACTS)] + [*GRID] * has_grid
    for name, value in entry.options.items():
        said = None
        if name in ("n_elem", "world_size", "root_cube"):
            said = "is a key of the entry; write it beside options, not in it"
        elif name in FACTS and name not in GRID:
            said = "is the machine's to say; leave it out"
        elif name not in known and (name in GRID or not takes_all):
            said = f"is no option of {entry.module}; {hint(name, known or ['none'])}"
        if said:
            yield _fault((*path, name), f"= {quote(value)} {said}")


def _grid(path: Path, entry: CclEntry) -> Iterator[Fault]:
    given = {name: entry.options[name] for name in GRID if name in entry.options}
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield _fault((*path, "options", name), f"= {quote(value)} must be a whole number >= 1")
            return
    if len(given) == 1:
        [(name, value)], other = given.items(), next(name for name in GRID if name not in given)
        yield _fault((*path, "options", name), f"= {value} says half of the grid of participants; add {other}")
    elif given and entry.world_size not in (None, given["grid_w"] * given["grid_h"]):
        w, h = given["grid_w"], given["grid_h"]
        yield _fault(
            (*path, "world_size"),
            f"= {entry.world_size}, but options.grid_w x grid_h = {w} x {h}; make them equal, or leave world_size out",
        )
