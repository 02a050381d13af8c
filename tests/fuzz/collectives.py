"""Collectives of ranks against numpy: every algorithm, odd worlds and sizes, overlap, groups, failures."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.config import default_ccl_path, read_ccl
from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.runtime_api.context import session
from kernbench.topology.builder import Machine, resolve_topology
from tests.fuzz.report import Report

WORLDS = range(1, 18)
SIZES = (1, 2, 3, 5, 7, 31, 64, 127, 513, 1000)
TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i32": np.int32}
OPS = {"sum": np.sum, "max": np.max, "min": np.min}
# What a named algorithm answers to a group that it cannot serve.
MISFIT = re.compile(r"algorithm '\w+': .*(form no grid|world_size = \d+, but \d+ take part|has no cycle)")
KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "message", "barrier")


@cache
def machine(sips: int) -> Machine:
    """Return a machine of so many SIPs, in a ring or, where they fill one, a grid, each of one cube with 4 PEs."""
    side = next((w for w in (4, 3, 2) if sips > w and sips % w == 0 and sips // w > 1), 0)
    grid = {"system.sips.topology": "torus_2d", "system.sips.w": side, "system.sips.h": sips // side} if side else {}
    small = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    return resolve_topology("preset:default", {**small, "system.sips.count": sips, **grid})


@cache
def algorithms(kind: str) -> list[str]:
    ccl = read_ccl(default_ccl_path())
    known = {name for name, entry in ccl.algorithms.items() if entry.collective == kind}
    return ["auto", *(name for name in ccl.algorithms if name in known - {"switch_allreduce"})]


class Drawn:
    """A random program of ranks: calls in turn, some of them overlapped with another or in a group."""

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.seed, self.world = seed, WORLDS[seed % len(WORLDS)]
        self.name = chosen.choice(list(TYPES))
        self.size, self.op = chosen.choice(SIZES), chosen.choice(list(OPS))
        self.calls = [chosen.choice(KINDS) for _ in range(chosen.choice([1, 1, 2]))]
        self.algorithm = {kind: chosen.choice(algorithms(kind)) for kind in KINDS if kind != "message"}
        self.is_async = chosen.random() < 0.5
        self.members = sorted(chosen.sample(range(self.world), chosen.randrange(1, self.world + 1)))
        self.root = chosen.choice(self.members)
        self.fails = chosen.random() < 0.1
        self.culprit = chosen.choice(self.members)

    def __str__(self) -> str:
        named = {kind: name for kind, name in self.algorithm.items() if kind in self.calls}
        who = f"world {self.world}, group {self.members}, root {self.root}"
        return f"{who}, {self.size} x {self.name}, {self.op}, {self.calls}, {named}"

    def values(self, rank: int, n: int = 1) -> np.ndarray:
        """Return what a rank gives: whole numbers whose sums are exact in every type."""
        return np.random.default_rng([self.seed, rank]).integers(-4, 5, self.size * n).astype(TYPES[self.name])

    def program(self, rank: int, torch: Any, found: dict[Any, np.ndarray]) -> None:
        dist = torch.distributed
        dist.init_process_group("ahbm")
        # all_to_all is refused as an option: it goes straight from rank to rank.
        options = {kind: name for kind, name in self.algorithm.items() if kind in self.calls}
        options = {kind: name for kind, name in options.items() if name != "auto" and kind != "all_to_all"}
        group = dist.new_group(self.members, pg_options=options or None)
        if rank not in self.members:
            return
        pending = []
        for i, kind in enumerate(self.calls):
            if self.fails and rank == self.culprit:
                raise ZeroDivisionError("as asked for")
            out, work = self.call(kind, rank, torch, group)
            pending.append((i, out, work))
            if not self.is_async and work is not None:
                work.wait()
        for i, out, work in pending:
            if work is not None and self.is_async:
                work.wait()
            found[i, rank] = out.numpy()

    def call(self, kind: str, rank: int, torch: Any, group: Any) -> tuple[Any, Any]:
        dist, n = torch.distributed, len(self.members)
        wide = n if kind in ("reduce_scatter", "all_to_all") else 1
        x = torch.from_numpy(self.values(rank, wide)).to("ahbm")
        op = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[self.op]
        more = {"group": group, "async_op": True}
        if kind == "all_reduce":
            return x, dist.all_reduce(x, op=op, **more)
        if kind == "broadcast":
            return x, dist.broadcast(x, self.root, **more)
        if kind == "reduce":
            return x, dist.reduce(x, self.root, op=op, **more)
        if kind == "barrier":
            return x, dist.barrier(**more)
        if kind == "message":
            return self.message(rank, x, torch)
        out = torch.from_numpy(np.zeros(self.size * (1 if kind == "reduce_scatter" else n), TYPES[self.name])).to(
            "ahbm"
        )
        if kind == "all_gather":
            return out, dist.all_gather_into_tensor(out, x, **more)
        if kind == "reduce_scatter":
            return out, dist.reduce_scatter_tensor(out, x, op=op, **more)
        return out, dist.all_to_all_single(out, x, **more)

    def message(self, rank: int, x: Any, torch: Any) -> tuple[Any, Any]:
        first, last = self.members[0], self.members[-1]
        if first != last and rank == first:
            return x, torch.distributed.isend(x, last)
        if first != last and rank == last:
            return x, torch.distributed.irecv(x, first)
        return x, None

    def expected(self, kind: str, rank: int) -> np.ndarray | None:
        """Return what a member has at the end; None where torch does not say."""
        n, at = len(self.members), self.members.index(rank)
        wide = n if kind in ("reduce_scatter", "all_to_all") else 1
        given = np.stack([self.values(member, wide) for member in self.members])
        total = OPS[self.op](given.astype(np.float64), axis=0).astype(TYPES[self.name])
        parts = given.reshape(n, wide, self.size)
        return {
            "all_reduce": lambda: total,
            "broadcast": lambda: self.values(self.root),
            "reduce": lambda: total if rank == self.root else None,
            "barrier": lambda: given[at],
            "message": lambda: given[0] if rank == self.members[-1] else given[at],
            "all_gather": lambda: given.reshape(-1),
            "reduce_scatter": lambda: total.reshape(wide, self.size)[at],
            "all_to_all": lambda: parts[:, at].reshape(-1),
        }[kind]()  # type: ignore[no-untyped-call]


def run(seeds: range, _folder: object = None) -> Report:
    """Run the programs of `seeds` and compare what every rank has."""
    report = Report("collectives")
    for seed in seeds:
        drawn = Drawn(seed)
        report.tried += 1
        found: dict[Any, np.ndarray] = {}
        wrong = ""
        try:
            with session(machine(drawn.world), data=True, limits={"host_s": 60}) as torch:
                torch.multiprocessing.spawn(drawn.program, (torch, found), nprocs=drawn.world)
        except ProcessRaisedException as error:
            cause = error.__cause__
            if isinstance(cause, ConfigError) and MISFIT.search(str(cause)):
                report.count("refused: the group does not fit the algorithm")
            elif not drawn.fails or error.error_index != drawn.culprit or not isinstance(cause, ZeroDivisionError):
                wrong = f"rank {error.error_index}: {type(cause).__name__}: {str(cause)[:300]}"
            else:
                report.count("rank failures")
        except KernbenchError as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        else:
            wrong = "a rank failed unnoticed" if drawn.fails else _differences(drawn, found)
        if wrong:
            report.failed(seed, f"{drawn}: {wrong}")
    return report


def _differences(drawn: Drawn, found: dict[Any, np.ndarray]) -> str:
    for i, kind in enumerate(drawn.calls):
        for rank in drawn.members:
            want = drawn.expected(kind, rank)
            got = found[i, rank]
            if want is not None and not np.array_equal(got.astype(np.float64), want.astype(np.float64)):
                return f"call {i} ({kind}), rank {rank}: {got[:6]} != {want[:6]}"
    return ""
