"""Many sessions in one process: memory stays flat, and the garbage collector's thresholds as they were."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

from kernbench.runtime_api.context import session
from tests.fuzz.report import Report

MOST_KIB = 8 << 10  # between the first tenth and the end


def resident_kib() -> int:
    """Memory in use, without what the C library keeps for later, which varies."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])


def add(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) + 1)


def run(seeds: range, _folder: object = None) -> Report:
    """Open as many sessions as there are seeds, and compare the memory after a tenth with that at the end."""
    report = Report("sessions in one process")
    before, early = gc.get_threshold(), 0
    for i, _ in enumerate(seeds):
        with session("preset:small", data=True) as torch:
            x = torch.zeros(64, device="ahbm")
            torch.launch("add", add, x, 64)
            x.numpy()
        report.tried += 1
        if i == max(100, len(seeds) // 10):
            early = resident_kib()
    report.notes["MiB at the end"] = resident_kib() / 1024
    if early:
        report.notes["MiB more than after a tenth"] = (resident_kib() - early) / 1024
        if resident_kib() - early > MOST_KIB:
            report.failed(seeds.start, f"memory grew by {(resident_kib() - early) / 1024:,.1f} MiB")
    if gc.get_threshold() != before:
        report.failed(seeds.start, f"thresholds {gc.get_threshold()}, before {before}")
    return report
