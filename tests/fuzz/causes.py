"""Random programs on random machines: each recorded cause ends when what followed from it began."""

from __future__ import annotations

import random

from kernbench.analysis._critical_path import critical_path
from tests.analysis.causes import wrong
from tests.analysis.paths import STEPS, program
from tests.components.one_pe import engine_of, launch
from tests.fuzz.report import Report

FIELDS = {
    "cube.pe.pe_tcm.stage_buffers": (1, 2, 3),
    "cube.pe.pe_tcm.buffers_per_operand": (1, 2, 4),
    "cube.pe.pe_dma.outstanding_reads": (1, 2, 4),
    "cube.pe.pe_dma.outstanding_writes": (1, 4),
    "cube.pe.pe_mmu.lookup_ns": (0, 3),
    "cube.pe.pe_scheduler.tile_ns": (0, 1, 30),
    "cube.pe.pe_cpu.command_ns": (0, 2, 50),
    "cube.pe.pe_gemm.clock_ghz": (0.5, 1, 3),
    "cube.pe.pe_tcm.write_bw_gbs": (16, 512),
    "cube.hbm.gather": ("packed", "strided"),
    "cube.hbm.access_ns": (0, 40),
    "cube.hbm.turnaround_ns": (0, 7),
}


def run(seeds: range, _folder: object = None) -> Report:
    """Run the programs of `seeds`, twice each, and check their causes and critical paths."""
    report = Report("causes of random programs")
    for seed in seeds:
        report.tried += 1
        chosen = random.Random(seed)
        changes = {field: chosen.choice(values) for field, values in FIELDS.items()}
        steps = [(chosen.choice(sorted(STEPS)), chosen.choice((0, 0, 5))) for _ in range(chosen.randint(1, 12))]
        pes, log = chosen.choice((1, 2, 8)), chosen.choice(("tile", "operation"))
        engine = engine_of(changes, log=log)
        for _ in range(2):
            launch(engine, program(steps), *((0, pe) for pe in range(pes)))
        records = engine.records()
        path = critical_path(records)
        found = wrong(records)
        if found or sum(path.parts().values()) != records.makespan_ps:
            report.failed(seed, f"{log}, {pes} PEs, {changes}, {steps}: {found[:3]}")
    return report
