"""The reduction of a SIP switch: the parts of several queues wait for each other there, and leave with their sum."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis._records import ARRIVED, PART
from kernbench.errors import KernelError
from kernbench.sim_engine._callee import Callee

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_ipcq import QueuePart
    from kernbench.sim_engine.engine import GraphEngine


class SwitchSum(Callee):
    """Adds the parts of one number of `n` queues when the last of them has arrived (M8.8)."""

    def __init__(self, engine: GraphEngine, node_id: str, n: int) -> None:
        self.network, self.core, self.log, self.name, self.n = engine.network, engine.env.core, engine.log, node_id, n
        self._waiting: dict[int, list[QueuePart]] = {}

    def landed(self, slot: QueuePart) -> None:
        now, log, message = self.core.now, self.log, slot.message
        if log.operation:
            slot.in_by = ARRIVED | slot.move << 3
            log.move(
                slot.move, slot.sent_ps, now, slot.route, slot.nbytes, message.id, slot.index, PART, slot.key,
                now, -1, -1, now, slot.in_by,
            )  # fmt: skip
        parts = self._waiting.setdefault(slot.number, [])
        parts.append(slot)
        if len(parts) < self.n:
            return
        del self._waiting[slot.number]
        if len({(part.message.nbytes, part.index, part.message.dtype) for part in parts}) > 1:
            sent = ", ".join(f"{p.message.nbytes} B of {p.message.dtype} by {p.message.pe.name}" for p in parts)
            raise KernelError(f"{self.name} adds messages of one size and type, and got {sent}; send the same from all")
        if slot.index == message.parts - 1:
            _add([part.message for part in sorted(parts, key=lambda part: part.message.pe.place)])
        causes = [part.in_by for part in parts[:-4:-1]]
        for part in parts:
            queue = part.message.queue
            part.route, part.sent_ps = queue.down, now
            part.key = queue.down.key()
            if log.operation:
                part.move = log.sent(*causes)
                log.waits.follow(part.key)
            self.network.send(queue.down, queue.carried(part.nbytes), part.key, queue.peer, part)


def _add(messages: list[Any]) -> None:
    """Give all messages the sum of their values: in order, in f32 for shorter floats, and rounded once."""
    given, dtype = [message.bytes() for message in messages], messages[0].dtype
    if any(data is None for data in given):
        return  # a run without data
    total = dtype.encode(reduce(np.add, [dtype.decode(data, -1) for data in given]))
    for message in messages:
        message.data, message.array = total, None
