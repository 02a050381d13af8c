"""Carry kept points over a change of code that should alter no row: `python -m tests.reports.carry NAME ...`.

A report keeps its points that take over a second. Here a random share of those under ten minutes is simulated again,
with all others of the report, which are never kept. Only if all rows of before are there unchanged, the rest is kept
under the version of the present code, and `carried.json` says how many points that are. Otherwise nothing is changed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernbench.config._files import write_text
from kernbench.points._cache import entries
from kernbench.points._keys import code_version, key_of
from kernbench.studies import milestone
from kernbench.sweeps._measure import complete
from kernbench.sweeps._plan import resolve_study
from kernbench.topology.builder import resolve_topology

SEED = 0
LONG_S = 600  # points that take longer are not drawn
Entry = dict[str, Any]


def under(entry: Entry, code: str, cost: Entry) -> Entry:
    """Return a kept point as one of other code; ValueError if its key does not follow from what it is made of.

    If its machine is another one now, no report finds it by its key, and it is simulated again.
    """
    made = entry["made_of"]
    usual = complete(resolve_study(made["study"].partition(".simulate")[0]), {})
    decides = {"parameters": usual | made["point"]["parameters"], "cost": cost}
    if key_of(made["study"], made["code"], made["machine"], decides) != entry["key"]:
        raise ValueError(f"{entry['key']}: the costs, or a default of the study, are others now; run milestone --store")
    key = key_of(made["study"], code, made["machine"], decides)
    return entry | {"key": key, "made_of": made | {"code": code}}


def same(before: Path, after: Path) -> int:
    """Return the number of rows of a report that has all rows of a former one, in order; ValueError if it has not."""
    count = 0
    for path in sorted(before.glob("*.json")):
        old, new = (_rows(folder / path.name) for folder in (before, after))
        rest = iter(new)
        if gone := [i for i, row in enumerate(old) if row not in rest]:
            raise ValueError(f"{path.name}: row {gone[0]} of {len(old)} is missing or differs: {old[gone[0]]}")
        count += len(new)
    return count


def _rows(path: Path) -> list[Entry]:
    read = json.loads(path.read_text(encoding="utf-8"))
    rows: list[Entry] = read.get("rows", []) if isinstance(read, dict) else []
    return [{key: value for key, value in row.items() if key != "code_version"} for row in rows]


def carry(name: str, share: float, cost: Entry) -> dict[str, int | str]:
    stem = name.replace("-", "_")
    kept, out = milestone.folder() / milestone.KEPT / f"{stem}.jsonl", milestone.reports() / stem
    if (unfinished := out.with_name(f".{stem}.unfinished")).exists():
        raise ValueError(
            f"{unfinished}: an interrupted run; end it with kernbench milestone {name} --store, or delete it"
        )
    old = entries(kept)
    code = code_version(old[0]["made_of"]["study"].partition(":")[0])
    short = [i for i, entry in enumerate(old) if entry["seconds"] < LONG_S] or range(len(old))
    again = set(random.Random(f"{SEED} {code}").sample(short, min(len(short), math.ceil(share * len(old)))))
    moved = [under(entry, code, cost) for entry in old]
    before, former = kept.read_text(encoding="utf-8"), out.with_name(f".{stem}.before")
    shutil.copytree(out, former, dirs_exist_ok=True)
    try:
        write_text(kept, "".join(f"{json.dumps(entry)}\n" for i, entry in enumerate(moved) if i not in again))
        milestone.run(name, store=True)
        count = same(former, out)
    except BaseException:
        write_text(kept, before)
        milestone.publish(former, out)
        raise
    shutil.rmtree(former)
    return {"from": old[0]["made_of"]["code"], "to": code, "rows": count, "kept": len(old), "again": len(again)}


def main(names: Iterable[str], share: float) -> None:
    record = milestone.folder() / milestone.KEPT / "carried.json"
    cost = resolve_topology(None).config.cost.to_spec()
    for name in names:
        said = json.loads(record.read_text()) if record.is_file() else {}
        said[name] = carry(name, share, cost)
        write_text(record, json.dumps(dict(sorted(said.items())), indent=1) + "\n")
        print(
            "{}: all {rows} rows are as before; {again} of {kept} kept points simulated again".format(
                name, **said[name]
            )
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="reports; by default all with kept points")
    parser.add_argument("--share", type=float, default=0.1, help="share of the kept points to simulate again")
    given = parser.parse_args()
    main(given.names or [x for x in milestone.shortest_first() if x != "verification"], given.share)
