"""Serving: parts of steps of decoder models on machines, served as requests, and what to change in a machine first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import kernbench.studies.serving_report as report
from kernbench.analysis._roofline import macs_per_ns
from kernbench.config import presets
from kernbench.errors import ArgumentError
from kernbench.points._keys import Row
from kernbench.serving._models import MODELS, check_parallel, fields_of, kv_blocks
from kernbench.serving._parts import part_row, points_of
from kernbench.studies.study import LABELS, MACHINE, Parameter, Study, scaled
from kernbench.sweeps._energy_area import area_mm2, energy_columns
from kernbench.topology.builder import Machine, resolve_topology

# Factors of fields that limit together.
CHANGES: dict[str, dict[str, float]] = {
    "memory twice as fast": dict.fromkeys(("cube.hbm.channel_bw_gbs", "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs"), 2.0),
    "matrix engines twice as fast": dict.fromkeys(
        ("cube.pe.pe_gemm.clock_ghz", "cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_tcm.write_bw_gbs"), 2.0
    ),
    "links between cubes twice as fast": {
        "cube.ucie.bw_gbs": 2.0, "cube.ucie.router_bw_gbs": 2.0, "cube.ucie.port_ns": 0.5,
    },
    "links between SIPs twice as fast": {
        "system.sip_link.bw_gbs": 2.0, "system.sip_link.latency_ns": 0.5, "sip.io.noc.port_bw_gbs": 2.0,
    },
    "half the cubes": {"sip.cube_mesh.w": 0.5},
}  # fmt: skip


class ServingStudy(Study):
    """Users per SIP of machines that serve decoder models, and what to change first; needs PyTorch."""

    name, title = "serving", "Serving decoder models: users per SIP, and what to change first"
    parameters: ClassVar = {
        "models": Parameter(
            {"llama3-8b": 1, "llama3-70b": 4, "mixtral-8x7b": 4}, "models, and over how many SIPs each is", known=MODELS
        ),
        "presets": Parameter(["a100_sxm_calibrated"], "further machines", known=presets()),
        "sizes": Parameter([16, 128], "captured sizes", "tokens"),
        "contexts": Parameter([256, 1024], "contexts of attention; the last is the longest of a request", "tokens"),
        "changes": Parameter(list(CHANGES)[:3], "of the machine, each alone", known=CHANGES),
        "changed": Parameter(["llama3-8b"], "those of models for which the report's machine is changed", known=MODELS),
        "served": Parameter(200, "requests of a run"),
        "input_len": Parameter(768, "tokens of each prompt", "tokens"),
        "output_len": Parameter(128, "tokens of each answer", "tokens"),
        "tpot_ms": Parameter(50, "largest time per output token", "ms"),
        "ttft_ms": Parameter(1000, "largest time to the first token", "ms"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)

    def check(
        self, machine: Machine, *, models: Mapping[str, int], presets: Sequence[str], contexts: Sequence[int],
        input_len: int, output_len: int, **_: Any,
    ) -> list[str]:  # fmt: skip
        found = []
        if input_len + output_len > max(contexts):
            most = f"must be at most the largest of contexts = {max(contexts)}"
            found.append(f"input_len + output_len = {input_len + output_len} {most}")
        for model, tp in models.items():
            for name, where in _machines(machine, tp, presets).items():
                try:
                    check_parallel(fields_of(model), tp, 1, where)
                    _blocks(where, model, tp)
                except ArgumentError as error:
                    found.append(f"models: {model} on {name}: {error}")
        return found

    def points(
        self, machine: Machine, *, models: Mapping[str, int], presets: Sequence[str], sizes: Sequence[int],
        contexts: Sequence[int], changes: Sequence[str], changed: Sequence[str], **served: Any,
    ) -> list[Row]:  # fmt: skip
        found = []
        for model, tp in models.items():
            machines = _machines(machine, tp, presets)
            (own, base), *_ = machines.items()
            runs = [(on, "", where, sorted(sizes)) for on, where in machines.items()]
            runs += [
                (own, x, base.with_(scaled(base.config, CHANGES[x])), [max(sizes)]) for x in changes if model in changed
            ]
            for on, change, where, captured in runs:
                labels = {
                    "on": on, "own": on == own, "change": change, "fields": ", ".join(CHANGES.get(change, ())),
                    "changed": len(runs) > len(machines), "num_blocks": _blocks(where, model, tp), **_rates(where),
                    **served,
                }  # fmt: skip
                differs = {key: value for key, value in where.spec.items() if value != machine.spec[key]}
                point = {MACHINE: differs, LABELS: labels, "model": model, "tp": tp}
                found += [point | part for part in points_of(captured, sorted(contexts))]
        return found

    def work(self, machine: Machine, *, part: str, requests: int, tokens: int, context: int, **_: Any) -> float:
        return requests * tokens * context / 3e4 if part == "attention" else 40.0  # s of one core (estimate)

    def simulate(
        self, machine: Machine, *, part: str, requests: int, tokens: int, context: int, model: str, tp: int
    ) -> Row:
        asked: Row = {"part": part, "requests": requests, "tokens": tokens, "context": context, "tp": tp}
        row = part_row(machine, **asked, model=fields_of(model))
        energy = energy_columns(machine.config, row)["energy_uj"]
        kept = {name: row[name] for name in ("ns", "host_ns", "nbytes", "limit")}
        return {"model": model, **asked, "energy_uj": energy, **kept, "path": json.loads(row["path"])}


def _machines(machine: Machine, tp: int, others: Sequence[str]) -> dict[str, Machine]:
    """Return the report's machine, enlarged to a ring if it has fewer than `tp` SIPs, and presets, by name."""
    known = {name: resolve_topology(f"preset:{name}") for name in presets()}
    own = next((name for name, x in known.items() if x.hash == machine.hash), Path(machine.source).name)
    ring = {"system.sips": {"count": tp, "topology": "ring_1d"}} if tp > machine.config.n_sips else {}
    return {own: machine.with_(ring) if ring else machine} | {name: known[name] for name in others if name != own}


def _rates(machine: Machine) -> Row:
    config, pes = machine.config, machine.config.pes_per_sip
    tflops = 2 * macs_per_ns(config, "f16") * pes / 1000
    return {"hbm_gbs": config.hbm_gbs_per_sip, "tflops": tflops, "area_mm2": area_mm2(config) / config.n_sips}


def _blocks(machine: Machine, model: str, tp: int) -> int:
    return kv_blocks(fields_of(model), tp, machine.config, report.KV_BLOCK, report.MEMORY_SHARE)
