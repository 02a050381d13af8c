"""Write results.csv with BookSim2: `python run.py BOOKSIM`.

For each network, pattern and packet size: latency at almost no load, the saturation by bisection, and latency at shares
of it. At the saturation the mean latency is three times that at almost no load.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
K, VCS, VC_FLITS = 8, 4, 8
HOT = K // 2 * K + K // 2  # the terminal nearest to the middle
_WEIGHTS = ["71" if node == HOT else "7" for node in range(K * K)]  # 64 + 7 and 7
SHARES = (0.4, 0.8)
LOW, PRECISION, SATURATED = 0.01, 0.002, 3.0
TRAFFIC = {
    "uniform": "uniform",
    "transpose": "transpose",
    "tornado": "tornado",
    # One of eight packets goes to the hot terminal, the others to any.
    "hotspot": "hotspot({{" + ",".join(map(str, range(K * K))) + "},{" + ",".join(_WEIGHTS) + "}})",
}
Row = dict[str, object]


class BookSim:
    """BookSim2, given by the path of its executable."""

    def __init__(self, path: str) -> None:
        self.path = path

    def latency(self, config: str, load: str, **options: object) -> float | None:
        """Return the mean packet latency of the first class [cycles], None above saturation."""
        given = [f"{key}={value}" for key, value in options.items()]
        command = [self.path, config, f"injection_rate={load}", *given]
        log = subprocess.run(command, cwd=HERE, check=False, capture_output=True, text=True).stdout
        for option in given:
            if f"OVERRIDE Parameter: {option}\n" not in log:
                raise SystemExit(f"BookSim2 did not take {option}")
        found = re.findall(
            r"^Packet latency average = (\S+)", log.partition("Overall Traffic Statistics")[2], re.MULTILINE
        )
        return float(found[0]) if found else None


def rows(booksim: BookSim, topology: str, traffic: str, packet: int) -> Iterator[Row]:
    """Return the rows of one network, pattern and packet size."""
    given = f"topology={topology}; k={K}; n=2; traffic={traffic}; packet={packet}; vcs={VCS}; vc_flits={VC_FLITS}"
    options = {"traffic": TRAFFIC[traffic], "packet_size": packet}
    command = f"BookSim2 28f4329 (2017-06-27), {topology}.cfg traffic={traffic} packet_size={packet}"

    def row(load: float, value: float, more: str) -> Row:
        parameters, source = f"{given}; load={load:g}", f"{command} injection_rate={load:g}{more}"
        return {"workload": "noc", "parameters": parameters, "value": value, "unit": "cycles", "source": source}

    # Packets of 8 flits are rare, and with transpose their routes differ most in length: that mean takes more cycles.
    period = 400000 if (traffic, packet) == ("transpose", 8) else 20000
    alone, latency = (
        booksim.latency(f"{topology}.cfg", str(LOW), **options, sample_period=cycles, warmup_periods=1)
        for cycles in (20000, period)
    )
    assert alone is not None
    assert latency is not None
    yield row(LOW, latency, f" sample_period={period} warmup_periods=1")
    limit = round(SATURATED * alone, 1)
    low, high = LOW, 1.0
    while high - low > PRECISION:
        middle = round((low + high) / 2, 4)
        latency = booksim.latency(f"{topology}.cfg", str(middle), **options, latency_thres=limit)
        low, high = (low, middle) if latency is None or latency > limit else (middle, high)
    saturation = round((low + high) / 2, 4)
    source = f"{command} latency_thres={limit:g}; injection_rate by bisection"
    yield {
        "workload": "saturation", "parameters": given, "value": saturation, "unit": "flits/node/cycle",
        "source": source,
    }  # fmt: skip
    period = 60000 if packet == 8 else 10000
    for share in SHARES:
        load = round(share * saturation, 4)
        latency = booksim.latency(f"{topology}.cfg", str(load), **options, sample_period=period)
        if latency is not None:
            yield row(load, latency, f" sample_period={period}")


def beside_hot_spot(booksim: BookSim) -> Iterator[Row]:
    """Return rows of uniform traffic next to traffic to the hot terminal, as two classes of packets."""
    for load in (0.05, 0.09, 0.1):
        rates = f"{{{round(load * 7 / 8, 6):g},{round(load / 8, 6):g}}}"
        options = {"classes": 2, "traffic": f"{{uniform,hotspot({HOT})}}", "sample_period": 20000}
        latency = booksim.latency("mesh.cfg", rates, **options)
        if latency is not None:
            given = f"topology=mesh; k={K}; n=2; traffic=hotspot; packet=1; vcs={VCS}; vc_flits={VC_FLITS}"
            given_options = " ".join(f"{key}={value}" for key, value in options.items())
            source = f"BookSim2 28f4329 (2017-06-27), mesh.cfg {given_options}"
            yield {
                "workload": "noc", "parameters": f"{given}; load={load:g}; packets=others", "value": latency,
                "unit": "cycles",
                "source": f"{source} injection_rate={rates}, class 0",
            }  # fmt: skip


def main() -> None:
    """Write the file."""
    booksim = BookSim(sys.argv[1])
    with (HERE / "results.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["workload", "parameters", "value", "unit", "source"], lineterminator="\n")
        table.writeheader()
        for topology in ("mesh", "torus"):
            for traffic in TRAFFIC:
                for packet in (1, 8):
                    for row in rows(booksim, topology, traffic, packet):
                        table.writerow(row)
                        file.flush()
        table.writerows(beside_hot_spot(booksim))


if __name__ == "__main__":
    main()
