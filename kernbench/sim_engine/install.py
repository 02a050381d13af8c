"""Queues between PEs: what one end of a queue knows, and the messages that tell the PEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.broadcast import Broadcast, Target
from kernbench.sim_engine.op_log import KIND
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine

# A direction's entry: two addresses, a place, two names, sizes (chosen: one line of registers).
QUEUE_BYTES = 64


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One direction of a PE: a ring that its peer fills, and the peer's ring that it fills.

    Parameters
    ----------
    direction : str
        What the program calls the peer.
    peer : (sip, cube, pe)
        Who is at the other end.
    ring_pa, peer_pa : int
        Physical addresses: of the ring where the peer's messages land, and of the peer's.
    kind : str
        Where both rings lie: "tcm", "sram" or "hbm".
    n_slots, slot_bytes : int
        Of each ring.
    credit_bytes : int
        The message that gives a slot back.
    chunk_bytes : int
        Between turns of queue and other traffic at the PE's own link.
    """

    direction: str
    peer: tuple[int, int, int]
    ring_pa: int
    peer_pa: int
    kind: str
    n_slots: int
    slot_bytes: int
    credit_bytes: int
    chunk_bytes: int


class QueueInstall(Broadcast):
    """The queues of PEs of one SIP: `QUEUE_BYTES` for each direction of the PEs behind a copy."""

    def __init__(self, engine: GraphEngine, sip: int, wiring: Mapping[Target, Sequence[QueueSpec]], key: str) -> None:
        super().__init__(engine, sip, list(wiring), f"install {key}")
        self.wiring, self.key = wiring, key
        self.sent_ps = engine.env._now
        self._directions: dict[int | None, int] = {None: sum(map(len, wiring.values()))}
        for (cube, _), specs in wiring.items():
            self._directions[cube] = self._directions.get(cube, 0) + len(specs)

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        """Return the bytes of the copy for a cube, for one of its PEs, or for all."""
        if cube is None or pe is None:
            return QUEUE_BYTES * self._directions[cube]
        return QUEUE_BYTES * len(self.wiring[cube, pe])

    def taken(self, cpu: Any) -> None:
        """Set up the queues, and answer."""
        _, cube, pe = cpu.place
        cpu.pe.ipcq.install(self.key, self.wiring[cube, pe])
        self.answer(cpu)

    def _all_done(self, _: object) -> None:
        now, log = self.engine.env._now, self.engine.log
        if log.operation:
            log.row(self.sent_ps, now, log.component(naming.HOST), KIND["install"], self.id, self.nbytes_of(), 0, -1)
        super()._all_done(_)
