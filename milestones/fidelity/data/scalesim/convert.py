"""Print a run of SCALE-Sim as CSV for `kernbench fidelity`.

python convert.py COMPUTE_REPORT.csv TOPOLOGY.csv CONFIG.cfg > mine.csv
"""

from __future__ import annotations

import configparser
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

DATAFLOWS = {"ws": "weight_stationary", "os": "output_stationary", "is": "input_stationary"}


def lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each line of a CSV file, by the heading of their column in lower case."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        names = [cell.strip().lower() for cell in next(rows, [])]
        for row in rows:
            if any(cell.strip() for cell in row):
                cells = (cell.strip() for cell in row)
                yield f"{path}: line {rows.line_num}", dict(zip(names, cells, strict=False))


def layer(cells: dict[str, str]) -> tuple[str, dict[str, int]]:
    """Return the name and sizes of a layer; of a convolution, those of the product that SCALE-Sim makes of it."""
    name, *sizes = cells.values()
    if {"m", "n", "k"} <= cells.keys():
        return name, {size: int(cells[size]) for size in "mkn"}
    high, wide, tall, broad, depth, filters, stride = map(int, sizes[:7])
    pixels = -(-(high - tall + stride) // stride) * -(-(wide - broad + stride) // stride)
    return name, {"m": pixels, "k": tall * broad * depth, "n": filters}


def array(path: Path) -> dict[str, object]:
    """Return rows, columns and dataflow of a configuration."""
    parser = configparser.ConfigParser(inline_comment_prefixes=("#", ";"))
    parser.read_string(path.read_text(encoding="utf-8"), str(path))
    preset = parser["architecture_presets"]
    dataflow = preset["Dataflow"].lower()
    if dataflow not in DATAFLOWS:
        raise ValueError(f"{path}: Dataflow = {dataflow} is unknown; use one of {', '.join(DATAFLOWS)}")
    return {"rows": int(preset["ArrayHeight"]), "cols": int(preset["ArrayWidth"]), "dataflow": DATAFLOWS[dataflow]}


def rows(report: Path, topology: Path, config: Path) -> Iterator[tuple[str, ...]]:
    """Yield the row of each layer."""
    where, cycles, layers = array(config), list(lines(report)), list(lines(topology))
    if len(cycles) != len(layers):
        raise ValueError(f"{report}: has {len(cycles)} layers, {topology} has {len(layers)}; pass those of one run")
    for (at, found), (place, cells) in zip(cycles, layers, strict=True):
        try:
            name, sizes = layer(cells)
        except ValueError:
            text = ", ".join(cells.values())
            raise ValueError(f"{place}: {text} does not fit the header; write whole numbers for each column") from None
        try:
            stall_free = float(found["total cycles"]) - float(found.get("stall cycles", 0))
        except (KeyError, ValueError):
            raise ValueError(f"{at}: Total Cycles and Stall Cycles must be numbers") from None
        parameters = "; ".join(f"{key}={value}" for key, value in (sizes | where).items())
        yield (
            f"{topology.stem} {name}",
            parameters,
            f"{stall_free:.15g}",
            "cycles",
            f"SCALE-Sim ({report.name}), stall-free",
        )


def main() -> None:
    """Print the rows; a layer that a network repeats is one."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        found = dict.fromkeys(rows(*map(Path, sys.argv[1:])))
    except KeyError as error:
        sys.exit(f"{sys.argv[3]}: {error} is missing; pass the configuration of the run")
    except (OSError, ValueError, configparser.Error) as error:
        sys.exit(f"{error}")
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["workload", "parameters", "value", "unit", "source"])
    table.writerows(found)


if __name__ == "__main__":
    main()
