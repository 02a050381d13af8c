"""Our latency next to BookSim2's, for every row of results.csv: `python compare.py [BOOKSIM]`.

With the path of BookSim2's executable, also the processor time of both for the same cycles, in the same run.
"""

from __future__ import annotations

import csv
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
SIDE, CYCLES, LOAD = 8, 6000, 0.3


def machine(topology: str, flow: str = "credits") -> Machine:
    """Return the machine whose network is BookSim2's: routers of 4 VCs of 8 flits, links of one cycle."""
    if topology == "mesh":
        at, changed = "cube.noc.", {"rows": SIDE, "cols": SIDE, "removed": []}
        places = [[row, col] for row in range(SIDE) for col in range(SIDE)]
        rest = {"cube.pe_layout.pe_routers": places, "system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    else:
        at, changed = "system.sip_link.", {"bw_gbs": 256, "latency_ns": 1}
        rest = {"system.sips.count": SIDE * SIDE, "system.sips.topology": "torus_2d"}
        rest |= {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    router = {"flow": flow, "vcs": 4, "vc_flits": 8}
    changed |= {f"router.{key}": value for key, value in router.items()}
    return kb.load("preset:default", {**rest, **{at + key: value for key, value in changed.items()}})


def traffic(topology: str, pattern: str, packet: int, flow: str = "credits") -> _Traffic:
    """Return the traffic of a row."""
    return _Traffic(machine(topology, flow), pattern, packet, "cube" if topology == "mesh" else "sips", 0)


def seconds(flow: str, packet: int, cycles: int) -> float:
    """Return the processor time of uniform traffic on the mesh."""
    run = _Run(traffic("mesh", "uniform", packet, flow))
    run.offer(LOAD, cycles)
    begin = time.process_time()
    run.drain()
    return time.process_time() - begin


def main() -> None:
    """Print the comparison."""
    with (HERE / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            given = dict(pair.strip().split("=") for pair in row["parameters"].split(";"))
            load, theirs = float(given["load"]), float(row["value"])
            sent = traffic(given["topology"], given["traffic"], int(given["packet"]))
            ours = sent.point(load, CYCLES, sent.alone_ns()).latency_ns
            print(f"{row['parameters']}: {ours:.2f} and {theirs:.2f} cycles, {ours / theirs - 1:+.2%}", flush=True)
    for packet in (1, 8) if len(sys.argv) > 1 else ():
        command = [
            sys.argv[1],
            HERE / "mesh.cfg",
            f"packet_size={packet}",
            f"injection_rate={LOAD}",
            "sample_period=1000",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        told = subprocess.run(
            [*command, "sample_period=1000", "max_samples=3"], check=True, capture_output=True, text=True
        ).stdout
        theirs = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        cycles = int(re.findall(r"Time taken is (\d+) cycles", told)[-1])
        credits, plain = (seconds(flow, packet, cycles) for flow in ("credits", "unbounded"))
        ratio = f"credits {credits:.2f} s, {credits / plain:.2f} of unbounded, BookSim2 {theirs:.2f} s"
        print(f"{packet} flits, {cycles} cycles: {ratio}")


if __name__ == "__main__":
    main()
