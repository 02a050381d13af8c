"""`kb.gemm` and `kb.ccl.choose`: the best placement of a product or algorithm for a collective, how fast, and why.

Each candidate has a closed form; those near the best are simulated. The closed form of a placement is the time of the
busiest link, memory or matrix engine, and of empty launches. Times of products are from the launch leaving the host to
the last completion coming back; those of collectives are of the device, from the first program's start to the last
one's end. The functions that end in `_stages` yield the answer as it grows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any

from kernbench._registry import hint
from kernbench.analysis._roofline import macs_per_ns
from kernbench.ccl._schedule import LARGEST_CHUNK
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config, unnamed
from kernbench.ccl.tuner import Candidate, Decision, Tuner, decided, worth_simulating
from kernbench.config import COLLECTIVES
from kernbench.errors import ArgumentError, ConfigError
from kernbench.ops.matmul import BY_BLOCKS, NEAR, PLACEMENTS, estimate, share_blocks
from kernbench.points._keys import Row
from kernbench.runtime_api import collective as collectives
from kernbench.studies._answers import CollectiveChoice, PlacementCandidate, ProductChoice, Spread
from kernbench.studies._stages import Explanation, PartialAnswer, Simulations, last, path_row
from kernbench.studies.ccl import case_of
from kernbench.studies.layers import LayersStudy, StoredProduct, layer_work, obstacle, run, simulated_ns
from kernbench.studies.study import scaled, sips_of, table
from kernbench.sweeps._plan import Point
from kernbench.sweeps._runner import Progress
from kernbench.sweeps.sensitivity import BASE, ranked, sensitivity_plan
from kernbench.topology.builder import Machine, resolve_topology

_Tick = Callable[["Progress"], object]

_TILES = 1 << 14  # up to so many, each is logged, so that `why` resolves composites
_DTYPES = ("f16", "bf16")
_ITEMSIZE = 2
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_PRODUCT_S = 1e-6  # host time for each unit of work of a product, which is an estimate [us]
_SEND_S, _RANK_S = 1.7e-4, 8e-3  # host time for each unit of work of a collective, and of an estimate for each PE
# What is halved and doubled, one resource at a time.
_RESOURCES = {
    "bandwidth between SIPs": "system.sip_link.bw_gbs",
    "latency between SIPs": "system.sip_link.latency_ns",
    "UCIe bandwidth": "cube.ucie.bw_gbs",
    "latency of UCIe ports": "cube.ucie.port_ns",
    "mesh bandwidth": "cube.noc.link_bw_gbs",
    "HBM bandwidth": "cube.hbm.channel_bw_gbs",
    "vector engine": "cube.pe.pe_math.clock_ghz",
    "issue of commands": "cube.pe.pe_cpu.command_ns",
    "slots": "n_slots",
    "bytes of a slot": "slot_size",
}


def gemm(
    m: int,
    n: int,
    k: int,
    *,
    machine: Machine | str | Mapping[str, Any] | None = None,
    dtype: str = "f16",
    trans_a: bool = False,
    trans_b: bool = False,
    placements: Sequence[str] | None = None,
    progress: bool | Callable[[ProductChoice], object] = True,
    workers: int | None = None,
    limit_s: float | None = None,
) -> ProductChoice:
    """Return the best placement of C[m, n] = A[m, k] B[k, n] over a SIP, and why it takes as long.

    Parameters
    ----------
    m, n, k : int
        Rows of A and C, columns of B and C, columns of A and rows of B.
    machine : Machine, str, mapping or None
        As for `kb.load`.
    dtype : str
        Type of A, B and C: "f16" or "bf16".
    trans_a, trans_b : bool
        Whether A is stored as [k, m], and B as [n, k].
    placements : sequence of str or None
        What to simulate: some of rows, columns, 2-D, 2-D turned, split-K, split-K in cubes, replicated. Default: those
        near the best by closed form.
    progress : bool or callable
        Whether a notebook shows what is known meanwhile; a function is called with the answer as it grows instead.
    workers : int or None
        Processes that simulate; default: one per core.
    limit_s : float or None
        Time on the host [s]; what is not known by then is in `missing` of the answer.

    Returns
    -------
    ProductChoice
        The placements by closed form, those near the best one simulated, and the critical path of the fastest.

    Raises
    ------
    ArgumentError
        If a size is less than 1, or the type or a placement is another.
    ConfigError
        If no placement fits in HBM.

    Examples
    --------
    >>> gemm(32, 32, 4096, machine="preset:small").best.placement
    'split-K in cubes'
    """
    asked: dict[str, Any] = {"machine": machine, "dtype": dtype, "trans_a": trans_a, "trans_b": trans_b}
    return last(gemm_stages(m, n, k, **asked, placements=placements, workers=workers, limit_s=limit_s), progress)


def gemm_stages(
    m: int,
    n: int,
    k: int,
    *,
    machine: Machine | str | Mapping[str, Any] | None = None,
    dtype: str = "f16",
    trans_a: bool = False,
    trans_b: bool = False,
    placements: Sequence[str] | None = None,
    workers: int | None = None,
    limit_s: float | None = None,
    tick: _Tick | None = None,
) -> Iterator[PartialAnswer[ProductChoice]]:
    sizes: dict[str, Any] = {"m": m, "n": n, "k": k}
    bad = {name: x for name, x in sizes.items() if not isinstance(x, int) or isinstance(x, bool) or x < 1}
    wrong = [f"{name} = {size!r} must be a whole number >= 1" for name, size in bad.items()]
    if dtype not in _DTYPES:
        wrong.append(f"dtype = {dtype!r} is unknown; known: {', '.join(_DTYPES)}")
    where = resolve_topology(machine)
    in_blocks = share_blocks(where.config)
    demanded = _demanded("placement", placements, [*PLACEMENTS, BY_BLOCKS] if in_blocks else list(PLACEMENTS), wrong)
    if wrong:
        raise ArgumentError("\n".join(wrong))
    simulations = Simulations(where, _simulated, workers, limit_s, tick)
    asked = {
        x: StoredProduct(m, n, k, x, dtype, trans_a, trans_b)
        for x in demanded or ([BY_BLOCKS] if in_blocks else PLACEMENTS)
    }
    pes = where.config.pes_per_sip
    rate = macs_per_ns(where.config, dtype) * pes
    answer = ProductChoice(next(iter(asked.values())), where.hash, pes, rate, (), missing=_ESTIMATES | _TIMES)
    yield PartialAnswer(answer)
    found = sorted(
        (_candidate(where, product) for product in asked.values()),
        key=lambda x: (x.estimate_ns is None, x.estimate_ns or 0.0),  # those that do not fit last
    )
    least = found[0].estimate_ns
    if least is None:
        raise ConfigError([f"{m} x {n} x {k}: no placement fits: {found[0].limiter}"])
    answer = replace(answer, product=asked[found[0].placement], candidates=tuple(found), missing=_TIMES)
    yield PartialAnswer(answer)
    near = [x for x in found if x.estimate_ns is not None and (demanded or x.estimate_ns <= NEAR * least)]
    if not demanded:  # the estimate of those behind is a bound, within a few percent, of their time
        for placement, row in simulations.run(_products(where, asked, near[:1])):
            answer = _with_product(answer, asked, placement, row, [x.placement for x in near[1:]])
            yield PartialAnswer(answer, simulations.progress)
        if answer.best.simulated_ns is None:
            return
        near = [x for x in near[1:] if x.estimate_ns is not None and x.estimate_ns < answer.simulated_ns]
    left = [x.placement for x in near]
    answer = replace(answer, missing=_times_of(left))
    for placement, row in simulations.run(_products(where, asked, near)):
        left.remove(placement)
        answer = _with_product(answer, asked, placement, row, left)
        yield PartialAnswer(answer, simulations.progress)
    yield PartialAnswer(answer)


# What is missing, by section, until it is known.
_ESTIMATES = {"estimates": "estimates"}
_TIMES = {"fastest": "simulated times", "why": "the critical path"}
_OTHERS, _CHANGES = {"spreads": "the same bytes on other PEs"}, {"changes": "changes of the machine"}


def _times_of(names: Sequence[str]) -> dict[str, str]:
    return {**_TIMES, "fastest": f"the simulated time of {', '.join(names)}"} if names else {}


def _demanded(kind: str, given: Sequence[str] | None, known: Iterable[str], wrong: list[str]) -> list[str]:
    """Deduplicate the requested names; append their faults to `wrong`."""
    if given is None:
        return []
    if isinstance(given, str) or not given:
        wrong.append(f"{kind}s = {given!r} must be a list of names; known: {', '.join(known)}")
        return []
    wrong += [f"{kind} {name!r} is unknown; {hint(name, known)}" for name in given if name not in known]
    return list(dict.fromkeys(given))


def _products(
    machine: Machine, asked: Mapping[str, StoredProduct], candidates: Iterable[PlacementCandidate]
) -> dict[str, Point]:
    values = {x.placement: asdict(asked[x.placement]) for x in candidates}
    work = LayersStudy().work
    return {
        name: Point({}, machine, {}, {"what": "product", **product}, _PRODUCT_S * work(machine, **product))
        for name, product in values.items()
    }


def _with_product(
    answer: ProductChoice, asked: Mapping[str, StoredProduct], placement: str, row: Row, left: Sequence[str]
) -> ProductChoice:
    candidates = [
        replace(x, simulated_ns=row["simulated_ns"]) if x.placement == placement else x for x in answer.candidates
    ]
    timed = [x for x in candidates if x.simulated_ns is not None]
    candidates = [*sorted(timed, key=attrgetter("simulated_ns")), *(x for x in candidates if x.simulated_ns is None)]
    best = candidates[0].placement
    why = Explanation.of(row["why"]) if best == placement else answer.why
    return replace(answer, product=asked[best], candidates=tuple(candidates), why=why, missing=_times_of(left))


def _simulated(machine: Machine, *, what: str, **values: Any) -> Row:
    kinds: dict[str, Callable[..., Row]] = {
        "product": _simulate_product,
        "collective": simulate_collective,
        "spread": _simulate_spread,
    }
    return kinds[what](machine, **values)


def _simulate_product(machine: Machine, **product: Any) -> Row:
    asked = StoredProduct(**product)
    log = "tile" if layer_work(machine.config, asked).tiles <= _TILES else "operation"
    result = run(machine, asked, log=log)[0]
    longest = max(result.launches, key=lambda launch: launch.end_ps - launch.start_ps)
    return {"simulated_ns": simulated_ns(result), "why": path_row(result.why(longest))}


def _candidate(machine: Machine, product: StoredProduct) -> PlacementCandidate:
    fault = obstacle(machine, product)
    if fault:
        return PlacementCandidate(product.placement, None, fault, 0, 0)
    asked = layer_work(machine.config, product)
    ns, limiter = estimate(machine, product.placed(machine.config), product.placement)
    return PlacementCandidate(product.placement, ns, limiter, asked.pes, asked.remote_bytes)


def choose(
    nbytes: int | str,
    *,
    sips: int | str | None = None,
    network: str | None = None,
    collective: str = "all_reduce",
    machine: Machine | str | Mapping[str, Any] | None = None,
    algorithms: Sequence[str] | None = None,
    changes: bool = True,
    progress: bool | Callable[[CollectiveChoice], object] = True,
    workers: int | None = None,
    limit_s: float | None = None,
) -> CollectiveChoice:
    """Return the fastest algorithm for a collective, why it takes as long, and what to change first.

    Parameters
    ----------
    nbytes : int or str
        Of the tensor of each SIP, held by its first PE: 65536 or "64KiB". Where PEs share memory, the channels of the
        protocol for this size cut it.
    sips : int, str or None
        How many, or a grid as "4x2" (columns x rows), "4x2x2" (and layers) of torus_3d; a count takes the squarest
        grid. Default: those of the machine.
    network : str or None
        Between SIPs: ring_1d, torus_2d, mesh_2d_no_wrap, torus_3d, fully_connected, switch or fat_tree. Default: the
        machine's.
    collective : str
        all_reduce, broadcast, ...
    machine : Machine, str, mapping or None
        As for `kb.load`.
    algorithms : sequence of str or None
        Which to simulate, by their names in ccl.yaml. Default: the best three by the alpha-beta model.
    changes : bool
        Whether to simulate the winner with each resource halved and doubled.
    progress : bool or callable
        Whether a notebook shows what is known meanwhile; a function is called with the answer as it grows instead.
    workers : int or None
        Processes that simulate; default: one per core.
    limit_s : float or None
        Time on the host [s]; what is not known by then is in `missing` of the answer.

    Returns
    -------
    CollectiveChoice

    Raises
    ------
    ArgumentError
        If a size, a grid, a collective or an algorithm is not one.
    ConfigError
        If the machine cannot have these SIPs, or no algorithm runs there.

    Examples
    --------
    >>> choose("1KiB", sips=2, machine="preset:small", changes=False).algorithm
    'recursive_doubling_allreduce'
    """
    question: dict[str, Any] = {"sips": sips, "network": network, "collective": collective, "machine": machine}
    options: dict[str, Any] = {"algorithms": algorithms, "changes": changes, "workers": workers, "limit_s": limit_s}
    return last(choose_stages(nbytes, **question, **options), progress)


def choose_stages(
    nbytes: int | str,
    *,
    sips: int | str | None = None,
    network: str | None = None,
    collective: str = "all_reduce",
    machine: Machine | str | Mapping[str, Any] | None = None,
    algorithms: Sequence[str] | None = None,
    changes: bool = True,
    workers: int | None = None,
    limit_s: float | None = None,
    tick: _Tick | None = None,
) -> Iterator[PartialAnswer[CollectiveChoice]]:
    size = bytes_of(nbytes)
    if collective not in COLLECTIVES:
        raise ArgumentError(f"collective {collective!r} is unknown; {hint(collective, COLLECTIVES)}")
    where = system_of(resolve_topology(machine), sips, network)
    check_sips(where)
    apart = where.config.memory_apart
    room = where.config.cube.hbm.slice_bytes(1 if apart else where.config.pes_per_cube)
    if size > room:
        whose = "" if apart else "a PE's share of "
        raise ArgumentError(f"{size:,} B are more than {whose}cube.hbm.size_gib, {room:,} B; pass fewer")
    simulations = Simulations(where, _simulated, workers, limit_s, tick)
    config = load_ccl_config(machine=where.config)
    known, wrong = names(config, collective, "rank"), list[str]()
    demanded = _demanded("algorithm", algorithms, known, wrong)
    if wrong:
        raise ArgumentError("\n".join(wrong))
    given, n = where.config.system.sips, where.config.n_sips
    sides = [side for side in (given.w, given.h, given.d) if side]
    system = f"{given.count} SIPs, {given.topology}" + (f" {'x'.join(map(str, sides))}" if sides else "")
    cut = collectives.over_channels(
        where.config, unnamed(config), size, {(0, 0): [size]}, lambda x, n: [x] * min(n, x // _ITEMSIZE)
    )
    pes = len(cut)
    each, places = _ITEMSIZE * -(-size // (_ITEMSIZE * pes)), [(0, pe) for pe in range(pes)]
    asked = (collective, each, n, where.hash)
    rest = ({} if apart else _OTHERS) | (_CHANGES if changes else {})
    unknown = Decision(*asked, (), {}, 0.0, "")
    answer = CollectiveChoice(system, unknown, size, pes, missing=_ESTIMATES | _TIMES | rest)
    yield PartialAnswer(answer)
    tuner = _tuner(where, demanded or known)
    found, refused = tuner.ranked(demanded or known, each, range(n), places, _ITEMSIZE, call_bytes=size)
    members = [(sip, *place) for sip in range(n) for place in places]
    bound = tuner.model.bounds(members, "rank").of(collective, each, _ITEMSIZE)
    answer = replace(
        answer,
        decision=decided(asked, found, refused, (bound.ns, bound.by)),
        missing=_TIMES | rest,
    )
    yield PartialAnswer(answer)
    near = found if demanded else worth_simulating(found)
    left = [x.algorithm for x in near]
    for name, row in simulations.run({x.algorithm: _collective(where, x, each, size, pes) for x in near}):
        left.remove(name)
        found = [replace(x, simulated_ns=row["latency_ns"]) if x.algorithm == name else x for x in found]
        decision = decided(asked, found, refused, (bound.ns, bound.by))
        answer = replace(answer, decision=decision, missing=_times_of(left) | rest)
        if decision.algorithm == name:
            answer = replace(answer, launched_ns=row["launched_ns"])
        yield PartialAnswer(answer, simulations.progress)
    if left:
        return
    yield from _rest(where, answer, demanded or known, simulations, changes)


def _rest(
    machine: Machine, answer: CollectiveChoice, known: Sequence[str], simulations: Simulations, changes: bool
) -> Iterator[PartialAnswer[CollectiveChoice]]:
    """Yield the answer with the same bytes on other PEs, then with each resource halved and doubled."""
    decision, size = answer.decision, answer.nbytes
    winner = _collective(machine, decision.best, decision.nbytes, size, answer.pes)
    # Simulated again: the time of the winner does not wait for the analysis.
    todo: dict[tuple[str, ...], Point] = {}
    todo[()] = replace(winner, parameters=winner.parameters | {"why": True}, work=2 * winner.work)
    asked: dict[str, tuple[int, int]] = {}
    for held_by, (cubes, pes) in ({} if machine.config.memory_apart else _spreads(machine)).items():
        each, rest = divmod(size, cubes * pes)
        if rest or each % _ITEMSIZE or cubes * pes == 1:  # these PEs cannot share it evenly
            continue
        asked[held_by] = cubes * pes, each
        values = {
            "what": "spread", "collective": decision.collective, "algorithms": list(known), "nbytes": each,
            "cubes": cubes, "pes": pes, "faster_than_ns": answer.simulated_ns,
        }  # fmt: skip
        todo[held_by,] = Point({}, machine, {}, values, _RANK_S * machine.config.n_sips * cubes * pes)
    best, where = decision.best, f"{answer.pes} channels" if answer.pes > 1 else next(iter(_spreads(machine)))
    spreads = [
        Spread(where, answer.pes, decision.nbytes, best.algorithm, best.n_slots, best.estimate_ns, best.simulated_ns)
    ]
    rows = [{"factor": BASE, "direction": "", "latency_ns": answer.simulated_ns}]
    if changes:
        todo |= _changed(machine, answer, winner.work)
    left = set(todo)
    for name, row in simulations.run(todo):
        left.remove(name)
        if not name:
            answer = replace(answer, why=Explanation.of(row["why"]))
        elif len(name) == 1 and row:
            spreads.append(Spread(name[0], *asked[name[0]], **row))
        elif len(name) > 1:
            rows.append({"factor": name[0], "direction": name[1], "latency_ns": row["latency_ns"]})
        answer = _with_rest(answer, spreads, rows, left)
        yield PartialAnswer(answer, simulations.progress)
    yield PartialAnswer(_with_rest(answer, spreads, rows, left))


def _with_rest(
    answer: CollectiveChoice, spreads: Sequence[Spread], rows: Sequence[Row], left: Iterable[tuple[str, ...]]
) -> CollectiveChoice:
    others = sorted(name[0] for name in left if len(name) == 1)
    halves = list(dict.fromkeys(name[0] for name in sorted(left) if len(name) > 1))
    missing = {} if answer.why is not None else {"why": _TIMES["why"]}
    missing |= {"spreads": f"the time on {', '.join(others)}"} if others else {}
    missing |= {"changes": f"changes of {', '.join(halves)}"} if halves else {}
    complete = [row for row in rows if row["factor"] not in halves]
    order = {name: i for i, name in enumerate(_RESOURCES)}
    complete.sort(key=lambda row: (order.get(row["factor"], -1), row["direction"]))
    return replace(
        answer,
        spreads=tuple(sorted(spreads, key=lambda x: (x.simulated_ns is None, x.ns))),
        changes=ranked(table(complete), "latency_ns") if len(complete) > 1 else None,
        missing=missing,
    )


def _tuner(machine: Machine, known: Iterable[str]) -> Tuner:
    config = load_ccl_config(machine=machine.config)
    algorithms = [resolve_algorithm_config(name, config) for name in known]
    return Tuner(machine, algorithms, simulate=collectives.simulator(machine), refine=0)


def _collective(machine: Machine, candidate: Candidate, nbytes: int, call_bytes: int, pes: int) -> Point:
    own: dict[str, Any] = {"algorithm": candidate.algorithm, "n_slots": candidate.n_slots, "pes": pes}
    work = _SEND_S * case_of(machine, **own).work(nbytes)
    return Point({}, machine, {}, {"what": "collective", "nbytes": nbytes, "call_bytes": call_bytes, **own}, work)


def simulate_collective(
    machine: Machine, *, algorithm: str, nbytes: int, n_slots: int, slot_size: int | None = None, pes: int = 1,
    call_bytes: int | None = None, why: bool = False,
) -> Row:  # fmt: skip
    """Simulate a collective of `nbytes` on each of the first PEs of every SIP, by the protocol for `call_bytes`."""
    planned = case_of(
        machine, algorithm=algorithm, nbytes=nbytes, call_bytes=call_bytes, n_slots=n_slots, slot_size=slot_size,
        pes=pes,
    ).plan  # fmt: skip
    ran = collectives.run_collective(machine, planned, nbytes)
    start_ns = machine.config.system.host.fetch_ns("", collective=True) + planned.algorithm.sends_by.start_ns
    row: Row = {"latency_ns": ran.latency_ns, "launched_ns": start_ns + simulated_ns(ran.result)}
    return row | {"why": path_row(ran.result.why(algorithm))} if why else row


def _simulate_spread(
    machine: Machine, *, collective: str, algorithms: Sequence[str], nbytes: int, cubes: int, pes: int,
    faster_than_ns: float,
) -> Row:  # fmt: skip
    """Return the fastest algorithm with shards on other PEs; an empty row if none runs there.

    Algorithms are simulated only if the best estimate is near or below `faster_than_ns`.
    """
    tuner, places = _tuner(machine, algorithms), list(product(range(cubes), range(pes)))
    sips = range(machine.config.n_sips)
    found, refused = tuner.ranked(algorithms, nbytes, sips, places, _ITEMSIZE)
    if not found:
        return {}
    asked = (collective, nbytes, len(sips), machine.hash)
    for x in worth_simulating(found, faster_than_ns):
        planned = tuner.plan(decided(asked, [x], {}, (0.0, "")), sips, places)
        timed = replace(x, simulated_ns=tuner.simulate(planned, nbytes, _ITEMSIZE))
        found[found.index(x)] = timed
    best = decided(asked, found, refused, (0.0, "")).best
    return {
        "algorithm": best.algorithm, "n_slots": best.n_slots, "estimate_ns": best.estimate_ns,
        "simulated_ns": best.simulated_ns,
    }  # fmt: skip


def bytes_of(text: int | str) -> int:
    """Parse a number of bytes: 65536, "65536", "64KiB".

    >>> bytes_of("64KiB"), bytes_of("1 MiB"), bytes_of(100)
    (65536, 1048576, 100)
    """
    try:
        return parsed_bytes(text)
    except ValueError as error:
        raise ArgumentError(f"bytes = {text!r} {error}") from None


def parsed_bytes(text: int | str) -> int:
    """Parse a number of bytes; a ValueError states the fault."""
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(text).strip())
    if match is None or match.group(2).upper() not in _UNITS or isinstance(text, bool):
        raise ValueError("must be a number of bytes, such as 65536 or 64KiB")
    found = int(match.group(1)) * _UNITS[match.group(2).upper()]
    if found < _ITEMSIZE or found % _ITEMSIZE:
        raise ValueError(f"must be a multiple of the {_ITEMSIZE} bytes of an f16 element, and not 0")
    return found


def parsed_sips(text: int | str) -> tuple[int, ...]:
    """Parse a count, or a grid: columns, rows and perhaps layers; a ValueError states the fault."""
    match = re.fullmatch(r"\d+(\s*x\s*\d+){,2}", str(text).strip())
    if match is None or isinstance(text, bool):
        raise ValueError("must be a number of SIPs, or a grid as 4x2: columns x rows, x layers of torus_3d")
    return tuple(int(side) for side in str(text).split("x"))


def check_sips(machine: Machine) -> None:
    if machine.config.n_sips < 2:
        raise ArgumentError("sips = 1 must be >= 2: a collective between SIPs needs two")


def system_of(machine: Machine, sips: int | str | None, network: str | None) -> Machine:
    """Return the machine with `sips` (a count, or a grid as "4x2") and the given network between them."""
    given = machine.config.system.sips
    name = network or given.topology
    if sips is None and network is None:
        return machine
    try:
        sides = parsed_sips(given.count if sips is None else sips)
    except ValueError as error:
        raise ArgumentError(f"sips = {sips!r} {error}") from None
    values = sips_of(name, prod(sides), *(sides if len(sides) > 1 else ()))
    return machine.with_({f"system.sips.{key}": value for key, value in values.items()})


def _spreads(machine: Machine) -> dict[str, tuple[int, int]]:
    """Return sets of PEs of a SIP by name, as (cubes, PEs of each); of equal sets, the first."""
    cubes, pes = machine.config.cubes_per_sip, machine.config.pes_per_cube
    found = {
        "one PE": (1, 1), f"the {pes} PEs of a cube": (1, pes), f"a PE of each of {cubes} cubes": (cubes, 1),
        f"all {cubes * pes} PEs": (cubes, pes),
    }  # fmt: skip
    first = {shape: name for name, shape in reversed(found.items())}
    return {name: shape for name, shape in found.items() if first[shape] == name}


def _changed(machine: Machine, answer: CollectiveChoice, host_s: float) -> dict[tuple[str, ...], Point]:
    """Return simulations of the winner with each resource halved and doubled, where that is a valid machine."""
    decision, config = answer.decision, machine.config
    own: dict[str, Any] = {"algorithm": decision.algorithm, "n_slots": decision.n_slots, "pes": answer.pes}
    used = case_of(machine, nbytes=decision.nbytes, call_bytes=answer.nbytes, **own).plan.algorithm
    slots: dict[str, Any] = {"n_slots": used.n_slots, "slot_size": used.slot_size}
    # Twice as many large slots may leave no room in TCM for messages.
    tried = slots if (used.slot_size or 0) <= LARGEST_CHUNK else {}

    def change(field: str, factor: float) -> dict[str, Any]:
        if field in slots:
            return {field: max(1, int(slots[field] * factor))}
        return scaled(config, {field: factor})

    factors = {
        name: {"down": change(field, 0.5), "up": change(field, 2)}
        for name, field in _RESOURCES.items()
        if field in tried or (field not in slots and attrgetter(field)(config))
    }
    sizes = {"nbytes": decision.nbytes, "call_bytes": answer.nbytes}
    fixed = {"algorithm": decision.algorithm, **sizes, "pes": answer.pes, **slots}
    plan = sensitivity_plan(machine, simulate_collective, factors, fixed)
    return {
        tuple(x.shown.values()): replace(x, parameters={"what": "collective", **x.parameters}, work=host_s)
        for x in plan.points
        if x.shown["factor"] != BASE
    }
