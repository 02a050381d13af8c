"""Print logs of BookSim2 as CSV for `kernbench fidelity`: `python convert.py LOG... > mine.csv`.

A log repeats its configuration file, but not the options of the command line: write these into the file.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

# BookSim2's hotspot is another traffic for each list of terminals and rates.
KNOWN = {"topology": ("mesh", "torus"), "traffic": ("uniform", "transpose", "tornado")}
NAMES = {
    "topology": "topology", "k": "k", "n": "n", "traffic": "traffic", "packet": "packet_size", "vcs": "num_vcs",
    "vc_flits": "vc_buf_size",
}  # fmt: skip
DEFAULTS = {"traffic": "uniform", "packet_size": "1", "num_vcs": "16", "vc_buf_size": "8"}


def row(log: Path) -> dict[str, str]:
    """Return the row of a log; a ValueError says why it has none."""
    head, end, results = log.read_text(encoding="utf-8").partition("END Configuration File")
    if not end:
        raise ValueError("the configuration is missing (BEGIN to END Configuration File); keep the head of the log")
    config = DEFAULTS | dict(re.findall(r"(\w+)\s*=\s*([^;]*[^;\s])\s*;", re.sub(r"//[^\n]*", "", head)))
    for name, known in KNOWN.items():
        if config.get(name) not in known:
            raise ValueError(f"{name} = {config.get(name)} is not simulated by kernbench; known: {', '.join(known)}")
    means = dict(re.findall(r"(\w[\w ]*) average = (\S+)", results.partition("Overall Traffic Statistics")[2]))
    if "Packet latency" not in means:
        raise ValueError("the run did not converge (load above saturation), so that it has no mean latency")
    flits = float(means.get("Injected packet size", config["packet_size"]))
    if abs(flits - float(config["packet_size"])) > 0.1 * flits:
        raise ValueError(
            f"packets have {flits:g} flits, packet_size is {config['packet_size']}; write options of the command line "
            "into the configuration file, which the log repeats"
        )
    given = {name: config[key] for name, key in NAMES.items()}
    given["load"] = f"{float(means['Injected flit rate']):.6g}"
    parameters = "; ".join(f"{name}={value}" for name, value in given.items())
    return {
        "workload": "noc", "parameters": parameters, "value": means["Packet latency"], "unit": "cycles",
        "source": f"BookSim2 ({log.name})",
    }  # fmt: skip


def main() -> int:
    """Print a row for each log that has one; return 1 if one has none."""
    table = csv.DictWriter(sys.stdout, ["workload", "parameters", "value", "unit", "source"], lineterminator="\n")
    table.writeheader()
    left_out = 0
    for log in map(Path, sys.argv[1:]):
        try:
            table.writerow(row(log))
        except (KeyError, OSError, ValueError) as error:
            left_out = 1
            print(f"{log}: left out: {error}", file=sys.stderr)
    return left_out


if __name__ == "__main__":
    sys.exit(main())
