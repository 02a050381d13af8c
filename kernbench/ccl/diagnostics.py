"""The state of the queues of a machine, at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.errors import IpcqDeadlock
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


__all__ = ["IpcqDeadlock", "RingState", "pointer_dump", "rings"]


@dataclass(frozen=True, slots=True)
class RingState:
    """One direction of a PE. Heads and tails count slots since the installation; the slots in between are occupied."""

    pe: str
    direction: str  # the queue's name in programs
    peer: str  # the PE at the other end
    key: str  # the installation that it belongs to
    address: PhysAddr  # the start of the ring
    kind: str  # its memory: "tcm", "sram" or "hbm"
    n_slots: int
    slot_bytes: int
    head: int  # slots released
    tail: int  # slots filled by the peer
    sent_head: int  # of the peer's ring, as known to this PE; credits are `n_slots` minus what is between them
    sent_tail: int
    waiting: int  # sends that have not left completely

    def __str__(self) -> str:
        return (
            f"{self.pe} {self.direction} <-> {self.peer}: ring of {self.n_slots} x {self.slot_bytes} B at "
            f"{self.address}, head {self.head}, tail {self.tail}; peer's ring head {self.sent_head}, tail "
            f"{self.sent_tail}, {self.waiting} sends wait ({self.key})"
        )


def pointer_dump(engine: GraphEngine) -> str:
    """State of every queue of the machine as text, a line for each direction of a PE."""
    return "\n".join(map(str, rings(engine)))


def rings(engine: GraphEngine) -> list[RingState]:
    """State of every queue of the machine, PE by PE; changes nothing and takes no simulated time."""
    found = []
    for pe in engine.pes():
        for key, queues in pe.ipcq.sets.items():
            for queue in queues.values():
                spec = queue.spec
                found.append(
                    RingState(
                        pe.name,
                        spec.direction,
                        naming.pe(*spec.peer),
                        key,
                        PhysAddr.decode(spec.ring_pa),
                        spec.kind,
                        spec.n_slots,
                        spec.slot_bytes,
                        queue.released,
                        queue.arrived,
                        queue.acknowledged,
                        queue.sent,
                        len(queue.outbox),
                    )
                )
    return sorted(found, key=lambda ring: (ring.pe, ring.key, ring.direction))


def __getattr__(name: str) -> Any:
    if name not in ("log_send", "reload_trace_setting", "trace_enabled"):
        raise AttributeError(f"module 'kernbench.ccl.diagnostics' has no attribute {name!r}")
    from kernbench import compat

    return getattr(compat, name)
