"""Messages that a collective leaves in its queues: the next one would get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.errors import KernelError
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.ccl.group import Place
    from kernbench.ccl.plan import Plan
    from kernbench.components.queues import Queue
    from kernbench.sim_engine.engine import GraphEngine


class Ends:
    """What the programs of one collective have sent and received, noted as each device ends.

    Devices that are ahead may be in the next collective by then: what they send there is not this one's, so the
    queues are compared as they were, and not as they are when the last device ends.
    """

    def __init__(self, engine: GraphEngine, plan: Plan, key: str, title: str) -> None:
        self._engine, self._plan, self._key, self._title = engine, plan, key, title
        self._left = len(plan.sips)
        self._noted: dict[tuple[Place, str], tuple[int, int]] = {}

    def note(self, places: list[Place]) -> None:
        """Take note of a device, all programs of which have ended.

        Raises
        ------
        KernelError
            If it is the last one, and a message is unread.
        """
        for place in places:
            for way, queue in self._queues(place).items():
                self._noted[place, way] = queue.sent, queue.taken
        self._left -= 1
        if not self._left:
            self._check()

    def _queues(self, place: Place) -> dict[str, Queue]:
        found: dict[str, Queue] = self._engine.part(naming.pe_cpu(*place)).pe.ipcq.sets.get(self._key, {})
        return found

    def _check(self) -> None:
        ways = [
            (place, way, *end) for place, role in self._plan.programs.items() for way, end in role.neighbours.items()
        ]
        for place, way, peer, back in ways:
            parts = self._noted[place, way][0] - self._noted[peer, back][1]
            if parts:
                sizes = []
                for message in self._queues(peer)[back].inbox:
                    if parts > 0:
                        sizes.append(f"{message.nbytes} B")
                    parts -= message.parts
                raise KernelError(
                    f"{self._title}: {naming.pe(*peer)} ended without reading what {naming.pe(*place)} sent it over "
                    f"{way!r} ({back!r} where it arrives): {', '.join(sizes)}; receive every message that is sent, or "
                    "the next collective gets it"
                )
