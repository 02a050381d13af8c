"""Saved results whose arrays were changed: the digest finds it, or they contradict themselves, or all is answered.

The second kind has a new digest. What is read must then answer every question, or refuse it by an error of kernbench.
"""

from __future__ import annotations

import json
import random
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import kernbench as kb
from kernbench.analysis._manifest import Manifest, digest_of
from kernbench.analysis.result import Result
from kernbench.analysis.trace import trace_events
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology
from kernbench.viz._loads import link_loads, node_loads
from tests.fuzz.report import Report

Arrays = dict[str, np.ndarray]
Mutation = Callable[[np.ndarray, random.Random], np.ndarray]


@cache
def saved() -> tuple[tuple[bytes, str], ...]:
    """Return saved results, and the digest of the times of each: products at both levels, a sum over HBM."""
    machine = resolve_topology("preset:small")
    found = [gemm.run(machine, (32, 128, 32), "load_ref", log=level) for level in ("tile", "operation")]
    two = machine.with_({"system.sips.count": 2, "sip.cube_mesh": {"w": 1, "h": 1}})
    algorithm = replace(resolve_algorithm_config("ring_allreduce_hbm", default_ccl_path()), n_slots=2, slot_size=512)
    found.append(run_collective(two, plan(algorithm, two.config, range(2), [(0, 0)]), 4096).result)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        return tuple((x.save(path).read_bytes(), x.records.digest()) for x in found)


def read_changed(data: bytes, change: Callable[[Arrays], None], path: Path, *, new_digest: bool = True) -> Result:
    """Read a result of which some arrays were changed."""
    path.write_bytes(data)
    with zipfile.ZipFile(path) as file:
        manifest, digest = Manifest.of(file.comment)
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with zipfile.ZipFile(path, "a") as file:
        file.comment = manifest.comment(digest_of(arrays) if new_digest else digest)
    return kb.read(path)


def questions(result: Result) -> None:
    """Ask a result everything; an error of kernbench is an answer."""
    records = result.records

    def asked(question: Callable[[], Any]) -> None:
        try:
            question()
        except KernbenchError:
            return

    asked(result.__repr__)
    asked(result._repr_html_)
    asked(result.to_json)
    asked(lambda: repr(result.why()))
    for launch in result.launches[:2]:
        asked(lambda launch=launch: result.why(launch))
    asked(lambda: repr(result.what_if({"cube.pe.pe_dma.bw_gbs": 300})))
    asked(lambda: json.dumps(trace_events(records)))
    asked(lambda: link_loads(records, 50))
    asked(lambda: node_loads(records, 50))
    asked(lambda: repr(kb.compare(result, result)))


def swap(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    found = array.copy()
    i, j = chosen.randrange(len(array)), chosen.randrange(len(array))
    found[[i, j]] = found[[j, i]]
    return found


def truncate(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    return array[: chosen.randrange(len(array))]


def repeat(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    return np.concatenate([array, array[: chosen.randrange(1, len(array) + 1)]])


def offset(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    return array + array.dtype.type(chosen.choice([-1, 1, 2, 7, 100]))


def retype(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    return array.astype(chosen.choice(["i1", "i8", "f8", "U20", "?", "c16"]))


def revalue(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    found = array.copy()
    flat = found.reshape(-1)
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
    values = [0, 1, -1, 3, limits.min, limits.max, *flat[:3].tolist(), *(flat[-3:] + 1).tolist()]
    for _ in range(chosen.choice([1, 1, 3])):
        flat[chosen.randrange(flat.size)] = chosen.choice(values)
    return found


def reshape(array: np.ndarray, chosen: random.Random) -> np.ndarray:
    return array.reshape(chosen.choice([(-1, 1), (1, -1), (-1,)]))


MUTATIONS: tuple[Mutation, ...] = (swap, truncate, repeat, offset, retype, revalue, reshape)


def mutate_meta(meta: dict[str, Any], chosen: random.Random) -> None:
    """Change one value of the tables of names, at any depth."""
    place: Any = meta
    key: Any = chosen.choice(sorted(meta))
    while isinstance(place[key], (dict, list)) and place[key] and chosen.random() < 0.9:
        place = place[key]
        key = chosen.choice(sorted(place)) if isinstance(place, dict) else chosen.randrange(len(place))
    how = chosen.randrange(4)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, list):
        place.insert(chosen.randrange(len(place) + 1), place[key])
    else:
        place[key] = chosen.choice([None, True, -1, 0, 1, 7, 1e300, "x", "", "sip0.cube0.pe0", [], {}, [1, 2], 10**30])


def changed(name: str, mutation: Mutation, chosen: random.Random) -> Callable[[Arrays], None]:
    """Return a change of one array."""

    def change(arrays: Arrays) -> None:
        if name == "meta":
            meta = json.loads(arrays["meta"].tobytes())
            mutate_meta(meta, chosen)
            arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        elif len(arrays[name]):
            arrays[name] = mutation(arrays[name], chosen)

    return change


@cache
def names_in(i: int) -> list[str]:
    """Return the arrays of a saved result."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        path.write_bytes(saved()[i][0])
        with np.load(path) as file:
            return sorted(file.files)


def run(seeds: range, folder: Path) -> Report:
    """Change an array of a result for each seed, with and without a new digest, read it and ask it everything."""
    report = Report("changed arrays of results")
    for seed in seeds:
        report.tried += 1
        i = seed % len(saved())
        what, wrong = _tried(seed, i, folder / "run.npz", report)
        if wrong:
            report.failed(seed, f"{what}: {wrong}")
    return report


def _tried(seed: int, i: int, path: Path, report: Report) -> tuple[str, str]:
    data, digest = saved()[i]
    for new_digest in (False, True):
        chosen = random.Random(seed)
        name, mutation = chosen.choice(names_in(i)), chosen.choice(MUTATIONS)
        what, change = f"{mutation.__name__} of {name}", changed(name, mutation, chosen)
        try:
            found = read_changed(data, change, path, new_digest=new_digest)
            if new_digest:
                questions(found)
                report.count("read")
            elif found.records.digest() != digest:
                return what, "other times were read"
        except ConfigError as error:
            if not str(error).startswith(f"{path}: "):
                return what, f"names no file: {error}"
        except KernbenchError as error:
            return what, f"another error: {error}"
        except Exception as error:  # noqa: BLE001 - what is looked for
            return what, f"{type(error).__name__}: {str(error)[:300]} {_where(error)}"
    return what, ""


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-3:]
    return " > ".join(f"{Path(x.filename).name}:{x.lineno} {x.name}" for x in last)
