"""Runs the streams of streams.txt on Ramulator 2.1 and writes results.csv.

PYTHONPATH=RAMULATOR2/python:RAMULATOR2:KERNBENCH python run.py [FOLDER]

RAMULATOR2 is a built clone of github.com/CMU-SAFARI/ramulator2 at commit c5b1c3a.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import ramulator
from tests.controller_scheduling.harness import ControllerUnderTest

from kernbench.studies._fidelity_hbm import stream

HERE = Path(__file__).parent / (sys.argv[1] if len(sys.argv) > 1 else "")
SOURCE = "Ramulator 2.1.0 (c5b1c3a, 2026-06-29), run.py"
GROUPS, BANKS, COLUMNS = 4, 4, 32  # of a pseudo channel; columns of an access
PARTS = {
    "hbm3": (ramulator.dram.HBM3, "HBM3_4Gb", "HBM3_6400Mbps", "make_hbm34", "HBM34PerBankRefresh"),
    "hbm2_1600": (ramulator.dram.HBM2, "HBM2_8Gb", "HBM2_1600Mbps", "make_hbm12", "PerBank"),
    "hbm2_2400": (ramulator.dram.HBM2, "HBM2_8Gb", "HBM2_2400Mbps", "make_hbm12", "PerBank"),
    "hbm2e": (ramulator.dram.HBM2, "HBM2_8Gb", "HBM2_2000Mbps", "make_hbm12", "PerBank"),
}


def controller(timing: str, requests: int, refresh: bool) -> ControllerUnderTest:
    """Return the controller of a channel with one pseudo channel."""
    cls, org, speed, make, manager = PARTS[timing]
    refreshes = getattr(ramulator.refresh_manager, manager) if refresh else ramulator.refresh_manager.NoRefresh
    return getattr(ControllerUnderTest, make)(
        cls(org_preset=org, timing_preset=speed, pseudochannel=1),
        scheduler=ramulator.scheduler.FRFCFSRowHit(),
        row_policy=ramulator.row_policy.Open(),
        refresh_manager=refreshes(),
        num_cores=requests,
        read_buffer_size=64,
        write_buffer_size=64,
    )


def run(p: dict[str, str]) -> tuple[float, float]:
    """Return the throughput [GB/s] and the mean latency of reads [ns] of a stream."""
    requests = int(p["requests"])
    under_test = controller(p["timing"], requests, p.get("refresh", "on") == "on")
    arrivals = list(
        stream(
            p["pattern"], requests, 32,
            stride=int(p.get("stride", 0)), reads=float(p.get("reads", 1)), load=p.get("load", "full"),
            seed=int(p.get("seed", 1)),
        )
    )  # fmt: skip
    ticks, tick_ns = under_test.tick_multiplier, under_test.time_unit_ns
    read_latency = under_test.timing("nCL") + under_test.timing("nBL")
    write_latency = under_test.timing("nCWL") + under_test.timing("nBL")
    prefetch = type(under_test.dram).internal_prefetch_size
    clock, waiting, done, last, waits = 0, 0, 0, 0, []
    while done < requests:
        while waiting < requests and arrivals[waiting].clock * ticks <= clock + 1:
            access = arrivals[waiting].address // 32
            access, group = divmod(access, GROUPS)
            access, column = divmod(access, COLUMNS)
            row, bank = divmod(access, BANKS)
            levels = {"Channel": 0, "PseudoChannel": 0, "Sid": 0, "BankGroup": group, "Bank": bank, "Row": row}
            at = under_test.addr_vec(
                **{name: value for name, value in levels.items() if name in under_test.level_names},
                Column=column * prefetch,
            )
            try:
                under_test.send_request("Write" if arrivals[waiting].write else "Read", at, waiting)
            except RuntimeError:
                break  # its buffer is full
            waiting += 1
        clock += 1
        for issued in under_test._cpp.tick():
            if issued["command"] in ("RD", "WR", "RDA", "WRA"):
                done += 1
                write = issued["command"].startswith("WR")
                end = issued["clk"] + (write_latency if write else read_latency)
                last = max(last, end)
                if not write:
                    waits.append(end - arrivals[issued["source_id"]].clock * ticks)
    return requests * 32 / (last * tick_ns), sum(waits) / max(1, len(waits)) * tick_ns


def main() -> None:
    with (HERE / "results.csv").open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["workload", "parameters", "value", "unit", "source"])
        for text in (HERE / "streams.txt").read_text().splitlines():
            parameters = dict(pair.split("=") for pair in text.split("; "))
            throughput, latency = run(parameters)
            metric = parameters["metric"]
            value, unit = (throughput, "GB/s") if metric == "throughput" else (latency, "ns")
            out.writerow(["hbm", text, f"{value:.4f}", unit, SOURCE])


if __name__ == "__main__":
    main()
