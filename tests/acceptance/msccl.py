"""Every program that the examples of msccl-tools emit, on the machine: `make msccl MSCCL="FOLDER --python PYTHON"`.

The folder is a checkout of msccl-tools; `--python` names a Python that has what it needs (lxml, z3-solver, igraph,
humanfriendly, tabulate, argcomplete). Values are compared twice: with the steps of the program, executed one after the
other on numpy arrays here, and with what the collective means. Steps are executed in several orders: where the results
differ, the program itself has a race.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import numpy as np

import kernbench as kb
from kernbench.ccl import from_msccl
from kernbench.errors import KernbenchError, RaceError
from kernbench.topology.builder import Machine

CHUNK = 32  # elements
ORDERS = 4
# Each example with its arguments: n ranks, i instances, g ranks of a node.
EXAMPLES = {
    "allgather_a100_pcie": "n i",
    "allgather_allpairs": "n i",
    "allgather_recursive_doubling": "n i",
    "allgather_ring": "n 1 i",
    "allreduce_1step": "n i",
    "allreduce_a100_allpairs": "n i",
    "allreduce_a100_allpairs_v2": "n i",
    "allreduce_a100_multinode_allpairs": "h i",
    "allreduce_a100_ncv4": "n i",
    "allreduce_a100_ncv4_v2": "n i",
    "allreduce_a100_pcie_hierarchical": "n i",
    "allreduce_a100_recursive_doubling_halving": "1 i",
    "allreduce_a100_ring": "n c i",
    "allreduce_binomial_tree": "n 1 i",
    "allreduce_dgx1": "2 i",
    "allreduce_ndv2": "i",
    "allreduce_recursive_doubling_halving": "n i",
    "alltoall_a100_three_step": "m g i",
    "alltoall_a100_two_step": "m g",
    "alltoall_allpairs": "n i",
    "alltonext_backward": "2 i",
    "alltonext_forward": "2 i",
    "hierarchical_allreduce": "g m i",
    "pipeline_a100_allpairs": "h i",
    "pipeline_a100_ring": "h c i",
    "reducegather": "n 2 --instances i",
    "simple/allgather_ring": "n i",
    "simple/allreduce_ring": "n i",
}


def commands(ranks: list[int]) -> Iterator[tuple[str, list[str]]]:
    """Yield each example with its arguments, once for each set of them."""
    seen = set()
    for name, form in EXAMPLES.items():
        for n, i, c, g in product(ranks, (1, 2), (1, 2), (2, 4)):
            if n % g or n == g:
                continue
            values = {"n": n, "i": i, "c": c, "g": g, "m": n // g, "h": n // 2}
            arguments = [str(values.get(part, part)) for part in form.split()]
            if (name, *arguments) not in seen:
                seen.add((name, *arguments))
                yield name, arguments


def emitted(tools: Path, python: str, name: str, arguments: list[str]) -> tuple[str, str]:
    """Return the XML that an example writes, and what it says besides, such as why it fails."""
    command = [python, str(tools / "examples" / "mscclang" / f"{name}.py"), *arguments]
    env = {**os.environ, "PYTHONPATH": str(tools)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=600)
    start, end = ran.stdout.find("<algo"), ran.stdout.find("</algo>") + len("</algo>")
    if ran.returncode or start < 0:
        return "", (ran.stderr.strip().splitlines() or ["invalid XML"])[-1]
    return ran.stdout[start:end], (ran.stdout[:start] + ran.stdout[end:]).strip()


class Reference:
    """The steps of a program on numpy arrays, as (buffer, chunk) of every GPU, in an order drawn from `seed`."""

    def __init__(self, algo: ET.Element, inputs: list[np.ndarray], seed: int) -> None:
        self.coll, self.n = algo.get("coll"), int(algo.get("ngpus", "0"))
        self.nchunks = int(algo.get("nchunksperloop", "0"))
        self.in_place = algo.get("inplace") == "1" and self.coll == "allreduce"
        self.blocks = {(int(g.get("id")), int(t.get("id"))): t for g in algo for t in g}
        sizes = {b: max(int(g.get(f"{b}_chunks")) for g in algo) for b in "ios"}
        self.buffers = [{b: np.zeros((max(sizes[b], self.nchunks), CHUNK), np.float32) for b in "ios"} for _ in inputs]
        for rank, (own, values) in enumerate(zip(self.buffers, inputs, strict=True)):
            chunks = values.reshape(-1, CHUNK)
            own["i"][: len(chunks)] = chunks
            if self.coll == "allgather":
                own["o"][rank * len(chunks) : (rank + 1) * len(chunks)] = chunks
            if self.in_place:
                own["o"] = own["i"]
        self.run(Random(seed))

    def run(self, random: Random) -> None:
        messages: dict[tuple[int, int, str], deque[np.ndarray]] = {}
        done: Counter[tuple[int, int]] = Counter()
        ready = list(self.blocks)
        while ready:
            random.shuffle(ready)
            left = [place for place in ready if done[place] < len(self.blocks[place])]
            moved = [place for place in left if self.step(place, done, messages)]
            assert moved or not left, "a deadlock in the program"
            ready = left

    def step(self, place: tuple[int, int], done: Counter, messages: dict) -> bool:
        """Run the next step of a thread block; return whether it could."""
        (g, _), block = place, self.blocks[place]
        step = block[done[place]]
        kind, cnt, dep = step.get("type", ""), int(step.get("cnt", "1")), int(step.get("depid", "-1"))
        if dep >= 0 and done[g, dep] <= int(step.get("deps", "-1")):
            return False
        chan, value = block.get("chan", "0"), None
        if kind[0] == "r" and kind != "re":
            queue = messages.setdefault((int(block.get("recv", "-1")), g, chan), deque())
            if not queue:
                return False
            value = queue.popleft()
        src, dst = (
            self.buffers[g][step.get(f"{end}buf", "i")][int(step.get(f"{end}off", "0")) :][:cnt]
            for end in ("src", "dst")
        )
        if kind in ("s", "cpy"):
            value = src.copy()
        elif kind == "re":
            value = dst + src
        elif kind in ("rrc", "rrs", "rrcs"):
            value = value + src
        if kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
            dst[:] = value
        if kind in ("s", "rcs", "rrs", "rrcs"):
            messages.setdefault((g, int(block.get("send", "-1")), chan), deque()).append(value)
        done[place] += 1
        return True

    def result(self, rank: int) -> np.ndarray:
        buffer = "i" if self.in_place else "o"
        return self.buffers[rank][buffer][: self.nchunks].reshape(-1)


def meant(coll: str, inputs: list[np.ndarray]) -> list[np.ndarray] | None:
    """Return what the collective means; None if it is one of the program's own."""
    n = len(inputs)
    if coll == "allreduce":
        return [np.sum(inputs, axis=0)] * n
    if coll == "allgather":
        return [np.concatenate(inputs)] * n
    if coll == "alltoall":
        return [np.concatenate([x.reshape(n, -1)[rank] for x in inputs]) for rank in range(n)]
    return None


