"""The processor time of kernbench and BookSim2 for the same cycles, in the same run: `python speed.py BOOKSIM`."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import kernbench as kb
from kernbench.studies.load_curve import _Run, _Traffic
from kernbench.topology.builder import Machine

HERE = Path(__file__).parent
SIDE, LOAD = 8, 0.3


def machine(flow: str) -> Machine:
    """Return the machine whose network is BookSim2's mesh: routers of 4 VCs of 8 flits, links of one cycle."""
    noc = {"rows": SIDE, "cols": SIDE, "removed": [], "router.flow": flow, "router.vcs": 4, "router.vc_flits": 8}
    places = [[row, col] for row in range(SIDE) for col in range(SIDE)]
    rest = {"cube.pe_layout.pe_routers": places, "system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    return kb.load("preset:default", {**rest, **{f"cube.noc.{key}": value for key, value in noc.items()}})


def seconds(flow: str, packet: int, cycles: int) -> float:
    """Return the processor time of uniform traffic on the mesh."""
    run = _Run(_Traffic(machine(flow), "uniform", packet, "cube", 0))
    run.offer(LOAD, cycles)
    begin = time.process_time()
    run.drain()
    return time.process_time() - begin


def main() -> None:
    """Print the comparison."""
    for packet in (1, 8):
        command = [
            sys.argv[1],
            HERE / "mesh.cfg",
            f"packet_size={packet}",
            f"injection_rate={LOAD}",
            "sample_period=1000",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        told = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        theirs = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        cycles = int(re.findall(r"Time taken is (\d+) cycles", told)[-1])
        credits, plain = (seconds(flow, packet, cycles) for flow in ("credits", "unbounded"))
        ratio = f"credits {credits:.2f} s, {credits / plain:.2f} of unbounded, BookSim2 {theirs:.2f} s"
        print(f"{packet} flits, {cycles} cycles: {ratio}")


if __name__ == "__main__":
    main()
