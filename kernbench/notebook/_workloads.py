"""Workloads: the programs that the explorer offers, each with its parameters."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernbench.benches import registry
from kernbench.benches._parameters import (
    PARAMETER_KINDS,
    ParameterValue,
    ProgramParameter,
    ShapeText,
    annotation,
    parameter,
    signature_parameters,
)
from kernbench.ccl.install import load_ccl_config, names
from kernbench.config import AUTO, COLLECTIVES, CclConfig, MachineConfig
from kernbench.errors import ArgumentError, ConfigError
from kernbench.notebook._collectives import collective, planned
from kernbench.notebook._programs import SHAPE, is_kernel, is_module, program_of, step_part, tensors_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.serving._models import check_parallel, fields_of
from kernbench.studies.choice import system_of
from kernbench.studies.study import Choices, Study, explorations
from kernbench.topology.builder import Machine
from kernbench.triton._translate import is_jit
from kernbench.viz._fields import fields


@dataclass(frozen=True, slots=True)
class Workload:
    """A program for one machine, with its parameters; some may belong to the machine rather than to the program.

    `changes(machine, values)` returns their changes of the machine, as overrides. `check(machine, **values)` raises a
    ConfigError if the machine cannot run it, each fault with the name of its parameter first.
    """

    name: str
    title: str
    function: Callable[..., object]
    parameters: tuple[ProgramParameter, ...]
    source: tuple[str, str]
    check: Callable[..., object] = lambda _machine, **_values: None
    of_machine: tuple[str, ...] = ()
    changes: Callable[[Machine, Mapping[str, ParameterValue]], list[str]] = lambda _machine, _values: []
    kind: str = "Studies"

    def arguments(self, values: Mapping[str, ParameterValue]) -> dict[str, ParameterValue]:
        return {name: value for name, value in values.items() if name not in self.of_machine}

    def program(self, values: Mapping[str, ParameterValue]) -> Callable[[RuntimeContext], object]:
        return partial(self.function, **self.arguments(values))


def workloads(own: Iterable[Callable[..., object]] = ()) -> dict[str, Workload]:
    found = [_own(given) for given in own]
    for name, study in explorations().items():
        package, _, module = type(study).__module__.rpartition(".")
        source = (f"from {package} import {module}", f"{module}.{type(study).__name__}().program")
        found.append(_workload(f"study {name}", study.program, source, check=partial(_check, study)))
    ccl = load_ccl_config()
    found += [_collective(name, ccl) for name in COLLECTIVES if names(ccl, name)]
    source = ("from kernbench.notebook import step_part", "step_part")
    found.append(_workload("step of a served model", step_part, source, check=_check_step, kind="Serving"))
    for bench in registry.benches():
        if not bench.is_milestone:
            source = ("from kernbench.benches.registry import resolve", f"resolve({bench.name!r}).run")
            name, parameters = f"bench {bench.name}", bench.parameters
            found.append(Workload(name, bench.description, bench.function, parameters, source, kind="Benches"))
    return {workload.name: workload for workload in found}


def _check(study: Study, machine: Machine, **values: ParameterValue) -> None:
    if faults := study.faults(machine, **values):
        raise ConfigError(faults)


def _check_step(machine: Machine, *, model: str, tp: int, **_: ParameterValue) -> None:
    try:
        check_parallel(fields_of(model), tp, 1, machine)
    except ArgumentError as error:
        raise ConfigError(str(error)) from None


def not_here(name: str) -> Workload:
    """Stand in for the program of a saved result that is not available here."""

    def program(_: RuntimeContext) -> None:
        raise ConfigError(f"{name} is not among the workloads here")

    return Workload(name, "", program, (), ("", ""))


def _own(given: Callable[..., object]) -> Workload:
    """Workload of a user's program, kernel or module.

    An ArgumentError for a PyTorch model or a Triton kernel without its arguments.
    """
    name = getattr(given, "__name__", type(given).__name__)
    made_of = given.mro() if inspect.isclass(given) else type(given).mro()
    if any(kind.__module__.startswith(("torch.nn.", "kernbench.torch._compile")) for kind in made_of):
        raise ArgumentError(f"{name} is a PyTorch model and needs inputs; pass kb.torch.program(model, x)")
    if is_jit(given):
        raise ArgumentError(f"{name} is a Triton kernel and needs arguments; pass kb.triton.program(kernel, grid, x)")
    if not hasattr(given, "__qualname__"):  # an object: a cell can name it only by a variable
        variables = [key for key, value in vars(sys.modules["__main__"]).items() if value is given and key[0] != "_"]
        return _workload(name, given, ("", (variables or [""])[0]), kind="Your programs")
    home = getattr(given, "__module__", "__main__")
    place = "" if home == "__main__" else f"from {home} import {name}"
    if not is_kernel(given) and not is_module(given):
        return _workload(name, given, (place, name), kind="Your programs")
    imports = "\n".join(x for x in ("from kernbench.notebook import program_of", place) if x)
    title = (inspect.getdoc(given) or name).partition("\n")[0]
    kind = "Your modules" if is_module(given) else "Your kernels"
    return Workload(name, title, program_of(given), _parameters_of(given), (imports, f"program_of({name})"), kind=kind)


_DTYPES = Choices(lambda _: ["f16", "bf16", "f32"])
_DTYPE = ProgramParameter("dtype", str, "f16", "of the tensors", _DTYPES)


def _parameters_of(given: Callable[..., object]) -> tuple[ProgramParameter, ...]:
    """Parameters of a kernel or a module: shapes of its tensors, its own ones, and the PEs or ranks that run it."""
    calls = [given.forward, given] if is_module(given) else [given]  # type: ignore[attr-defined]
    found: dict[str, ProgramParameter] = {}
    for call in calls:
        tensors = tensors_of(call)
        for x in inspect.signature(call).parameters.values():
            if x.name in tensors and (call is not given or not is_module(given)):
                found[x.name] = ProgramParameter(x.name, ShapeText, ShapeText(SHAPE), "shape of the tensor")
            elif x.default is not x.empty:
                found[x.name] = parameter(x.name, annotation(call, x), x.default)
            elif (kind := annotation(call, x)) in PARAMETER_KINDS:
                found[x.name] = ProgramParameter(x.name, kind, {int: 64, float: 1.0, bool: False}.get(kind, ""))
    where = (
        [ProgramParameter("ranks", int, 1, "SIPs that run it, one rank each", _up_to(lambda c: c.n_sips))]
        if is_module(given)
        else [
            ProgramParameter("cubes", int, 1, "of SIP 0 that run it", _up_to(lambda c: c.cubes_per_sip)),
            ProgramParameter("pes", int, 1, "of each cube that run it", _up_to(lambda c: c.pes_per_cube)),
        ]
    )
    return tuple(({x.name: x for x in (_DTYPE, *where)} | found).values())


def _up_to(most: Callable[[MachineConfig], int]) -> Choices:
    return Choices(lambda machine: [str(n) for n in range(1, most(machine.config) + 1)])


_SAME = "as the machine"


def _networks(_: Machine) -> list[str]:
    return [_SAME, *fields()["system.sips.topology"].choices]


def _collective(name: str, ccl: CclConfig) -> Workload:
    auto = [AUTO] if len(names(ccl, name, "rank")) > 1 else []

    return Workload(
        f"collective {name}",
        f"{name} over all SIPs, a rank on each, by an algorithm of ccl.yaml",
        partial(collective, collective=name),
        (
            ProgramParameter("algorithm", str, (auto or names(ccl, name))[0], "of ccl.yaml",
                      Choices(lambda _: [*auto, *names(load_ccl_config(), name)])),
            ProgramParameter("nbytes", int, 65536, "of each rank's tensor"),
            ProgramParameter(
                "sips", str, _SAME, 'a number, or a grid such as "4x2" or "2x2x2"',
                on=lambda machine: _SAME if machine.config.n_sips > 1 else "2",
            ),
            ProgramParameter("topology", str, _SAME, "of the SIPs", Choices(_networks)),
            ProgramParameter("dtype", str, "f16", "of the elements", _DTYPES),
        ),
        ("from kernbench.notebook import collective", f"collective, collective={name!r}"),
        lambda machine, **given: planned(machine, name, given["algorithm"], given["nbytes"], given["dtype"]),
        ("sips", "topology"),
        _system,
        "Collectives",
    )  # fmt: skip


def _system(machine: Machine, values: Mapping[str, ParameterValue]) -> list[str]:
    sips, topology = (None if values[name] == _SAME else str(values[name]) for name in ("sips", "topology"))
    if sips is None and topology is None:
        return []
    try:
        given = system_of(machine, sips, topology).config.system.sips
    except ArgumentError as error:
        raise ConfigError(str(error)) from None
    except ConfigError as error:
        raise ConfigError(f"topology = {topology or machine.config.system.sips.topology!r}: {error}") from None
    found = {"count": given.count, "topology": given.topology, "w": given.w, "h": given.h, "d": given.d}
    return [f"system.sips.{key}={'null' if value is None else value}" for key, value in found.items()]


def _workload(
    name: str, function: Callable[..., object], source: tuple[str, str], title: str = "", **more: Any
) -> Workload:
    title = title or (inspect.getdoc(function) or name).partition("\n")[0]
    return Workload(name, title, function, tuple(signature_parameters(function)), source, **more)