@cache
def machine(n: int) -> Machine:
    """Return the default machine with `n` SIPs in a ring."""
    return kb.load(overrides=[f"system.sips.count={n}", "system.sips.topology=ring_1d"])


def simulated(file: Path, inputs: list[np.ndarray], result: int, is_in_place: bool) -> tuple[list[np.ndarray], float]:
    """Return what each rank ends with on the machine, and the time [ns]."""
    n, algorithm = len(inputs), from_msccl(file)
    with kb.session(machine(n), data=True) as torch:
        given = [torch.tensor(values, device=f"ahbm:{rank}") for rank, values in enumerate(inputs)]
        ends = given if is_in_place else [torch.zeros(result, device=f"ahbm:{rank}") for rank in range(n)]
        for rank in range(n):
            torch.accelerator.synchronize(rank)
        start = torch.engine.now_ns
        torch.collective(given if is_in_place else [list(pair) for pair in zip(given, ends, strict=True)], algorithm)
        for rank in range(n):
            torch.accelerator.synchronize(rank)
        took = torch.engine.now_ns - start
        return [end.numpy() for end in ends], took


def verdict(text: str, said: str) -> tuple[str, str]:
    """Run a program; return "exact", "race" (of the program itself) or "wrong", and details."""
    algo = ET.fromstring(text)
    n, coll = int(algo.get("ngpus", "0")), str(algo.get("coll"))
    nchunks = int(algo.get("nchunksperloop", "0"))
    own = max(int(gpu.get("i_chunks")) for gpu in algo)
    chunks = {"allgather": nchunks // n, "custom": own}.get(coll, nchunks)
    inputs = [np.random.default_rng(rank).integers(-4, 5, chunks * CHUNK).astype(np.float32) for rank in range(n)]
    references = [Reference(algo, inputs, seed) for seed in range(ORDERS)]
    wanted = [references[0].result(rank) for rank in range(n)]
    has_race = any(not np.array_equal(other.result(r), wanted[r]) for other in references[1:] for r in range(n))
    blocks = max(len(gpu) for gpu in algo)
    detail = f"{coll}, {n} ranks, {blocks} thread blocks, {sum(len(t) for g in algo for t in g)} steps"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.xml")
        file.write_text(text)
        try:
            got, took = simulated(file, inputs, nchunks * CHUNK, references[0].in_place)
        except RaceError as error:
            return ("race" if has_race else "wrong"), f"{detail}: {str(error).partition(' (asked')[0]}"
        except KernbenchError as error:
            return "wrong", f"{detail}: {error}"
    expected = meant(coll, inputs)
    does = expected is not None and all(np.array_equal(a, b) for a, b in zip(wanted, expected, strict=True))
    detail += f", {took:,.0f} ns"
    if has_race:
        return "race", f"{detail}: in other orders of its steps, the program has other results"
    same = all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
    if expected is not None and not does:
        detail += "; its steps do another thing than the collective" + (", as its own check says" if said else "")
    return ("exact" if same else "wrong"), detail


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", type=Path, help="a checkout of msccl-tools")
    parser.add_argument("--python", default=sys.executable, help="a Python with what msccl-tools needs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--only", default="", help="examples whose name contains this")
    given = parser.parse_args()
    found: Counter[str] = Counter()
    for name, arguments in commands(given.ranks):
        if given.only not in name:
            continue
        text, said = emitted(given.tools, given.python, name, arguments)
        start = time.perf_counter()
        result, detail = verdict(text, said) if text else ("none", f"the example fails: {said}")
        found[result] += 1
        print(f"{result:5}  {name} {' '.join(arguments)}: {detail} ({time.perf_counter() - start:.1f} s)", flush=True)
    print(
        f"{found.total()} commands: {found['exact']} programs exact, {found['wrong']} wrong, {found['race']} with "
        f"a race of their own, {found['none']} examples that emit none"
    )
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
