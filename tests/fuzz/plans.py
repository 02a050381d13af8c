"""Plan files by mutation: a plan, or refused with the file named on each line, in little time."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import yaml

from kernbench.errors import ConfigError
from kernbench.sweeps._plan import read_plan
from tests.fuzz.files import SLOWEST_S, changed, damaged
from tests.fuzz.report import Report

PLANS: list[dict[str, Any]] = [
    {
        "machine": "preset:small", "study": "gemm", "axes": {"cube.ucie.port_ns": [1, 2], "m": [32, 64]},
        "parameters": {"n": 32, "k": 32}, "seed": 3, "time_limit_s": 60,
    },
    {
        "machine": "topology.yaml", "study": "gemm", "axes": {"m": {"low": 32, "high": 64, "step": 32}},
        "samples": 3, "where": ["m > 32"], "limits": {"events": 100},
    },
    {"study": "ccl", "memory_limit_mib": 9, "points": [{"algorithm": "tree_allreduce", "nbytes": 64}, {"nbytes": "x"}]},
    {"machine": {"base": "small"}, "study": "tests.sweeps.studies:square", "axes": {"x": [1, 2, 3]}},
]  # fmt: skip


def case(seed: int) -> bytes:
    """Return the content of a plan file."""
    chosen = random.Random(seed)
    plan = chosen.choice(PLANS)
    if not chosen.randrange(7):
        return damaged(yaml.safe_dump(plan, sort_keys=False), chosen)
    content, _ = changed(plan, chosen)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass")


def run(seeds: range, folder: Path) -> Report:
    """Read the plan of each seed."""
    report, path = Report("plan files"), folder / "my_plan.yaml"
    (folder / "topology.yaml").write_text("base: small\n")
    for seed in seeds:
        report.tried += 1
        path.write_bytes(case(seed))
        begin = time.process_time()
        try:
            report.count("valid" if read_plan(path).plan.points else "without points")
        except ConfigError as error:
            for line in error.faults:
                if path.name not in line or len(line.splitlines()) != 1:
                    report.failed(seed, f"a fault names no file: {line[:300]!r}")
        except Exception as error:  # noqa: BLE001 - what is looked for
            report.failed(seed, f"{type(error).__name__}: {str(error)[:300]}")
        if time.process_time() - begin > SLOWEST_S:
            report.failed(seed, "took too long")
    return report
