"""Machine and ccl files by mutation: valid, or refused with the file and a key named, in little time and memory."""

from __future__ import annotations

import copy
import random
import re
import resource
import time
from pathlib import Path
from typing import Any

import yaml

from kernbench.config import default_ccl_path, load_yaml, preset_path, read_ccl, read_machine
from kernbench.errors import ConfigError
from kernbench.topology.builder import resolve_topology
from tests.fuzz.report import Report

SLOWEST_S, LARGEST_KIB = 10, 1 << 20
BUILT_PES = 2_000  # a larger machine that is valid is not built: that takes its time by its size
BASES = [preset_path("default"), preset_path("large"), preset_path("six_sip_torus"), default_ccl_path()]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 1e-9, 0.5, 1e12, 1e308, float("inf"), float("-inf"), float("nan"), 10**400,
    1 << 63, "", "x", "1", "auto", "none", "NW", "\u0000", "\U0001f600", "a" * 5000, "os:system", "no_such_module:f",
    "kernbench.errors:Missing", "../../etc/passwd", [], [0], [[]], {}, {"a": 1}, {"w": 0, "h": 0}, {"impl": "router"},
    [1, "a", None],
]  # fmt: skip
TOKENS = [
    "&a ", "*a", "<<: ", "!!python/object:os.system ", "!!set ", "? ", "- ", ": ", "{", "}", "[", "]", "|\n", ">\n",
    "\t", "\n", "---\n", "...\n", "#", "%", "@", "`", "'", '"', "\ufeff", "\u2028", "\x85", "0x", "1e999", "-", "~",
    "12:30:45",
]  # fmt: skip
# What a fault of the text has in place of a key; a key that is unknown may be any text.
PLACE = re.compile(
    r"line \d+, column \d+|is empty|holds a|is not UTF-8|is larger than|nested too deeply|is not valid YAML|"
    r"is unknown; "
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*path, key))
    return found


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        content = content[part]
    return content


def changed(content: Any, chosen: random.Random) -> tuple[Any, list[tuple[Any, ...]]]:
    """Change, drop, double, move or rename one to three keys; return the content and where."""
    content, where = copy.deepcopy(content), []
    for _ in range(chosen.choice([1, 1, 1, 2, 3])):
        known = paths(content)
        if not known:
            break
        path = chosen.choice(known)
        group, key = at(content, path[:-1]), path[-1]
        how = chosen.randrange(7)
        if how == 0 and isinstance(group, dict):
            del group[key]
        elif how == 1 and isinstance(group, dict):
            name = "".join(chosen.sample(str(key), len(str(key)))) + chosen.choice(["", "x", "_"])
            group[name], path = group.pop(key), (*path[:-1], name)
        elif how == 2:
            group[key] = copy.deepcopy(at(content, chosen.choice(known)))
        elif how == 3 and isinstance(group[key], (int, float)) and not isinstance(group[key], bool):
            group[key] *= chosen.choice([0, -1, 2, 3, 1000, 10**9])
        elif how == 4 and isinstance(group[key], list):
            group[key] *= chosen.choice([0, 2, 50])
        else:
            group[key] = copy.deepcopy(chosen.choice(ODD))
        where.append(path)
    return content, where


def damaged(text: str, chosen: random.Random) -> bytes:
    """Change the text: insert tokens, cut, repeat, or flip bytes."""
    for _ in range(chosen.choice([1, 1, 2, 5])):
        i, j = sorted((chosen.randrange(len(text) + 1), chosen.randrange(len(text) + 1)))
        how = chosen.randrange(5)
        if how == 0:
            text = text[:i]
        elif how == 1:
            text = text[:i] + text[j:]
        elif how == 2:
            text = text[:i] + text[i : i + 80] * chosen.choice([2, 30]) + text[i:]
        else:
            text = text[:i] + chosen.choice(TOKENS) + text[i:]
        if not text:
            break
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(chosen.choice([0, 0, 0, 1, 8])):
        if data:
            data[chosen.randrange(len(data))] = chosen.randrange(256)
    return bytes(data)


def bomb(chosen: random.Random) -> str:
    """Return aliases of aliases, nested deeply or as long lists."""
    levels, wide = chosen.randrange(2, 14), chosen.randrange(2, 12)
    form = chosen.choice(["[{}]", "{{x: [{}]}}", "{{<<: [{}]}}"])
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} " + form.format(",".join([f"*a{i - 1}"] * wide)) for i in range(1, levels)]
    return chosen.choice(
        ["\n".join(lines), "cube: " + "[" * 10 ** chosen.randrange(1, 5), "- " * 10 ** chosen.randrange(1, 5)]
    )


def case(seed: int) -> tuple[Path, bytes, list[tuple[Any, ...]]]:
    """Return what a seed stands for: the base, the bytes of a file, and the keys that were changed."""
    chosen = random.Random(seed)
    base = chosen.choice([*BASES, *BASES[:1] * 2])
    how = chosen.randrange(10)
    if how == 0:
        return base, bomb(chosen).encode(), []
    if how < 4:
        return base, damaged(base.read_text("utf-8"), chosen), []
    content, where = changed(load_yaml(base), chosen)
    return base, yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode("utf-8", "surrogatepass"), where


def names_key(line: str, where: list[tuple[Any, ...]]) -> bool:
    """Return whether a fault has a place in the file: a key (of those changed or of others that it hits), or a line."""
    _, _, rest = line.partition(": ")
    return bool(PLACE.search(line) or re.match(r"[\w.\[\]]+", rest)) or any(str(path[0]) in rest for path in where)


def run(seeds: range, folder: Path) -> Report:
    """Try the files of `seeds`, one after the other."""
    report = Report("machine and ccl files")
    for seed in seeds:
        base, data, where = case(seed)
        path = folder / ("ccl.yaml" if base == default_ccl_path() else "topology.yaml")
        path.write_bytes(data)
        begin = time.process_time()  # other processes of the host do not count
        report.tried += 1
        try:
            if path.name == "ccl.yaml":
                read_ccl(path)
            else:
                config = read_machine(path)
                if config.n_pes <= BUILT_PES:
                    resolve_topology(str(path))
                    report.count("built")
            report.count("valid")
        except ConfigError as error:
            for line in error.faults:
                if (
                    path.name not in line
                    or len(line.splitlines()) != 1
                    or len(line) > 2500
                    or not names_key(line, where)
                ):
                    report.failed(seed, f"a fault names no file or key: {line[:300]!r}")
                    break
            if path.read_bytes() != data:
                report.failed(seed, "the file was changed")
        except BaseException as error:
            report.failed(seed, f"{type(error).__name__}: {str(error)[:300]}")
            if isinstance(error, KeyboardInterrupt):
                raise
        seconds = time.process_time() - begin
        report.most("slowest [CPU s]", seconds)
        if seconds > SLOWEST_S:
            report.failed(seed, f"took {seconds:.1f} s")
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report.most("memory of the process [MiB]", largest / 1024)
    if largest > LARGEST_KIB:
        report.failed(f"{seeds.start} to {seeds.stop - 1}", f"the process took {largest / 1024:,.0f} MiB")
    return report
