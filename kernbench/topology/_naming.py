"""Node ids: the only module that formats and parses them.

A node id is a path of the hierarchy: `sip0.cube5.pe3.pe_dma`. Kinds are the nodes' own names, except that
`sip0.io.noc` is an `io_noc`, `sip0.cube5.r1c4` a `router`, and UCIe ports are `ucie` on both sides.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from kernbench.errors import ArgumentError

PeId = tuple[int, int]  # cube and PE in it

HOST = "host"
SWITCH = "switch"

PE_PARTS = (
    "pe_cpu", "pe_scheduler", "pe_dma", "pe_fetch_store", "pe_gemm", "pe_math", "pe_tcm", "pe_mmu", "pe_ipcq",
)  # fmt: skip


def sip(sip: int) -> str:
    return f"sip{sip}"


def between_sips(kind: str, number: int) -> str:
    """Node of the network between SIPs: a sip_switch, nic or nic_switch."""
    return f"net{number}.{kind}"


def pcie_ep(sip: int) -> str:
    return f"sip{sip}.io.pcie_ep"


def io_cpu(sip: int) -> str:
    return f"sip{sip}.io.io_cpu"


def io_noc(sip: int) -> str:
    return f"sip{sip}.io.noc"


def io_ucie(sip: int, row: int, conn: int) -> str:
    """UCIe port `conn` of the IO chiplet towards the first cube of `row`."""
    return f"sip{sip}.io.ucie_r{row}.conn{conn}"


def cube(sip: int, cube: int) -> str:
    return f"sip{sip}.cube{cube}"


def router(sip: int, cube: int, row: int, col: int) -> str:
    return f"sip{sip}.cube{cube}.r{row}c{col}"


def ucie(sip: int, cube: int, side: str, conn: int) -> str:
    """UCIe port `conn` on `side` ("e", "w", "n" or "s") of a cube."""
    return f"sip{sip}.cube{cube}.ucie_{side}.conn{conn}"


def hbm(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.hbm_ctrl.pe{pe}"


def memory(sip: int, cube: int, kind: str, number: int, *, apart: bool) -> str:
    """Slice of HBM (hbm_ctrl) or of the last-level cache (llc): that of a PE, or, `apart`, of a controller."""
    return f"sip{sip}.cube{cube}.{kind}.{'mc' if apart else 'pe'}{number}"


def m_cpu(sip: int, cube: int) -> str:
    return f"sip{sip}.cube{cube}.m_cpu"


def sram(sip: int, cube: int) -> str:
    return f"sip{sip}.cube{cube}.sram"


def pe(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.pe{pe}"


def pe_cpu(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.pe{pe}.pe_cpu"


def pe_dma(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.pe{pe}.pe_dma"


def pe_tcm(sip: int, cube: int, pe: int) -> str:
    return f"sip{sip}.cube{cube}.pe{pe}.pe_tcm"


def pe_ipcq(sip: int, cube: int, pe: int) -> str:
    """Queue engine of a PE; it sends over the link of the PE's DMA."""
    return f"sip{sip}.cube{cube}.pe{pe}.pe_ipcq"


class ParsedId(NamedTuple):
    """A parsed id: the kind, and the coordinates that apply (the others are None).

    `row` is the router's row, or the cube row of an IO chiplet's UCIe port. `pe` is also the number of a memory slice.
    """

    kind: str
    sip: int | None = None
    cube: int | None = None
    pe: int | None = None
    row: int | None = None
    col: int | None = None
    side: str | None = None
    conn: int | None = None


_TRUNK = {HOST: ParsedId("host"), SWITCH: ParsedId("switch")}
_NUMBER = r"(0|[1-9]\d*)"
_BETWEEN_SIPS = re.compile(rf"net{_NUMBER}\.(sip_switch|nic|nic_switch)")
_IO = re.compile(rf"sip{_NUMBER}\.io\.(?:(pcie_ep|io_cpu|noc)|ucie_r{_NUMBER}\.conn{_NUMBER})")
_IN_CUBE = re.compile(
    r"(?P<single>m_cpu|sram)"
    rf"|r(?P<row>{_NUMBER})c(?P<col>{_NUMBER})"
    rf"|ucie_(?P<side>[ewns])\.conn(?P<conn>{_NUMBER})"
    rf"|(?P<memory>hbm_ctrl|llc)\.(?:pe|mc)(?P<slice>{_NUMBER})"
    rf"|pe(?P<pe>{_NUMBER})\.(?P<part>{'|'.join(PE_PARTS)})"
)


@lru_cache(maxsize=1 << 16)
def parse(node_id: str) -> ParsedId:
    """Parse a node id; ArgumentError if it has the form of none. The machine need not have the node.

    >>> parse("sip0.cube5.hbm_ctrl.pe3")
    ParsedId(kind='hbm_ctrl', sip=0, cube=5, pe=3, row=None, col=None, side=None, conn=None)
    """
    if node_id in _TRUNK:
        return _TRUNK[node_id]
    place = in_cube(node_id)
    local = _parse_local(place[2]) if place else None
    if place and local:
        return ParsedId(local.kind, place[0], place[1], local.pe, local.row, local.col, local.side, local.conn)
    if io := _IO.fullmatch(node_id):
        sip, kind, row, conn = io.groups()
        if kind:
            return ParsedId("io_noc" if kind == "noc" else kind, int(sip))
        return ParsedId("ucie", int(sip), row=int(row), conn=int(conn))
    if between := _BETWEEN_SIPS.fullmatch(node_id):
        return ParsedId(between[2])
    raise ArgumentError(
        f"{node_id!r} is not a node id; ids read like {HOST}, {io_noc(0)}, {router(0, 5, 1, 4)}, "
        f"{hbm(0, 5, 3)}, {pe_dma(0, 5, 3)}"
    )


@lru_cache(maxsize=1 << 12)
def _parse_local(local: str) -> ParsedId | None:
    """Parse what follows the cube in an id; None if that has the form of no node in a cube."""
    found = _IN_CUBE.fullmatch(local)
    if found is None:
        return None
    part = found.groupdict()

    def number(name: str) -> int | None:
        return None if part[name] is None else int(part[name])

    kind = part["single"] or part["memory"] or part["part"] or ("ucie" if part["side"] else "router")
    pe = number("pe" if part["part"] else "slice")
    return ParsedId(kind, None, None, pe, number("row"), number("col"), part["side"], number("conn"))


def in_cube(node_id: str) -> tuple[int, int, str] | None:
    """Split the id of a cube's node into SIP, cube and the rest; None for other ids.

    >>> in_cube("sip0.cube5.pe3.pe_dma")
    (0, 5, 'pe3.pe_dma')
    """
    sip, _, rest = node_id.partition(".")
    cube, _, local = rest.partition(".")
    if sip[:3] != "sip" or cube[:4] != "cube" or not (sip[3:].isdecimal() and cube[4:].isdecimal()):
        return None
    found = int(sip[3:]), int(cube[4:]), local
    return found if node_id == f"sip{found[0]}.cube{found[1]}.{local}" else None


@lru_cache(maxsize=4096)
def natural_key(node_id: str) -> tuple[str | int, ...]:
    """Sort key that orders numbers in ids as numbers: pe2 before pe10."""
    return tuple(int(word) if word.isdigit() else word for word in re.split(r"(\d+)", node_id))
