"""A collective algorithm (kernel, participants, topology, queues), and its plan on a group of devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from typing import Any, Literal, cast

from kernbench._registry import MAPPERS, TOPOLOGIES, VALIDATORS, hint
from kernbench.ccl._group import Grid, Group, Neighbours, Place, Subgroup, by_shard, single_shard_per_rank
from kernbench.ccl._schedule import LARGEST_CHUNK
from kernbench.ccl.algorithms import Collective
from kernbench.ccl.stages import CostTerms
from kernbench.config import MachineConfig
from kernbench.config._ccl import BUFFER_KINDS, CONTRIBUTIONS, FACTS, GRID_SIZES, OUT_OF_PLACE
from kernbench.config._schema import PROTOCOLS, Protocol
from kernbench.errors import ConfigError, quote
from kernbench.topology._naming import PeId
from kernbench.triton_emu._runner import check_plain

Topology = Callable[[Subgroup], Neighbours]
Mapper = Callable[[Group], list[tuple[tuple[int, int, int], ...]]]
Validator = Callable[[Group], None]


def element_count(*, n_elem: int, world_size: int) -> tuple[int, int]:
    """Default `kernel_args`: the arguments of a kernel(t_ptr, n_elem, world_size, *, tl)."""
    return n_elem, world_size


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An implementation of one collective."""

    name: str  # as in ccl.yaml
    # kernel(t_ptr, *kernel_args(...), tl), run by every participant on its own shard; out of place: also out_ptr
    kernel: Callable[..., object]
    # kernel_args(*, n_elem, world_size, **options), its further arguments; also gets those of `FACTS` that it names
    kernel_args: Callable[..., tuple[Any, ...]]
    topology: Topology  # subgroup to the neighbours of each participant
    mapper: Mapper  # group to subgroups of participants
    validator: Validator  # raises ConfigError if the algorithm does not support a group's shards
    collective: str = "all_reduce"
    # The terms of the sum: each "rank"'s tensor, or each "cube"'s or "pe"'s shard
    contribution: Literal["rank", "cube", "pe"] = "rank"
    buffer_kind: Literal["tcm", "sram", "hbm"] = "tcm"  # the memory of the rings
    n_slots: int | None = None  # of each ring; None, here and below: the machine file's value
    slot_size: int | None = None
    channels: int | None = None  # PEs of a die that take part at least, where PEs share memory
    ll: Protocol | None = None  # protocols by the size of a call
    ll128: Protocol | None = None
    simple: Protocol | None = None
    protocol: str = ""  # which of them it uses; "" until a machine and a size are known
    vc_chunk_size: int = 256  # bytes after which a PE's source link alternates between queue and other traffic
    credit_bytes: int | None = None
    n_elem: int | None = None  # elements of each participant that benches and studies begin with
    root_cube: int | str = "corner"  # of each SIP: its number, "corner" or "centre"
    world_size: int | None = None  # participants; None: as many as the group has
    # Passed to `kernel_args`; `grid_w` and `grid_h` are the grid of all participants
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: CostTerms | None = None  # its stages, for the alpha-beta model; None if they are unknown
    # Elements of memory that the programs of a device share, for its one shard of n_elem; None: each has a shard
    scratch: Callable[[int], int] | None = None

    def __post_init__(self) -> None:
        for key, known in (("buffer_kind", BUFFER_KINDS), ("contribution", CONTRIBUTIONS)):
            if (value := getattr(self, key)) not in known:
                raise ConfigError(f"algorithm {self.name!r}: {key} = {value!r} is unknown; {hint(value, known)}")
        for key in ("n_slots", "slot_size", "channels", "credit_bytes", "vc_chunk_size", "world_size"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"algorithm {self.name!r}: {key} = {value!r} must be a whole number >= 1")

    def on(self, machine: MachineConfig, nbytes: int | None = None) -> Algorithm:
        """Return the algorithm with the machine's queues, and with the protocol for a call of `nbytes`.

        `nbytes` are those of the larger side of the call on a device (None: any size). Where slots are larger than
        messages, a message fills one.
        """
        ipcq = machine.cube.pe.pe_ipcq
        known = {name: getattr(self, name) or getattr(ipcq, name) for name in PROTOCOLS}
        size = sys.maxsize if nbytes is None else nbytes
        fitting = (name for name in PROTOCOLS[:-1] if size <= known[name].up_to_bytes)
        name = self.protocol or next(fitting, PROTOCOLS[-1])
        slot = self.slot_size or known[name].slot_bytes or ipcq.slot_bytes
        longer = slot > LARGEST_CHUNK and "chunk_bytes" in signature(self.kernel_args).parameters
        return replace(
            self,
            **known,
            protocol=name,
            n_slots=self.n_slots or known[name].n_slots or ipcq.n_slots,
            slot_size=slot,
            channels=self.channels or known[name].channels or ipcq.channels,
            credit_bytes=ipcq.credit_bytes if self.credit_bytes is None else self.credit_bytes,
            options={"chunk_bytes": slot, **self.options} if longer else self.options,
        )

    @property
    def cuts(self) -> bool:
        """Whether a device's shard may be cut among several PEs, each of which then takes part for its piece alone."""
        strides = self.collective not in OUT_OF_PLACE or "stride" in signature(self.kernel_args).parameters
        apart = self.mapper is by_shard and self.contribution == "rank" and self.validator is not single_shard_per_rank
        return self.scratch is None and apart and strides

    @property
    def chooses_protocol(self) -> bool:
        """Whether calls of different sizes may use different protocols."""
        return any((each := getattr(self, name)) is not None and each.up_to_bytes for name in PROTOCOLS[:-1])

    @property
    def sends_by(self) -> Protocol:
        """The protocol that it uses; ask a resolved algorithm only."""
        return cast("Protocol", getattr(self, self.protocol))

    def arguments(self, subgroup: Subgroup, n_elem: int, call: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments of the kernel after its pointers; `call` (`op`, `root`, ...) overrides the entry's options.

        ConfigError if `kernel_args` does not take an option, or requires one that is missing.
        """
        names = signature(self.kernel_args).parameters
        takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in names.values())
        theirs = ("n_elem", "world_size", *FACTS)
        known = [name for name, p in names.items() if name not in theirs and p.kind is not Parameter.VAR_KEYWORD]
        options = {**{name: value for name, value in self.options.items() if name not in GRID_SIZES}, **call}
        refused = [name for name in options if name not in known and (name in theirs or not takes_all)]
        if refused:
            raise ConfigError(
                f"algorithm {self.name!r} takes no option {refused[0]!r}; {hint(refused[0], known or ['none'])}"
            )
        missing = [name for name in known if names[name].default is Parameter.empty and name not in options]
        if missing:
            raise ConfigError(
                f"algorithm {self.name!r}: its kernel_args asks for {missing[0]!r}, which is not given; state it in "
                "the call or in options, or give it a default"
            )
        self._check(options, subgroup.world_size)
        return tuple(self.kernel_args(n_elem=n_elem, world_size=subgroup.world_size, **self.facts(subgroup), **options))

    def facts(self, subgroup: Subgroup) -> dict[str, Any]:
        names = signature(self.kernel_args).parameters
        return {name: getattr(subgroup, name) for name in FACTS if name in names}

    def check_kernel(self, all_args: Iterable[tuple[Any, ...]]) -> None:
        """Refuse arguments that the kernel does not take; each tuple holds the pointers and arguments of a program.

        ConfigError if one does not fit or the kernel takes no `tl`; TypeError if the kernel is a generator or a
        coroutine.
        """
        check_plain(self.kernel)
        try:
            takes = signature(self.kernel)
        except ValueError:
            return  # unknown to Python: the run reports it
        text = f"algorithm {self.name!r}: its kernel({', '.join(takes.parameters)})"
        if "tl" not in takes.parameters and all(p.kind is not Parameter.VAR_KEYWORD for p in takes.parameters.values()):
            raise ConfigError(
                f"{text} takes no tl, by which a kernel loads, sends and stores; write "
                f"kernel({', '.join([*takes.parameters, '*', 'tl'])})"
            )
        for args in {len(args): args for args in all_args}.values():
            try:
                takes.bind(*args, tl=None)
            except TypeError as error:
                raise ConfigError(
                    f"{text} does not take what it would get, {error}; give each device as many tensors as the kernel "
                    "has pointers, and let kernel_args return the rest"
                ) from error

    def _check(self, options: Mapping[str, Any], world_size: int) -> None:
        """Check options that all shipped algorithms share."""
        for name, least, most in (("root", 0, world_size - 1), ("chunk_bytes", 1, None)):
            value = options.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or value < least or (most is not None and value > most):
                expected = f">= {least}" if most is None else f"{least} to {most}"
                raise ConfigError(f"algorithm {self.name!r}: {name} = {value!r} must be a whole number, {expected}")


def algorithm(
    kernel: Callable[..., object] | Collective,
    kernel_args: Callable[..., tuple[Any, ...]] = element_count,
    *,
    name: str | None = None,
    topology: str | Topology = "ring_1d",
    mapper: str | Mapper = "by_shard",
    validator: str | Validator = "multi_pe_sip_local",
    **settings: Any,
) -> Algorithm:
    """Return a user-defined algorithm.

    Parameters
    ----------
    kernel : callable
        `kernel(t_ptr, *kernel_args(...), tl)`, or a result of `kernbench.ccl.algorithms.all_reduce`.
    kernel_args : callable
        Its arguments after the pointer; by default (n_elem, world_size).
    name : str, optional
        By default the kernel's.
    topology, mapper, validator : str or callable
        A name, a dotted path, or the function itself.
    **settings
        Any other attribute of `Algorithm`.

    Examples
    --------
    >>> def gather(t_ptr, n_elem, world_size, *, tl): ...
    >>> algorithm(gather, topology="ring_1d", n_slots=8).n_slots
    8
    """
    if isinstance(kernel, Collective):
        settings = {"cost": kernel.cost, **settings}
        kernel_args, kernel = kernel.kernel_args, kernel.kernel
    known = [each.name for each in fields(Algorithm)]
    for setting in settings:
        if setting not in known:
            raise TypeError(f"algorithm: {quote(setting)} is not a setting; {hint(setting, known)}")
    return Algorithm(
        name=name or str(getattr(kernel, "__name__", "kernel")),
        kernel=kernel,
        kernel_args=kernel_args,
        topology=TOPOLOGIES.resolve(topology) if isinstance(topology, str) else topology,
        mapper=MAPPERS.resolve(mapper) if isinstance(mapper, str) else mapper,
        validator=VALIDATORS.resolve(validator) if isinstance(validator, str) else validator,
        **settings,
    )


# -- plans


@dataclass(frozen=True, slots=True)
class Role:
    """The position of a PE: `rank` in `subgroup`; direction -> (peer's place, the peer's direction back)."""

    rank: int
    subgroup: int
    neighbours: Mapping[str, tuple[Place, str]]


@dataclass(frozen=True, slots=True, repr=False)
class CollectivePlan:
    """An algorithm on a group."""

    algorithm: Algorithm
    world_size: int  # participants of each subgroup
    programs: Mapping[Place, Role]  # (sip, cube, pe) to its role, for every PE that runs the kernel
    subgroups: tuple[Subgroup, ...]

    @property
    def sips(self) -> tuple[int, ...]:
        return self.subgroups[0].sips

    @property
    def shards(self) -> list[tuple[Place, ...]]:
        """For each subgroup, the PEs whose shards it works on, in rank order."""
        if self.algorithm.scratch is None:
            return [subgroup.places for subgroup in self.subgroups]
        return [tuple({place[0]: place for place in reversed(s.places)}[sip] for sip in s.sips) for s in self.subgroups]

    def __repr__(self) -> str:
        a, subgroups = self.algorithm, len(self.subgroups)
        each = f" in each of {subgroups} subgroups" if subgroups > 1 else ""
        return f"<Plan of {a.name}: {a.collective}, {self.world_size} participants{each}, SIPs {list(self.sips)}>"

    def on(self, sip: int) -> dict[PeId, Role]:
        return {(cube, pe): role for (s, cube, pe), role in self.programs.items() if s == sip}

    def args(self, place: Place, n_elem: int, /, **call: Any) -> tuple[Any, ...]:
        return self.algorithm.arguments(self.subgroups[self.programs[place].subgroup], n_elem, call)


def plan(
    algorithm: Algorithm,
    machine: MachineConfig,
    sips: Sequence[int],
    places: Sequence[PeId] | Mapping[int, Sequence[PeId]],
    nbytes: int | None = None,
) -> CollectivePlan:
    """Plan a call of `nbytes` on each device, of the larger side (None: of any size)."""
    return plan_group(algorithm.on(machine, nbytes), Group.of(machine, sips, places))


def devices(algorithm: Algorithm, machine: MachineConfig, places: Sequence[PeId]) -> range:
    """Default devices of an algorithm: the first ones that make up its `world_size`, or all."""
    if algorithm.world_size is None:
        return range(machine.n_sips)
    each = len(algorithm.mapper(Group.of(machine, [0], places))[0])
    n, rest = divmod(algorithm.world_size, each)
    if rest or n > machine.n_sips:
        raise ConfigError(
            f"algorithm {algorithm.name!r}: world_size = {algorithm.world_size} is not available: the machine has "
            f"{machine.n_sips} SIPs, with {each} participants each; change the machine, or leave world_size out"
        )
    return range(n)


def plan_group(algorithm: Algorithm, group: Group) -> CollectivePlan:
    """ConfigError with the reason if the algorithm does not run on the group."""
    try:
        algorithm.validator(group)
        subgroups = tuple(_subgroup(algorithm, group, places) for places in algorithm.mapper(group))
        programs: dict[Place, Role] = {}
        graph: Neighbours = []
        for number, subgroup in enumerate(subgroups):
            if algorithm.world_size not in (None, subgroup.world_size):
                raise ConfigError(
                    f"world_size = {algorithm.world_size}, but {subgroup.world_size} take part; change it to that, or "
                    "leave world_size out"
                )
            found = algorithm.topology(subgroup)
            if found != graph:
                _check(found, subgroup)
                graph = found
            for rank, (place, adjacent) in enumerate(zip(subgroup.places, found, strict=True)):
                neighbours = {to: (subgroup.places[peer], back) for to, (peer, back) in adjacent.items()}
                programs[place] = Role(rank, number, neighbours)
    except ConfigError as error:
        raise ConfigError(f"algorithm {algorithm.name!r}: {error}") from error
    return CollectivePlan(algorithm, subgroups[0].world_size, programs, subgroups)


def _subgroup(algorithm: Algorithm, group: Group, places: tuple[Place, ...]) -> Subgroup:
    options = algorithm.options
    grid = Grid(options["grid_w"], options["grid_h"]) if {"grid_w", "grid_h"} <= options.keys() else None
    return Subgroup(places, group.sip_grid, group.cube_columns, algorithm.root_cube, grid)


def _check(graph: Neighbours, subgroup: Subgroup) -> None:
    """Refuse a user-defined topology in which a queue does not connect two ends."""
    for rank, neighbours in enumerate(graph):
        for direction, (peer, back) in neighbours.items():
            if (other := graph[peer].get(back)) != (rank, direction):
                ends = other and (subgroup.places[other[0]], other[1])
                raise ConfigError(
                    f"{direction!r} of PE {subgroup.places[rank]} leads to {back!r} of {subgroup.places[peer]}, which "
                    f"leads to {ends}; a topology has to name both ends of each queue"
                )
