"""The programs' part of the critical path: issue by PE_CPU, order among commands, what completes one."""

from __future__ import annotations

from bisect import bisect_left

from kernbench.analysis.causes import WRITE
from kernbench.analysis.path_host import HostPath
from kernbench.analysis.trail import Next
from kernbench.analysis.way import Part


class ProgramPath(HostPath):
    """Why a command was issued when it was, when it was ready, and when it was complete."""

    def program_end(self, cpu: str, launch: int) -> Next:
        """Say what a program's end waited for: the last of its commands."""
        commands = self.programs.get((cpu.removesuffix(".pe_cpu"), launch), [])
        for command in reversed(commands):
            if self.done.get(command) == self.t:
                return "command_end", (command,)
        if commands and self.issued[commands[-1]] == self.t:
            return "issue", (commands[-1],)
        return "program_start", (cpu, launch)

    def issue(self, command: int) -> Next:
        """Say why PE_CPU issued a command when it did."""
        pe = self.pe_name(command)
        self.because("PE_CPU's issue")
        base = self.t - self.spec_ps("cube.pe.pe_cpu.command_ns")
        self.add(base, f"{pe} issues {self.r.commands[command].name}", [Part("issue", f"{pe}.pe_cpu", self.t - base)])
        launch = self.launch[command]
        if launch < 0:
            return self.lost()
        program = self.programs[pe, launch]
        before = program[: bisect_left(program, command)]
        if before and self.issued[before[-1]] == self.t:
            return "issue", (before[-1],)
        for other in reversed(before):
            if self.done.get(other) == self.t:
                self.because("the program waits")
                return "command_end", (other,)
        if not before:
            return "program_start", (f"{pe}.pe_cpu", launch)
        return self.lost()

    def ready(self, command: int) -> Next:
        """Say what a command waited for: its issue, or a command before."""
        if self.issued.get(command) == self.t:
            return "issue", (command,)
        for other in self.after.get(command, ()):
            if self.done.get(other) == self.t:
                self.because("a command before")
                return "command_end", (other,)
        return self.lost()

    def ready_ps(self, command: int) -> int:
        """Return when a command had all that it depends on."""
        return max([self.issued.get(command, 0), *(self.done.get(c, 0) for c in self.after.get(command, ()))])

    def command_end(self, command: int) -> Next:
        """Say what completed a command."""
        row = self.op_row[command]
        kind = self.kind_of(row)
        if kind == "math":
            return "served", (row,)
        moves = self.moves_of(command)
        for i in moves:
            if self.m["end_ps"][i] == self.t and (kind != "composite" or self.m["kind"][i] == WRITE):
                return "move_end", (i,)
        if kind == "composite":
            stages = self.pe(self.pe_name(command)).stages
            store = stages.row.get((command, stages.tiles.get(command, 0) - 1, "s"))
            if store is not None and stages.left.get(store, self.r.end_ps[store]) == self.t:
                return "left", (store,)
            return "behind", (command, int(self.r.start_ps[row]))
        return self.lost()

    def behind(self, command: int, start: int) -> Next:
        """Take a composite whose tiles were not logged as one step, from `start` to here."""
        pe, info = self.pe_name(command), self.r.commands[command]
        what = f"composite {info.name} of {pe}, tiles not logged"
        self.add(start, what, [Part("composite", f"{pe}.pe_scheduler", self.t - start)])
        ready = self.ready_ps(command)
        if self.t == ready + self.spec_ps("cube.pe.pe_mmu.lookup_ns") + self.spec_ps("cube.pe.pe_scheduler.tile_ns"):
            self.add(ready, "planning", [Part("plan", f"{pe}.pe_scheduler", self.t - ready)])
            return "ready", (command,)
        return "engines", (command,)

    def engines(self, command: int) -> Next:
        """Go on with the composite before, whose tiles, not logged, kept the engines from `command`."""
        self.because("the engines' previous work")
        pe = self.pe(self.pe_name(command))
        for other in reversed(pe.commands):
            row = self.op_row.get(other, -1)
            if other >= command or row < 0 or other in pe.stages.tiles or self.kind_of(row) != "composite":
                continue
            if self.r.start_ps[row] < self.t <= self.r.end_ps[row]:
                return "behind", (other, int(self.r.start_ps[row]))
        ready = self.ready_ps(command)
        if ready < self.t:
            wait = Part("wait", f"{self.pe_name(command)}.pe_scheduler", self.t - ready)
            self.add(ready, f"{self.r.commands[command].name} waits for its engines", [wait])
            return "ready", (command,)
        return self.lost()
