"""Attention of the requests of a step on one SIP, simulated: each PE attends to the keys that it holds."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from kernbench._dtypes import DType, float16, float32
from kernbench.analysis.why import Why
from kernbench.kernels.partition import mine
from kernbench.ops import attention as ops
from kernbench.ops._routes import cubes_near_io
from kernbench.ops._stored import Span
from kernbench.ops.attention import Attention, Heads, Unit
from kernbench.ops.matmul import BY_ROWS, KernelLaunch
from kernbench.points._keys import Row
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.sweeps._energy_area import counters
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

Held = tuple[tuple[int, int, tuple[int, ...]], ...]
_LEAST = 128  # keys of a PE, at least: fewer take as long (chosen)


class _Merge(NamedTuple):
    """The parts of one head of a request: their number, and where their values and logarithms are."""

    request: int
    head: int
    parts: int
    values: int


def attention_row(
    machine: Machine, *, tokens: int, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int,
    latent: int = 0, log: str = "operation",
) -> Row:  # fmt: skip
    """Return the time of attention [ns], what it reads at least, its limit, and its counters: a study.

    Each request attends with the last `tokens` of its context. Keys of requests with one token are packed over the PEs;
    several tokens are of one request, a chunk of its prompt. With `latent`, values are so many first elements of keys.
    """
    with session(machine, log=log) as torch:
        attend_batch(torch, tokens, contexts, heads, kv_heads, head_dim, latent)
    result = torch.result
    launched = result.launches
    ns = sum(x.end_ps - x.start_ps for x in launched) / 1000
    if log == "off":
        return {"ns": ns}
    read = (1 if latent else 2) * float16.itemsize * kv_heads * head_dim * sum(contexts)
    records = result.records
    counts = counters(machine.config, records.links, records.busy_by_component())
    return counts | {"ns": ns, "host_ns": 0.0, "nbytes": read, **limits_of(result.why())}


def limits_of(found: Why) -> Row:
    """Return the resource with most of the critical path, and the time of each resource with some of it [ns]."""
    path: Counter[str] = Counter()
    for x in found:
        path[x.what] += x.ns  # type: ignore[assignment]
    return {"limit": found[0].what, "path": dict(path)}


def launch_all(torch: RuntimeContext, steps: Sequence[KernelLaunch], tensors: Mapping[str, DeviceTensor]) -> None:
    for step in steps:
        own = [tensors[name] for name in step.tensors]
        args = (*(x.pointer for x in own), *step.sizes)
        torch._host.launch(0, step.pes, step.kernel, args, "attention", [x._handle for x in own])


def attend_batch(
    torch: RuntimeContext, tokens: int, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int,
    latent: int = 0,
) -> None:  # fmt: skip
    """Run attention as one graph; see `attention_row`."""
    steps, tensors = prepared(torch, tokens, contexts, heads, kv_heads, head_dim, latent)
    with torch._host.capture(0) as graph:
        launch_all(torch, steps, tensors)
    graph.replay()


def prepared(
    torch: RuntimeContext, tokens: int, contexts: Sequence[int], heads: int, kv_heads: int, head_dim: int,
    latent: int = 0,
) -> tuple[list[KernelLaunch], dict[str, DeviceTensor]]:  # fmt: skip
    """Return the launches of attention, and its tensors: q and out [requests, tokens, heads, width], k and v packed."""
    machine = torch.engine.machine
    starts, total = [0, *accumulate(contexts)], sum(contexts)
    near, each = cubes_near_io(machine), machine.config.pes_per_cube
    cubes = min(len(near), -(-total * kv_heads // (_LEAST * each))) if tokens == 1 else len(near)
    rows, width = len(contexts) * tokens * heads, latent or head_dim
    tensors = {"q": _new(torch, rows, head_dim), "out": _new(torch, rows, width)}
    tensors["k"] = tensors["v"] = _new(torch, total * kv_heads, head_dim, near[:cubes])
    if not latent:
        tensors["v"] = _new(torch, total * kv_heads, head_dim, near[:cubes])
    of_q, of_out = (
        Heads(tuple(i * tokens * heads * n for i in range(len(contexts))), (n, heads * n, 1)) for n in (head_dim, width)
    )
    held = tuple((at // 2, n // 2, pes) for at, n, pes in tensors["k"].layout.held(each))
    packed = Heads(tuple(start * head_dim for start in starts[:-1]), (total * head_dim, head_dim, 1), held)
    sizes = Attention(
        heads, kv_heads, tokens, max(contexts), head_dim, width, head_dim**-0.5, "f16", of_q, packed, packed, of_out,
        behind=contexts[0] - tokens if tokens > 1 else None, latent=bool(latent),
    )  # fmt: skip
    if tokens > 1:
        return ops.steps(machine, sizes), tensors
    units, merges, columns = _dealt(sizes, starts, held, each, machine.config.pes_per_sip)
    kernel = partial(ops.attention, sizes=sizes, units=units)
    numbers = heads, 1, sizes.kv_len, head_dim
    found = [KernelLaunch(kernel, ("q", "k", "v", "parts" if merges else "out"), numbers, sorted(units))]
    if merges:
        tensors["parts"] = _new(torch, machine.config.pes_per_sip, columns, dtype=float32)
        found.append(KernelLaunch(partial(_merge, sizes=sizes, merges=merges), ("parts", "out"), (), sorted(merges)))
    return found, tensors


def _new(
    torch: RuntimeContext, rows: int, columns: int, cubes: tuple[int, ...] | None = None, dtype: DType = float16
) -> DeviceTensor:
    made: Any = torch.empty(rows, columns, dtype=dtype, device="ahbm", dp=replace(BY_ROWS, cubes=cubes))
    return made


def _dealt(
    sizes: Attention, starts: Sequence[int], held: Held, each: int, pes: int
) -> tuple[dict[PeId, list[Unit]], dict[PeId, list[_Merge]], int]:
    """Cut the keys of each request and kv head where the next PE holds them; merge each query head at one of these PEs.

    Returns units, merges (none if nothing is cut), and the columns of the PEs' memory for the results of parts.
    """
    width, total, group = sizes.width, starts[-1], sizes.group
    bounds = [at // sizes.head_dim for at, _, _ in held]
    parts: list[tuple[int, int, list[tuple[int, int, int]]]] = []  # request, kv head, (first key, keys, PE)
    for kv in range(sizes.kv_heads):
        for request, (start, end) in enumerate(pairwise(starts)):
            first, last = kv * total + start, kv * total + end
            cuts = [first, *bounds[bisect_right(bounds, first) : bisect_right(bounds, last - 1)], last]
            own = [(a - first, b - a, held[bisect_right(bounds, a) - 1][2][0]) for a, b in pairwise(cuts)]
            parts.append((request, kv, own))
    split = any(len(own) > 1 for _, _, own in parts)
    used = [0] * pes
    units, merges = dict[PeId, list[Unit]](), dict[PeId, list[_Merge]]()
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for request, kv, own in parts if split else ():
        for i in range(group):
            pe, count = own[i * len(own) // group][2], len(own)
            places[request, kv * group + i] = pe, used[pe]
            used[pe] += count * (width + 1)
    columns = max(used)
    for request, kv, own in parts:
        heads = kv * group, group
        for i, (first, n, pe) in enumerate(own):
            at = (
                [pe_at * columns + offset for pe_at, offset in (places[request, h] for h in range(*_range(heads)))]
                if split
                else []
            )
            spots = tuple((x + i * width, x + len(own) * width + i) for x in at)
            units.setdefault(divmod(pe, each), []).append(Unit(request, heads, (0, 1), (first, n), spots))
        for head in range(*_range(heads)) if split else ():
            pe, offset = places[request, head]
            merges.setdefault(divmod(pe, each), []).append(_Merge(request, head, len(own), pe * columns + offset))
    return units, merges, columns


def _range(span: Span) -> Span:
    return span[0], sum(span)


def _merge(
    parts_ptr: Pointer, out_ptr: Pointer, *, sizes: Attention, merges: Mapping[PeId, Sequence[_Merge]], tl: TLContext
) -> None:
    """Combine results over the parts of the keys of a request into the attention of one query head."""
    width = sizes.width
    for own in mine(merges, tl):
        values = tl.load(parts_ptr + own.values, shape=(own.parts, width))
        logarithms = tl.load(parts_ptr + (own.values + own.parts * width), shape=(own.parts, 1))
        weights = tl.exp(logarithms - tl.max(logarithms, axis=0, keep_dims=True))
        result = tl.sum(values * weights, axis=0, keep_dims=True) / tl.sum(weights, axis=0, keep_dims=True)
        tl.store(out_ptr + (sizes.out.offsets[own.request] + own.head * width), result)
