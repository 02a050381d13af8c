"""Collectives on the machine: the launches that start one on each device, and the choice for `algorithm: auto`.

`run_collective` simulates a single collective on an idle machine, for studies and for the choice of `algorithm: auto`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import simpy

from kernbench._dtypes import DType, as_dtype
from kernbench._units import ns_to_ps
from kernbench.analysis._records import Communication, LinkTable
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import hottest, pe_window
from kernbench.ccl._group import Place
from kernbench.ccl._schedule import row_blocks
from kernbench.ccl.algorithm import Algorithm, CollectivePlan, plan
from kernbench.ccl.alpha_beta import Simulate
from kernbench.ccl.install import AlgorithmLike, CclLike, load_ccl_config, names, resolve_algorithm_config, unnamed
from kernbench.ccl.tuner import MODEL_TOLERANCE, Tuner, with_variants
from kernbench.config import AUTO, CclConfig, MachineConfig
from kernbench.config._ccl import OUT_OF_PLACE
from kernbench.errors import (
    CollectiveMismatchError,
    ConfigError,
    VerificationError,
    quote,
)
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._devices import HostProgram, Later, Start, StartOfWork, warn
from kernbench.runtime_api._queues import DrainCheck, InstalledQueues
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine._op_log import link_table
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine
from kernbench.triton_emu._handles import Pointer

T = TypeVar("T")

_ALONE = "alone"  # the key of the queues of a collective that runs alone
_TYPES = {1: "i8", 2: "f16", 4: "f32", 8: "f64"}  # itemsize: a type of this size, to simulate a choice with


class ShardArguments(NamedTuple):
    """A kernel's pointers (or arguments) and elements on a shard, which is `parts` ranks' parts, `stride` apart.

    Without a stride, all pointers are of one part.
    """

    pointers: Sequence[object]
    n_elem: int
    parts: int = 1
    stride: int | None = None

    def cut(self, n: int) -> list[ShardArguments]:
        """Cut each part into `n`, as equal as possible; none is empty."""
        size = self.n_elem // self.parts
        pointers = cast("Sequence[Pointer]", self.pointers)
        return [
            self._replace(pointers=[p + at for p in pointers], n_elem=each * self.parts)
            for at, each in row_blocks(0, size, min(n, size))
        ]


_CHOOSING = "choosing an algorithm"


class Collectives:
    """The collectives of one machine: its queues, and scratch memory."""

    def __init__(self, engine: GraphEngine) -> None:
        self._engine, self.queues = engine, InstalledQueues(engine)
        self._scratches: dict[tuple[object, ...], int] = {}
        self._deadlocked: set[str] = set()  # algorithms that the user has been warned about

    def chosen(
        self, config: CclConfig, collective: str, nbytes: int, itemsize: int, sips: Sequence[int],
        places: Sequence[PeId], call_bytes: int, *, op: Any = "sum", by_model: bool = False,
    ) -> CollectivePlan:  # fmt: skip
        """Return the plan of `algorithm: auto` for a collective with torch's meaning; `by_model` as for `tuner_of`."""
        engine, tuner = self._engine, tuner_of(self._engine.machine, config, by_model=by_model)

        def told(done: int, total: int) -> None:
            engine.doing = f"{_CHOOSING}: {done} of {total} simulated"

        engine.doing = _CHOOSING
        try:
            decision = tuner.choose(
                collective, nbytes, sips=sips, places=places, itemsize=itemsize, op=op, call_bytes=call_bytes, told=told
            )
        finally:
            engine.doing = ""
        for name in [each for each in decision.deadlocked if each not in self._deadlocked]:
            self._deadlocked.add(name)
            warn(
                f"{collective}: algorithm {name!r} is passed over: {decision.refused[name]}; "
                f"kb.ccl.choose(..., algorithms=[{name!r}]) names who waits for whom"
            )
        return tuner.plan(decision, sips, places, call_bytes)

    def starts(
        self,
        plan: CollectivePlan,
        key: str,
        shards: Mapping[Place, ShardArguments],
        name: str,
        options: Mapping[str, object],
    ) -> dict[int, Start]:
        """Return a function per device that starts a collective and returns the event of the device's completion."""
        if plan.algorithm.scratch is not None:
            shards = self._shared(plan, key, shards)
        _check_terms(plan, shards)
        args = {place: arguments(plan, place, shards[place], options) for place in plan.programs}
        plan.algorithm.check_kernel(args.values())
        queues, start_ps = self.queues.install(plan, key), ns_to_ps(plan.algorithm.sends_by.start_ns)
        drain = DrainCheck(self._engine, plan, queues.key, name) if queues.key is not None else None

        def launch(sip: int) -> simpy.Event:
            roles, kernel = plan.on(sip), plan.algorithm.kernel
            own = {target: args[sip, *target] for target in roles}
            ranks = {target: role.rank for target, role in roles.items()}
            done = self._engine.launch(
                sip, list(own), kernel, own, name, queues.key, ranks, plan.world_size, plan.algorithm.protocol
            ).done
            if drain is not None:
                done.callbacks.append(lambda _: drain.note([(sip, *target) for target in own]))
            return done

        def start(sip: int) -> simpy.Event:
            if queues.ready.processed and not start_ps:
                return launch(sip)
            later, env = Later(self._engine, sip), self._engine.env
            begin = partial(later.run, partial(launch, sip))

            def ready(_: object = None) -> None:
                if start_ps:
                    env.call_at(env._now + start_ps, lambda _: begin())
                else:
                    begin()

            if queues.ready.processed:
                ready()
            else:
                queues.ready.callbacks.append(ready)
            return later.done

        return {sip: partial(start, sip) for sip in plan.sips}

    def _shared(
        self, plan: CollectivePlan, key: str, shards: Mapping[Place, ShardArguments]
    ) -> dict[Place, ShardArguments]:
        """Give all programs of a device its one shard, and scratch memory, which is kept for the next call."""
        assert plan.algorithm.scratch is not None
        shared: dict[int, ShardArguments] = {}
        for sip, place in {place[0]: place for place in shards}.items():
            pointers, n = shards[place][:2]
            if not isinstance(pointers[0], Pointer):
                raise ConfigError(
                    f"algorithm {plan.algorithm.name!r}: the tensor of {naming.pe(*place)} is not contiguous; give "
                    "it a contiguous one"
                )
            kind = pointers[0].dtype.element_ty
            nbytes = plan.algorithm.scratch(n) * kind.itemsize
            places = tuple((sip, *target) for target in plan.on(sip))
            shared[sip] = ShardArguments((*pointers, Pointer(self._scratch(key, place, places, nbytes), kind)), n)
        return {place: shared[place[0]] for place in plan.programs}

    def _scratch(self, key: str, holder: Place, places: tuple[Place, ...], nbytes: int) -> int:
        """Return the address of memory in the slice of `holder`, mapped on the PEs at `places`; 0 for no bytes."""
        found = self._scratches.get((key, holder, places, nbytes))
        if found is None and nbytes:
            found = self._engine.allocators.pe(*holder).alloc_hbm(nbytes)
            for place in places:
                self._engine.pe(*place).mmu.map(found, nbytes, found, f"scratch of {key}")
            self._scratches[key, holder, places, nbytes] = found
        return found or 0


