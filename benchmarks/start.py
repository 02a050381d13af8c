"""What a user waits for before anything is simulated: machines, imports, help."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row, best
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._graph import Graph
from kernbench.topology.builder import Machine, resolve_topology

LARGE = {"system.sips": {"count": 16, "topology": "torus_2d"}}


def measure() -> Iterator[Row]:
    """Yield the building of two machines, an empty launch on all their PEs, and the time to import and to help."""
    for name, overrides in (("256 PEs", {}), ("2,048 PEs", LARGE)):
        seconds, machine = best(lambda o=overrides: built(o))
        links = sum(1 for _ in machine.graph.edges())
        target = "well under 1 s" if name == "256 PEs" else "a few s"
        yield Row(f"machine of {name}: file to graph, all {links:,} links", seconds, "", target=target)
        seconds, _ = best(lambda m=machine: launched(m), 2)
        yield Row(f"an empty kernel on all of {name}", seconds, f"{machine.config.n_pes / seconds / 1000:.1f} k PEs/s")
    bare = started("-c", "pass")
    for name, target, *command in (
        ("import kernbench", "< 0.3 s", "-c", "import kernbench"),
        ("python -m kernbench --help", "< 0.4 s", "-m", "kernbench", "--help"),
    ):
        seconds = started(*command)
        yield Row(f"`{name}`, process included", seconds, "", "the interpreter alone, of this", bare / seconds, target)
    yield Row("the README's first cell, process included", started("-c", first_cell()), target="0.6 s")


def first_cell() -> str:
    """Return the first Python block of the README."""
    text = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    return text.partition("```python\n")[2].partition("```")[0]


def built(overrides: dict[str, object]) -> Machine:
    """Make a machine and its whole graph."""
    machine = resolve_topology("preset:default", overrides)
    for _ in Graph(machine.config).edges():  # not the graph that equal machines share
        pass
    return machine


def launched(machine: Machine) -> None:
    """Launch a kernel that does nothing on every PE."""
    engine = GraphEngine(machine, log="off")
    config = machine.config
    targets = [(cube, pe) for cube in range(config.cubes_per_sip) for pe in range(config.pes_per_cube)]
    for sip in range(config.n_sips):
        engine.launch(sip, targets, nothing, (), "nothing")
    engine.run()


def nothing(tl: object) -> None:
    """Do nothing."""


def started(*arguments: str) -> float:
    """Return the least wall time of five runs of the interpreter [s]."""
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
