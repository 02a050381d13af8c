"""Tracing, making components in another order, running in another process: not one bit changes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from random import Random

from kernbench.topology._naming import parse
from tests.components.one_pe import gemm, run
from tests.reference.traffic import play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine


def test_tracing_changes_nothing():
    machine = random_machine("trace")
    made = [play(Engine(machine, trace=t), random_traffic(machine, 3, ("read", "write"), 6)) for t in (False, True)]
    assert made[0] == made[1]


def test_values_change_no_time():
    with_data, without = (run(gemm(64, 192, 96, "ref_ref"), log="tile", data=data) for data in (True, False))
    assert with_data.records().digest() == without.records().digest()


def test_the_order_in_which_parts_are_made_changes_nothing():
    machine = random_machine("order")
    expected = play(Engine(machine), random_traffic(machine, 5, ("read", "write"), 6))
    ids = [node.id for node in machine.graph.nodes() if node.kind in ("hbm_ctrl", "sram", "pe_cpu", "pe_dma")]
    for seed in range(3):
        fresh = machine.with_({})
        engine = Engine(fresh)
        shuffled = Random(seed).sample(ids, len(ids))
        for a, b in pairwise(shuffled):
            fresh.graph.node(a)
            if "pe_dma" in a and "hbm_ctrl" in b:
                engine.network.route(a, b)
            place = parse(a)
            if place.kind == "pe_cpu":
                engine.engine.pe(place.sip, place.cube, place.pe)
            elif "pe_dma" not in a:
                engine.engine.memory_at(a)
        assert play(engine, random_traffic(fresh, 5, ("read", "write"), 6)) == expected


def test_the_same_run_twice_and_in_other_processes():
    code = (
        "from tests.components.one_pe import gemm, run\n"
        "print(run(gemm(64, 192, 96, 'load_ref'), log='tile').records().digest())"
    )
    here = run(gemm(64, 192, 96, "load_ref"), log="tile").records().digest()
    assert run(gemm(64, 192, 96, "load_ref"), log="tile").records().digest() == here
    for hash_seed in ("0", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
        assert out.stdout.strip() == here


def test_the_digest_sees_a_picosecond():
    digests = {
        run(gemm(64, 192, 96, "load_ref"), {"cube.noc.router.overhead_ns": ns}, log="tile").records().digest()
        for ns in (1, 1.001)
    }
    assert len(digests) == 2