def _check_terms(plan: CollectivePlan, shards: Mapping[Place, ShardArguments]) -> None:
    """Refuse a sum of shards of different sizes."""
    a = plan.algorithm
    if a.collective != "all_reduce" or a.contribution == "rank":
        return
    for subgroup in plan.subgroups:
        sizes = [shards[place].n_elem for place in subgroup.places]
        if min(sizes) < max(sizes):
            raise ConfigError(
                f"algorithm {a.name!r}: it adds the shards of each {a.contribution}, and they have {min(sizes)} to "
                f"{max(sizes)} elements; give the tensor a shape that its DPPolicy splits evenly, or choose an "
                "algorithm with contribution rank"
            )


def arguments(
    plan: CollectivePlan, place: Place, shard: ShardArguments, options: Mapping[str, object]
) -> tuple[object, ...]:
    adjacent = shard.stride in (None, shard.n_elem // shard.parts)
    apart = {} if adjacent else {"stride": shard.stride}
    return *shard.pointers, *plan.args(place, shard.n_elem, **options, **apart)


def over_channels(
    machine: MachineConfig, algorithm: Algorithm, nbytes: int, shards: Mapping[PeId, Sequence[T]],
    cut: Callable[[T, int], Sequence[T]],
) -> dict[PeId, list[T]]:  # fmt: skip
    """Cut the shards of each die among the channels for a call of `nbytes`, where PEs share memory."""
    shared = machine.cube.hbm.controllers is not None and algorithm.cuts
    most = min(algorithm.on(machine, nbytes).channels or 1, machine.pes_per_cube) if shared else 1
    found: dict[PeId, list[T]] = {}
    for cube, dies in groupby(sorted(shards.items()), key=lambda own: own[0][0]):
        own = [(pe, shard) for pe, each in dies for shard in each]
        if 2 * len(own) > most:
            for pe, shard in own:
                found.setdefault(pe, []).append(shard)
            continue
        each = most // len(own)
        for i, (_, shard) in enumerate(own):
            found |= {(cube, i * each + c): [part] for c, part in enumerate(cut(shard, each))}
    return found


def title(algorithm: Algorithm) -> str:
    """Name a collective's launches: by what it does, over whose shards if not the ranks', and by which protocol."""
    over = "" if algorithm.contribution == "rank" else f" over each {algorithm.contribution}'s shard"
    by = f", {algorithm.protocol}" if algorithm.chooses_protocol else ""
    return f"{algorithm.collective} by {algorithm.name}{over}{by}"


@dataclass(frozen=True)
class CollectiveRun:
    latency_ns: float
    result: Result
    links: Mapping[str, float]

    @property
    def hottest(self) -> tuple[str, float]:
        if not self.links:
            return "", 0.0
        first = hottest(self.links)
        return first, self.links[first]


def run_collective(
    machine: Machine, planned: CollectivePlan, nbytes: int, *, dtype: object = "f16", data: bool = False, **call: Any,
) -> CollectiveRun:  # fmt: skip
    """Run a collective once, alone on an idle machine.

    Queues are installed before, and shards are in the HBM slices of their PEs, mapped on these PEs only: mapping on the
    whole SIP is not part of the collective. `torch.collective` does the same with tensors.
    """
    kind = as_dtype(dtype)
    holders = [place for places in planned.shards for place in places]
    whole = len(planned.shards[0]) if planned.algorithm.collective == "all_gather" else 1
    n_elem = nbytes // kind.itemsize // whole
    engine = GraphEngine(machine, data)
    shards = {place: _shard(engine, place, nbytes, kind, planned) for place in holders}
    values = _fill(engine, shards, nbytes, kind) if data else {}
    ends = shards
    given = {place: ShardArguments([at], n_elem) for place, at in shards.items()}
    if planned.algorithm.collective in OUT_OF_PLACE:
        ends = {place: _shard(engine, place, nbytes, kind, planned) for place in holders}
        given = {place: ShardArguments([at, ends[place]], n_elem) for place, at in shards.items()}
    collectives = Collectives(engine)
    engine.wait(collectives.queues.install(planned, _ALONE).ready)
    before = _busy_ps(link_table(engine))
    starts = collectives.starts(planned, _ALONE, given, planned.algorithm.name, call)
    for done in [start() for start in starts.values()]:
        engine.wait(done)
    engine.run()  # the last credits
    result = Result(engine.records(), planned.algorithm.name)
    if values:
        check_results(engine, planned, {place: end.va for place, end in ends.items()}, values, kind)
    start, end = pe_window(result.records)
    busy = {link: ps - before.get(link, 0) for link, ps in _busy_ps(result.records.links).items()}
    # A single participant does nothing.
    shares = {link: ps / (end - start) for link, ps in busy.items() if ps and end > start}
    return CollectiveRun((end - start) / 1000, result, shares)


@lru_cache(maxsize=32)
def simulator(machine: Machine) -> Simulate:
    """Return the function by which a tuner simulates a plan [ns]; cached, so that a machine is measured once."""

    def simulate(planned: CollectivePlan, nbytes: int, itemsize: int) -> float:
        return run_collective(machine, planned, nbytes, dtype=_TYPES[itemsize]).latency_ns

    return simulate


def tuner_of(machine: Machine, config: CclConfig | None = None, *, by_model: bool = False) -> Tuner:
    """Return the tuner for the algorithms of `config` (default: the nearest ccl.yaml) with torch's meaning.

    All sessions on a machine share it, so that a choice is simulated once. `by_model`: nothing is simulated, and of
    the all-reduces near the best the one with the fewest events is chosen; for calls whose rivals would cost more
    to simulate than the call itself.
    """
    return _tuner(machine, json.dumps((config or load_ccl_config()).to_spec()), by_model)


@lru_cache(maxsize=8)
def _tuner(machine: Machine, spec: str, by_model: bool) -> Tuner:
    config = load_ccl_config(json.loads(spec))
    known = [resolve_algorithm_config(name, config) for name in names(config, contribution="rank")]
    if by_model:
        return Tuner(machine, with_variants(known), simulate=simulator(machine), refine=0, near=MODEL_TOLERANCE)
    return Tuner(machine, known, simulate=simulator(machine))


def _shard(engine: GraphEngine, place: Place, nbytes: int, kind: DType, plan: CollectivePlan) -> Pointer:
    """Allocate in the slice of a PE, mapped at the physical address on the PEs that work on the shard only."""
    pa = engine.allocators.pe(*place).alloc_hbm(nbytes)
    sip = place[0]
    users = [place] if plan.algorithm.scratch is None else [(sip, *target) for target in plan.on(sip)]
    for user in users:
        engine.pe(*user).mmu.map(pa, nbytes, pa, _ALONE)
    return Pointer(pa, kind)


def _busy_ps(table: LinkTable) -> dict[str, int]:
    return dict(zip(table.names, table.busy_ps.tolist(), strict=True))


def _fill(engine: GraphEngine, shards: Mapping[Place, Pointer], nbytes: int, kind: DType) -> dict[Place, np.ndarray]:
    """Set shards to small whole numbers, whose sums are exact; return them as float64."""
    values = {}
    for place, at in shards.items():
        drawn = np.random.default_rng(list(place)).integers(-4, 5, nbytes // kind.itemsize).astype(kind.numpy)
        engine.memory.poke([(at.va, nbytes)], drawn.view(np.uint8))
        values[place] = drawn.astype(np.float64)
    return values


def check_results(
    engine: GraphEngine,
    plan: CollectivePlan,
    ends: Mapping[Place, int],
    values: Mapping[Place, np.ndarray],
    kind: DType,
) -> None:
    for places in plan.shards:
        given = [values[place] for place in places]
        for rank, place in enumerate(places):
            expected = _expected(plan.algorithm.collective, given, rank)
            got = engine.memory.peek([(ends[place], len(expected) * kind.itemsize)]).view(kind.numpy)
            if not np.array_equal(got.astype(np.float64), expected):
                raise VerificationError(f"{plan.algorithm.name}: {naming.pe(*place)} ends with other values than numpy")


def _expected(collective: str, given: list[np.ndarray], rank: int) -> np.ndarray:
    """Compute the result of participant `rank`, of tensor `given[rank]`; the root is 0. Empty if undefined."""
    part = len(given[rank]) // len(given)
    own = slice(rank * part, (rank + 1) * part)
    total: np.ndarray = np.sum(given, axis=0)
    match collective:
        case "all_reduce":
            return total
        case "reduce" if rank == 0:
            return total
        case "reduce_scatter":
            return total[own]
        case "broadcast":
            return given[0]
        case "all_gather":
            return np.concatenate([each[:part] for each in given])
        case "all_to_all":
            return np.concatenate([each[own] for each in given])
    return np.empty(0)  # undefined


_Given = Tensor | Sequence[Tensor]


def queue_collective(
    host: HostProgram, collectives: Collectives, tensors: Sequence[_Given], algorithm: AlgorithmLike | None,
    config: CclLike | None, name: str | None, n_slots: int | None, call: dict[str, object], by_model: bool = False,
    record: Callable[[DeviceTensor], Communication] | None = None, places: Mapping[int, StartOfWork] | None = None,
) -> CollectivePlan:  # fmt: skip
    """Queue a collective on the devices of `tensors`, and return its plan; `by_model` as for `tuner_of`.

    `record` returns what a trace says about the part of a device; `places` are those in the graphs of the devices.
    """
    given = _checked(tensors)
    firsts = [own[0] for own in given]
    called, known = _called(host, algorithm, config, n_slots)
    held, nbytes = [_held(own) for own in given], _call_bytes(firsts, called)
    if called is None or called.collective not in OUT_OF_PLACE:
        asked = called or unnamed(known)
        held = [over_channels(host.config, asked, nbytes, each, ShardArguments.cut) for each in held]
    planned = _planned(host, collectives, firsts, called, known, held[0], by_model, call.get("op", "sum"))
    shards = {(own[0].sip, *pe): shard for own, each in zip(given, held, strict=True) for pe, (shard,) in each.items()}
    starts = collectives.starts(planned, "direct", shards, name or title(planned.algorithm), call)
    for own in given:
        handles = [tensor._handle for tensor in own]
        communication = None if record is None else record(own[0])
        after = host.start_of_work(collective=True) if places is None else places[own[0].sip]
        host.start(own[0].sip, starts[own[0].sip], handles, after, communication=communication)
    return planned


def _checked(tensors: object) -> list[tuple[DeviceTensor, ...]]:
    """Return the tensors of each device; the first ones must have one layout on all devices."""
    if not isinstance(tensors, Sequence) or isinstance(tensors, str):
        raise TypeError(
            f"collective: {quote(tensors, 160)} is not a sequence; give a list with one tensor for each device: [x, y]"
        )
    if not tensors:
        raise ValueError("collective: no tensors; give a list with one for each device")
    given = [tuple(each) if isinstance(each, list | tuple) and each else (each,) for each in tensors]
    for i, own in enumerate(given):
        for tensor in own:
            if not isinstance(tensor, DeviceTensor) or tensor.device != own[0].device:
                raise TypeError(
                    f"collective: tensor {i} is {quote(tensor, 160)}; expected one on a device (and, of several, all "
                    'on the same): .to("ahbm:0")'
                )
            if not tensor.shards:
                raise ValueError(f"collective: tensor {i} is {tuple(tensor.shape)}, which is empty; leave the call out")
    firsts: list[DeviceTensor] = [own[0] for own in given]
    kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in firsts}
    if len(kinds) != 1 or len({tensor.sip for tensor in firsts}) != len(firsts):
        said = "\n".join(f"  {tensor.device}: {tuple(tensor.shape)} {tensor.dtype}" for tensor in firsts)
        raise CollectiveMismatchError(f"collective: expected one tensor of one shape and type for each device:\n{said}")
    cuts = [[s.index for s in sorted(tensor.shards, key=lambda s: (s.cube, s.pe))] for tensor in firsts]
    for tensor, cut in zip(firsts, cuts, strict=True):
        if cut != cuts[0] or tensor.stride() != firsts[0].stride():
            raise CollectiveMismatchError(
                f"collective: the tensor of {tensor.device} is sharded differently from that of {firsts[0].device}, "
                f"into {len(cut)} and {len(cuts[0])} shards; place them with the same DPPolicy on every device"
            )
    return given


def _called(
    host: HostProgram, algorithm: AlgorithmLike | None, config: CclLike | None, n_slots: int | None
) -> tuple[Algorithm | None, CclConfig]:
    """Return the algorithm, None for the best one, and ccl.yaml."""
    known = load_ccl_config(config, host.config)
    own: dict[str, Any] = {} if n_slots is None else {"n_slots": n_slots}
    named = known.defaults.algorithm if algorithm is None else algorithm
    if named != AUTO:
        return replace(resolve_algorithm_config(named, config), **own), known
    if own:
        entries = {name: replace(entry, **own) for name, entry in known.algorithms.items()}
        known = replace(known, algorithms=entries)
    return None, known


def _held(own: Sequence[DeviceTensor]) -> dict[PeId, list[ShardArguments]]:
    return {
        pe: [ShardArguments([_shard_of(tensor, *pe)[0] for tensor in own], _shard_of(own[0], *pe)[1])]
        for pe in own[0].pes
    }


def _call_bytes(tensors: Sequence[DeviceTensor], called: Algorithm | None) -> int:
    """Bytes of the larger side of a call on a device."""
    gathers = called is not None and called.collective == "all_gather"
    return tensors[0].nbytes * (len(tensors) if gathers else 1)


def _planned(
    host: HostProgram, collectives: Collectives, tensors: Sequence[DeviceTensor], called: Algorithm | None,
    known: CclConfig, held: Mapping[PeId, Sequence[ShardArguments]], by_model: bool, op: object,
) -> CollectivePlan:  # fmt: skip
    sips, first, places = [tensor.sip for tensor in tensors], tensors[0], list(held)
    if called is not None:
        return plan(called, host.config, sips, places, _call_bytes(tensors, called))
    nbytes = max(shard.n_elem for (shard,) in held.values()) * first.dtype.itemsize
    return collectives.chosen(
        known, "all_reduce", nbytes, first.dtype.itemsize, sips, places, first.nbytes, op=op, by_model=by_model
    )


def _shard_of(tensor: DeviceTensor, cube: int, pe: int) -> tuple[Pointer, int]:
    own = tensor._parts().get((cube, pe), [(0, 0)])
    return tensor.pointer + min(first for first, _ in own), sum(n for _, n in own)
