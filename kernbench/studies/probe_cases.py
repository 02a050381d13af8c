"""What the probe asks a machine: single transfers over ever longer ways, patterns of many at once, and PE to PE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernbench.config.rules import pe_places
from kernbench.errors import ArgumentError
from kernbench.registry import hint
from kernbench.topology import naming
from kernbench.topology.builder import Machine

Pe = tuple[int, int, int]  # (sip, cube, pe)
PAIR_KINDS = ("message", "load", "store")


@dataclass(frozen=True, slots=True)
class Case:
    """Transfers that start at the same instant on an idle machine, one for each asking node."""

    name: str
    kind: str
    ends: tuple[tuple[str, str], ...]
    says: str
    pair: tuple[Pe, Pe] | None = None

    @property
    def pattern(self) -> bool:
        """Whether several transfers meet."""
        return len(self.ends) > 1


def cases(machine: Machine) -> dict[str, Case]:
    """Return all cases that `machine` has the parts for, by name."""
    found = [
        Case("h2d-write", "write", ((naming.HOST, naming.hbm(0, 0, 0)),), "host to the slice of PE 0, cube 0, SIP 0"),
        Case("d2h-read", "read", ((naming.HOST, naming.hbm(0, 0, 0)),), "the same slice to the host"),
        *_single(machine),
        *_patterns(machine),
        *_pairs(machine),
    ]
    return {case.name: case for case in found}


def select(machine: Machine, names: Sequence[str] = ()) -> list[Case]:
    """Return the named cases, or all."""
    known = cases(machine)
    for name in names:
        if name not in known:
            raise ArgumentError(f"no probe case {name!r} on this machine; {hint(name, known, likeness=0.3)}")
    return [known[name] for name in names] if names else list(known.values())


def _single(machine: Machine) -> Iterable[Case]:
    """Yield reads and writes of PE 0 of cube 0 of SIP 0, the nearest slice first."""
    config = machine.config
    last_pe, last_cube = config.pes_per_cube - 1, config.cubes_per_sip - 1
    slices: dict[str, tuple[Pe, str]] = {"own-slice": ((0, 0, 0), "its own slice")}
    if last_pe > 1:
        slices["same-half"] = ((0, 0, 1), "the slice of its neighbour, PE 1")
    if last_pe > 0:
        slices["other-half"] = ((0, 0, last_pe), f"the slice of PE {last_pe}, across the cube")
    if last_cube > 0:
        slices["next-cube"] = ((0, 1, 0), "the slice of PE 0, cube 1")
    if last_cube > 1:
        slices["farthest-cube"] = ((0, last_cube, last_pe), f"the slice of PE {last_pe}, cube {last_cube}")
    if config.n_sips > 1:
        slices["other-sip"] = ((1, 0, 0), "the slice of PE 0, cube 0, SIP 1")
    for kind in ("read", "write"):
        for name, (place, says) in slices.items():
            yield Case(
                f"{name}-{kind}",
                kind,
                ((naming.pe_dma(0, 0, 0), naming.hbm(*place)),),
                f"PE 0 of cube 0 {kind}s {says}",
            )


def _patterns(machine: Machine) -> Iterable[Case]:
    """Yield the patterns, each as writes and as reads."""
    config = machine.config
    pes, cubes = range(config.pes_per_cube), range(config.cubes_per_sip)
    everyone = [(0, cube, pe) for cube in cubes for pe in pes]
    n = len(everyone)
    for kind in ("write", "read"):
        if n > 1:
            own = [(pe, pe) for pe in everyone]
            yield _pattern("all-own", kind, own, f"{n} PEs of SIP 0, each its own slice")
            middle = (0, _middle_cube(machine), 0)
            one = [(pe, middle) for pe in everyone]
            yield _pattern("all-one", kind, one, f"{n} PEs of SIP 0, all the slice of PE 0, cube {middle[1]}")
        if config.sip.cube_mesh.w > 1 and len(pes) > 1:
            # Data go east: writes from the west, reads from the east.
            west, east = [(0, 0, pe) for pe in pes], [(0, 1, pe) for pe in pes]
            pairs = list(zip(west, east, strict=True) if kind == "write" else zip(east, west, strict=True))
            says = "cube 0 to cube 1" if kind == "write" else "cube 1 from cube 0"
            yield _pattern("eastbound", kind, pairs, f"{len(pes)} PEs of {says}, each the slice of the same PE there")
        if config.n_sips > 1:
            other = [((s, c, p), (1, c, p)) for s, c, p in everyone]
            yield _pattern("to-other-sip", kind, other, f"{n} PEs of SIP 0, each the slice of the same PE in SIP 1")
        if config.n_pes > n:
            to_first = [((s, *pe[1:]), (0, 0, 0)) for s in range(config.n_sips) for pe in everyone]
            yield _pattern("all-pe0", kind, to_first, f"{config.n_pes} PEs, all the slice of PE 0, cube 0, SIP 0")


def _pattern(name: str, kind: str, pairs: Sequence[tuple[Pe, Pe]], says: str) -> Case:
    ends = tuple((naming.pe_dma(*pe), naming.hbm(*slice_of)) for pe, slice_of in pairs)
    return Case(f"{name}-{kind}", kind, ends, f"{kind}s: {says}")


def _pairs(machine: Machine) -> Iterable[Case]:
    """Yield what PE 0 of cube 0 has and another PE needs, for the next PE and the next cube of its row and column."""
    mesh, places = machine.config.sip.cube_mesh, pe_places(machine.config)
    (row, column), others = places[0], list(enumerate(places))[1:]
    east = [pe for pe, (r, c) in sorted(others, key=lambda at: at[1][1]) if r == row and c > column]
    south = [pe for pe, (r, c) in sorted(others, key=lambda at: at[1][0]) if c == column and r > row]
    peers: dict[str, Pe] = {}
    if east:
        peers["pe-east"] = (0, 0, east[0])
    if south:
        peers["pe-south"] = (0, 0, south[0])
    if mesh.w > 1:
        peers["cube-east"] = (0, 1, 0)
    if mesh.h > 1:
        peers["cube-south"] = (0, mesh.w, 0)
    for name, peer in peers.items():
        there = f"PE {peer[2]} of cube {peer[1]}"
        says = {
            "message": f"PE 0 of cube 0 sends {there} a message",
            "load": f"{there} loads from the slice of PE 0, cube 0",
            "store": f"PE 0 of cube 0 stores to the slice of {there}",
        }
        for kind in PAIR_KINDS:
            yield Case(f"{name}-{kind}", kind, (), says[kind], ((0, 0, 0), peer))


def _middle_cube(machine: Machine) -> int:
    mesh = machine.config.sip.cube_mesh
    return (mesh.h - 1) // 2 * mesh.w + (mesh.w - 1) // 2
