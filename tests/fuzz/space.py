"""Random kernels whose tiles nearly fill TCM: neither values nor the choice of the engine may change a time."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np

from kernbench.errors import KernbenchError, OutOfMemoryError
from kernbench.runtime_api.context import session
from kernbench.sim_engine._network import ENGINE
from kernbench.topology.builder import Machine, resolve_topology
from tests.fuzz.report import Report
from tests.repo import ROOT

N, TILE_KIB = 32, 4  # a tile is N x N of f32
MOST_ROOM = 64  # in tiles; every kernel ends with less
# Operations of x and y, tiles, and p, a pointer to what is only read. Each gives a tile.
OPERATIONS = (
    "abs(x)", "tl.exp(x)", "tl.erf(x)", "tl.sqrt(abs(x))", "tl.sigmoid(x)", "-x", "tl.floor(x)", "tl.copy(x)",
    "x + y", "1 - x", "x * y", "x / y", "x % 3", "tl.fma(x, y, 2.0)", "tl.maximum(x, y)", "tl.minimum(x, 0.0)",
    "tl.clamp(x, -1.0, y)", "tl.where(x > y, x, 0.0)", "tl.logical_and(x, y)", "x.to(tl.int32) ^ y.to(tl.int32)",
    "~x.to(tl.int32)", "x.to(tl.int32) >> (y.to(tl.int32) & 7)", "tl.cdiv(x.to(tl.int32), 3)",
    "9 // (x.to(tl.int32) | 1)", "x.to(tl.float16)", "x.to(tl.int8)", "x.to(tl.int1)", "x.to(tl.int32, bitcast=True)",
    "tl.pow(x, y)", "tl.hypot(x, y)", "tl.isnan(x)", "tl.ldexp(x, y.to(tl.int32))", "tl.trans(x)",
    "tl.permute(x[None], 2, 0, 1).reshape(N, N)", "x.reshape(N * N)[None].reshape(N, N)", "tl.flip(x, 0)",
    "tl.full((N, N), tl.max(x), tl.float32)", "tl.broadcast_to(tl.sum(x, 0), (N, N))",
    "tl.broadcast(tl.min(x, 1, keep_dims=True), y)[0]", "tl.sum(x)", "tl.max(x, 0, return_indices=True)[1]",
    "tl.argmax(x, 0)", "tl.argmin(x, 1, keep_dims=True)", "tl.xor_sum(x.to(tl.int32), 0)", "tl.softmax(x, 1)",
    "tl.reduce(x, 0, tl.maximum)", "tl.reduce((x, y), 1, lambda i, j, k, n: (i + k, j * n))[1]", "tl.cumsum(x, 1)",
    "tl.cumprod(x, 0)", "tl.associative_scan(x, 0, tl.add)", "tl.sort(x)", "tl.topk(x, 1)",
    "tl.gather(x, tl.argmax(y, 0, keep_dims=True), 0)", "tl.histogram(x.to(tl.int32), N)", "tl.split(tl.join(x, y))[1]",
    "tl.sum(tl.interleave(x, y).reshape(2, N, N), 0)", "tl.max(tl.cat(x, y, dim=1).reshape(N, 2, N), 1)",
    "tl.rand(3, x.to(tl.int32))", "tl.randint4x(3, x.to(tl.int32))[2]", "tl.dot(x, y)", "tl.dot(x, y.T, x)",
    "tl.dot(x.to(tl.float16), y.to(tl.float16), out_dtype=tl.float16)", "tl.dot(x[None], y[None]).reshape(N, N)",
    "tl.load(p, shape=(N, N))", "tl.load(p + at)", "tl.load(p + at, at % 3 > 0)", "tl.load(p + at, at < 99, x)",
    "tl.load(tl.make_block_ptr(p, (N, N), (N, 1), (1, 1), (N, N)), boundary_check=(0, 1))",
    "tl.atomic_add(q + at, x)", "tl.softmax(x.to(tl.float16))", "tl.where(x + 1, x, y)",
)  # fmt: skip
# Those without a result; q is a pointer to what is written.
OTHERS = (
    "tl.store(q, x)", "tl.store(q + at, x, at < 99)", "tl.wait(x)", "x = y",
    "h = x.to(tl.float16); tl.store(q, h); del h", "tl.store(q, x.to(tl.float16))",
    "tl.store(tl.make_block_ptr(q, (N, N), (N, 1), (1, 1), (N, N)), x, boundary_check=(0, 1))",
    "tl.composite('gemm', x, tl.ref(p, (N, N)), q, ['relu', ('add', y)])",
    "tl.wait(tl.composite('math', x, y, q, ['gelu']))", "tl.assert_of_values(lambda i: True, [x], '')",
)  # fmt: skip


def whole(found: Any, tile: Any) -> Any:
    """Return a result as f32, and as large as a tile: added to one if it is smaller."""
    found = found.to("float32")
    return found if found.shape == tile.shape else tile + found


@cache
def machine(room: int, result_kib: int) -> Machine:
    """Return a machine with TCM for `room` operands and as many results up to `result_kib`, and small rings."""
    tcm, ring = "cube.pe.pe_tcm.", "cube.pe.pe_ipcq."
    mib = room * TILE_KIB / 1024
    return resolve_topology("preset:small", {
        "sip.cube_mesh": {"w": 1, "h": 1}, f"{ring}n_slots": 1, f"{ring}slot_bytes": 64, f"{tcm}size_mb": 4 + 2 * mib,
        f"{tcm}kernel_scratch_mb": mib, f"{tcm}scratch_result_kib": result_kib,
    })  # fmt: skip


class Drawn:
    """A random kernel: each line replaces one of a few tiles, or writes or waits for one."""

    def __init__(self, seed: int) -> None:
        chosen = random.Random(seed)
        self.tiles = "abcd"[: chosen.randint(1, 4)]
        self.result_kib, self.spare = chosen.choice((1, TILE_KIB)), chosen.choice((0, 1))
        self.lines = [f"{name} = tl.load(p + {i}, shape=(N, N))" for i, name in enumerate(self.tiles)]
        for _ in range(chosen.randint(2, 30)):
            tiles = {name: chosen.choice(self.tiles) for name in "xyz"}
            line = chosen.choice([f"z = whole({x}, z)" for x in OPERATIONS] + [*OTHERS])
            self.lines.append(re.sub(r"\b[xyz]\b", lambda m, tiles=tiles: tiles[m.group()], line))
        self.given = np.random.default_rng(seed).normal(size=(4, N, N)).astype(np.float32)

    def told(self, data: bool) -> dict[str, list[Any]]:
        """Return the least room with which the kernel ends and, with it or a little more, all times of the log."""
        head = "def kernel(p, *, tl):\n    q, at = p + 2 * N * N, tl.arange(0, N * N).reshape(N, N)\n    "
        space: dict[str, Any] = {"N": N, "whole": whole}
        exec(head + "\n    ".join(self.lines), space)
        for room in range(len(self.tiles), MOST_ROOM):
            try:
                with session(machine(room + self.spare, self.result_kib), data) as torch:
                    torch.launch("short", space["kernel"], torch.from_numpy(self.given).to("ahbm"))
            except OutOfMemoryError:
                continue
            except KernbenchError as error:
                return {"error": [str(error)]}
            break
        else:
            return {"error": [f"no end with room for {MOST_ROOM} tiles"]}
        records, found = torch.result.records, torch.result.records.dependencies
        spaces = zip(*(column.tolist() for column in found.allocations.values()), strict=True)
        return {
            "error": [], "room": [room], "launch": [[x.start_ps, x.end_ps] for x in records.launches],
            "row": sorted([x.start_ps, x.end_ps, x.component, x.kind] for x in records),
            "space": sorted([t, found.places[place], nbytes] for t, place, nbytes in spaces),
        }  # fmt: skip


def told(first: int, last: int) -> str:
    """Return what the kernels tell without values and with them, on the engine of this process, as JSON."""
    return json.dumps([[Drawn(seed).told(data) for data in (False, True)] for seed in range(first, last)])


def run(seeds: range, _folder: object = None) -> Report:
    """Run the kernels of `seeds` without values and with them, on this engine and the definition, and compare."""
    report = Report("kernels short of space")
    engines = {ENGINE: told(seeds.start, seeds.stop)}
    if ENGINE != "definition":
        code = f"from tests.fuzz.space import told; print(told({seeds.start}, {seeds.stop}))"
        environment = {**os.environ, "KERNBENCH_ENGINE": "definition"}
        defined = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
        engines["definition"] = defined
    names = [f"{engine} with{values} values" for engine in engines for values in ("out", "")]
    for seed, runs in zip(seeds, zip(*map(json.loads, engines.values()), strict=True), strict=True):
        report.tried += 1
        each = [x for both in runs for x in both]
        wanted = {**each[0], "error": []}
        for name, found in zip(names, each, strict=True):
            pairs = [(key, *pair) for key in wanted for pair in zip_longest(wanted[key], found.get(key, ()))]
            differ = [f"{key} {b}, expected {a}" for key, a, b in pairs if a != b]
            if differ:
                report.failed(seed, f"{name}: {differ[0]}: {'; '.join(Drawn(seed).lines)}")
    return report
