"""The host's part of the critical path: its operations, and the messages of launches and maps."""

from __future__ import annotations

from kernbench.analysis.causes import MESSAGE
from kernbench.analysis.trail import Next, Trail
from kernbench.analysis.way import Part


class HostPath(Trail):
    """What the host waited for, and how its messages came to the PEs and back."""

    def host_end(self, row: int) -> Next:
        """Say how the host came to know that its operation was complete."""
        command, kind = int(self.r.command[row]), self.kind_of(row)
        if kind in ("launch", "map", "install"):
            return "answer", (command, "host")
        for move in self.moves_of(command):
            if self.m["end_ps"][move] == self.t:
                return "move_end", (move,)
        self.add(int(self.r.start_ps[row]), kind, [Part("wait", "host", self.t - int(self.r.start_ps[row]))])
        return "host_start", (row,)

    def host_start(self, row: int) -> Next:
        """Say what the host waited for before it asked: an operation before, or nothing."""
        if not self.t:
            return None
        self.because("the operation before")
        sip = self.r.commands[self.r.command[row]].sip
        before = [i for i in self.host_rows(self.t) if i < row and self.r.end_ps[i] == self.t]
        if not before:
            before = [i for i in self.host_rows(self.t) if i != row and self.r.start_ps[i] < self.t]
        if not before:
            return None
        one = max(before, key=lambda i: (int(self.r.end_ps[i]), self.r.commands[self.r.command[i]].sip == sip, i))
        end = int(self.r.end_ps[one])
        self.add(end, "the program", [Part("wait", "host", self.t - end)])
        return "host_end", (one,)

    def message(self, command: int, *, src: str = "", dst: str = "", end: int | None = None) -> int | None:
        """Return a message of a launch or a map between nodes; `end` is when it arrived."""
        for i in self.moves_of(command):
            if self.m["kind"][i] != MESSAGE or (end is not None and self.m["end_ps"][i] != end):
                continue
            a, b = self.ways.ends(int(self.m["route"][i]))
            if a.endswith(src) and b.endswith(dst) and (not dst or b == dst or dst.startswith(".")):
                return i
        return None

    def add_message(self, move: int) -> None:
        """Add the way of a message."""
        start, nbytes = int(self.m["start_ps"][move]), int(self.m["nbytes"][move])
        route = int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        self.add(start, f"message {src} to {dst}", self.ways.parts(route, nbytes, self.t - start))

    def answer(self, command: int, dst: str) -> Next:
        """Follow the completion that came last, back to the PE that sent it."""
        self.because("the last completion" if dst == "host" else "the last answer")
        move = self.message(command, dst=dst, end=self.t)
        if move is None:
            return self.lost()
        src = self.ways.ends(int(self.m["route"][move]))[0]
        self.add_message(move)
        if not src.endswith(".pe_cpu"):
            return "answer", (command, src)
        self.because("the program's end")
        if command in self.begin:
            return "program_end", (src, command)
        return "decoded", (src, command)

    def decoded(self, cpu: str, command: int) -> Next:
        """Follow the copy that a PE_CPU has just decoded, back to the host."""
        for key in ("cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"):
            move = self.message(command, dst=cpu)
            if move is None:
                return self.lost()
            arrived = int(self.m["end_ps"][move])
            service = min(self.spec_ps(key), self.t - arrived)
            parts = [Part("cpu", cpu, service), Part("queueing", cpu, self.t - arrived - service)]
            self.add(arrived, f"{cpu} takes the message", [p for p in parts if p.ps])
            self.because("its message")
            self.add_message(move)
            cpu = self.ways.ends(int(self.m["route"][move]))[0]
        return "host_start", (self.op_row[command],)

    def program_start(self, cpu: str, command: int) -> Next:
        """Say why a program began: the common start, or its own late message."""
        self.because("the launch")
        service = self.spec_ps("cube.pe.pe_cpu.command_ns")
        if self.t > self.begin[command]:
            return "decoded", (cpu, command)
        for i in self.moves_of(command):
            node = self.ways.ends(int(self.m["route"][i]))[1]
            if self.m["kind"][i] == MESSAGE and node.endswith(".pe_cpu") and self.m["end_ps"][i] + service == self.t:
                return "decoded", (node, command)
        first = self.message(command, src=".io.io_cpu")
        if first is None:
            return self.lost()
        handed = int(self.m["start_ps"][first])
        self.add(handed, "until the common start", [Part("start", "the launch's last PE", self.t - handed)])
        move = self.message(command, src="host")
        if move is None:
            return self.lost()
        arrived = int(self.m["end_ps"][move])
        self.add(arrived, "io_cpu", [Part("cpu", self.ways.ends(int(self.m["route"][move]))[1], self.t - arrived)])
        self.add_message(move)
        return "host_start", (self.op_row[command],)
