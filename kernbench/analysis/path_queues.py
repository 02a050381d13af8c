"""The queues' part of the critical path: slots read, parts on their way, the credits that they waited for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kernbench.analysis.causes import CREDIT, FETCH, PART
from kernbench.analysis.path_program import ProgramPath
from kernbench.analysis.trail import Next
from kernbench.analysis.way import Part


class QueuePath(ProgramPath):
    """Why a message was received when it was."""

    def command_end(self, command: int) -> Next:
        """Say what completed a command: of a receive its last part, of a send the arrival of its last one."""
        kind = self.kind_of(self.op_row[command])
        if kind == "recv":
            return "slot_read", (self.op_row[command],)
        if kind == "send":
            return self._arrival(command)
        return super().command_end(command)

    def slot_read(self, row: int) -> Next:
        """Take the way of a part out of its slot as a step."""
        command, start = int(self.r.command[row]), int(self.r.start_ps[row])
        pe, info = self.pe_name(command), self.r.commands[command]
        sends = self._sends(command)
        slots = {self._slot_of(i) for send in sends for i in self.moves_of(send) if self.m["kind"][i] == PART}
        where = slots.pop().replace(".store", ".fetch") if slots else f"{pe}.pe_fetch_store.fetch"
        self.add(start, f"{info.name} from {info.tag}", [Part("slot", where, self.t - start)])
        for send in sends:
            step = self._arrival(send)
            if step is not None:
                self.because("a message's arrival")
                return step
        for other in self._reads_until(pe):
            self.because("the slot read before")
            return "slot_read", (other,)
        return self.ready(command)

    def _slot_of(self, move: int) -> str:
        """Return what writes a part into its slot: a memory, or the port of TCM."""
        return self.ways.ends(int(self.m["route"][move]))[1].replace(".pe_dma", ".pe_fetch_store.store")

    def _sends(self, command: int) -> list[int]:
        return [c for c in self.after.get(command, ()) if self.kind_of(self.op_row[c]) == "send"]

    def _reads_until(self, pe: str) -> Iterator[int]:
        """Yield the rows of slots of a PE that had been read just now."""
        component = self.components.get(f"{pe}.pe_ipcq", -1)
        rows = map(int, np.flatnonzero((self.r.component == component) & (self.r.end_ps == self.t)))
        yield from (i for i in rows if self.kind_of(i) == "recv" and self.r.start_ps[i] < self.t)

    def _arrival(self, send: int) -> Next:
        for i in self.moves_of(send):
            if self.m["kind"][i] == PART and self.m["end_ps"][i] == self.t:
                return "part", (i,)
        return None

    def part(self, move: int) -> Next:
        """Take the way of a part, and into its slot, as a step; go on with why it left when it did."""
        send, start = int(self.m["command"][move]), int(self.m["start_ps"][move])
        arrived, route = int(self.m["arrived_ps"][move]), int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        parts = self.ways.parts(route, int(self.m["nbytes"][move]), arrived - start)
        if self.t > arrived:
            parts.append(Part("slot", self._slot_of(move), self.t - arrived))
        self.add(start, f"part {self.m['tile'][move]} of a message from {src} to {dst}", parts)
        return "left_for", (move, send)

    def left_for(self, move: int, send: int) -> Next:
        """Say why a part left when it did: it had just been read from memory, or it had its slot."""
        for i in self._fetches(send, int(self.m["tile"][move])):
            if self.m["end_ps"][i] == self.t:
                self.because("what it carries")
                return "move_end", (i,)
        return self._given(move, send, self.m["start_ps"])

    def fetched(self, move: int, send: int) -> Next:
        """Say why a part was read from memory when it was: it had its slot."""
        tile = self.m["tile"][move]
        part = next(i for i in self.moves_of(send) if self.m["kind"][i] == PART and self.m["tile"][i] == tile)
        return self._given(part, send, self.m["start_ps"])

    def _fetches(self, send: int, index: int) -> list[int]:
        return [i for i in self.moves_of(send) if self.m["kind"][i] == FETCH and self.m["tile"][i] == index]

    def _given(self, move: int, send: int, starts: np.ndarray) -> Next:
        """Say why a part had its slot now: its credit, its send, or the part before."""
        credit = self.by_key.get(int(self.m["opener"][move]), -1)
        if credit >= 0 and self.m["kind"][credit] == CREDIT and self.m["end_ps"][credit] == self.t:
            self.because("a credit")
            return "credit", (credit,)
        if self.ready_ps(send) == self.t:
            self.because("its send")
            return "ready", (send,)
        pe = self.pe_name(send)
        together = np.isin(self.m["kind"], (PART, FETCH)) & (starts == self.t)
        for i in map(int, np.flatnonzero(together)):
            other = int(self.m["command"][i])
            before = (other, self.m["tile"][i]) < (send, self.m["tile"][move])
            if before and self.pe_name(other) == pe:
                self.because("the part before")
                return ("left_for" if self.m["kind"][i] == PART else "fetched"), (i, other)
        return self.lost()

    def credit(self, move: int) -> Next:
        """Take the way of a credit as a step; go on with what freed its slot."""
        start, route = int(self.m["start_ps"][move]), int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        way = self.ways.parts(route, int(self.m["nbytes"][move]), self.t - start)
        self.add(start, f"credit from {src} to {dst}", way)
        self.because("a slot's release")
        pe = src.removesuffix(".pe_dma")
        for row in self._reads_until(pe):
            return "slot_read", (row,)
        for command in reversed(self.commands.get(pe, [])):
            if self.done.get(command) == self.t:
                return "command_end", (command,)
            if self.issued[command] == self.t:
                return "issue", (command,)
        return self.lost()
