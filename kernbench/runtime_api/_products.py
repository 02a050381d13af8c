"""A matrix product on a device: its placement by estimate or by simulation, its moves and its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from kernbench._dtypes import as_dtype, float32
from kernbench.ops._stored import Stored
from kernbench.ops.copy import Matrix, copy
from kernbench.ops.matmul import (
    BEST,
    ONE_PE,
    USES,
    Choice,
    PlacementLike,
    Product,
    choose_placement,
    named,
    near,
    partial_sums,
    pieces_of,
    steps,
)
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, code_version, key_of, only_ours
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api._device_tensor import DeviceTensor, deploy
from kernbench.runtime_api._devices import HostProgram
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine


def is_alone(product: Product, choice: Choice, fixed: bool) -> bool:
    """Return True if the only PE that computes C also holds it."""
    return choice.placement == "replicated" and product.batch == 1 and not fixed


def chosen_placement(
    machine: Machine, product: Product, placement: PlacementLike | None, fixed: bool = False, uses: float = USES
) -> Choice:
    """Return the placement requested, the cheapest by estimate, or for "best" the fastest by simulation.

    `fixed` and `uses` as for `ops.matmul.choose_placement`.
    """
    if placement == BEST:
        return _best(machine, product, fixed, uses)
    return choose_placement(machine, product, placement, fixed, uses)


@lru_cache(maxsize=256)
def _best(machine: Machine, product: Product, fixed: bool, uses: float) -> Choice:
    """Simulate the placements whose estimates are near the lowest one on an idle machine; return the fastest."""
    choices = {x.words: x for x in reversed(near(machine, product, fixed, uses))}
    alone = replace(product, c=Stored.of(machine.config, (product.m, product.n), ONE_PE))

    def times() -> Row:
        asked = {words: alone if is_alone(product, x, fixed) else product for words, x in choices.items()}
        return {words: _simulated_ns(machine, asked[words], x, uses) for words, x in choices.items()}

    cache = default_cache() if only_ours(machine) else None
    if cache is None:
        found = times()
    else:
        study, version = __name__, code_version()
        key = key_of(study, version, machine.hash, {"product": repr(product), "fixed": fixed, "uses": uses})
        found = cache.rows_of(times, key, study=study, machine=machine.hash, version=version)
    return replace(choices[min(found, key=lambda words: found[words])], simulated_ns=found)


def _simulated_ns(machine: Machine, product: Product, choice: Choice, uses: float) -> float:
    host = HostProgram(GraphEngine(machine, log="off"), DeviceSelector())
    stored = {"a": product.a, "b": product.b, "c": product.c, "bias": product.bias}
    placed = {name: _laid_out(host, at, product.dtype) for name, at in stored.items() if at is not None}
    asked = replace(product, **{name: at for name, (_, at) in placed.items()})  # type: ignore[arg-type]
    tensors = {name: tensor for name, (tensor, _) in placed.items()}
    times: list[float] = []
    for _ in range(2):
        launch_product(asked, choice, tensors)
        host.synchronize()
        ran = host.engine.records().launches
        times.append(sum((x.end_ps - x.start_ps) / 1000 + product.host_ns for x in ran) - sum(times))
        if not choice.b:
            break
    host.close()
    return times[-1] + ((times[0] - times[-1]) / uses if choice.b else 0)


def _laid_out(host: HostProgram, at: Stored, dtype: str) -> tuple[DeviceTensor, Stored]:
    """Allocate a matrix with the strides and holders of `at`; return it, and `at` relative to its first byte."""
    base, item = min((0, *(piece.place for piece in at.pieces))), as_dtype(dtype).itemsize
    at = Stored(at.shape, tuple(piece._replace(place=piece.place - base) for piece in at.pieces))
    runs: list[tuple[int, int, tuple[int, ...]]] = []
    for piece in sorted(at.pieces, key=lambda piece: piece.place):
        (_, m), (_, n), first, row_step, column_step, holders = piece
        end = first + (m - 1) * row_step + (n - 1) * column_step + 1
        if runs and runs[-1][2] == holders:
            first, end = runs[-1][0], max(end, runs.pop()[1])
        runs.append((first, end, holders))
    each = host.config.pes_per_cube
    shards = [
        ShardSpec(0, *divmod(pe, each), first * item, (end - first) * item) for first, end, pes in runs for pe in pes
    ]
    handle = host.allocate(0, (runs[-1][1], 1), as_dtype(dtype), shards)
    return DeviceTensor(host, handle, handle.layout), at


def launch_product(product: Product, choice: Choice, tensors: Mapping[str, DeviceTensor]) -> None:
    """Move A and B to where the placement reads them, and compute C, on the device of the tensors."""
    a, b, c = (tensors[name] for name in "abc")
    host, config = a._host, a._host.config
    a, at_a = _moved(a, product.a, choice.a, "a", keep=False)
    b, at_b = _moved(b, product.b, choice.b, "b", keep=True)
    made = replace(product, a=at_a, b=at_b)
    every = {**tensors, "a": a, "b": b} | {
        name: deploy(host, size, float32, c.device, dp)
        for name, (size, dp) in partial_sums(config, made, choice.placement).items()
    }
    reads = [every[name]._handle for name in ("a", "b", "bias") if name in every]
    for step in steps(config, made, choice.placement):
        own = [every[name] for name in step.tensors]
        args = (*(t.pointer for t in own), *step.sizes)
        name = f"matmul {named(choice.placement)}"
        host.launch(c.sip, step.pes, step.kernel, args, name, [t._handle for t in own], reads=reads)


def _moved(
    source: DeviceTensor, at: Stored, policies: Sequence[DPPolicy], name: str, *, keep: bool
) -> tuple[DeviceTensor, Stored]:
    """Move a matrix through `policies`; with `keep`, the copy is reused until its source may have changed."""
    host, key = source._host, (source._offset, at, tuple(policies))
    if not policies:
        return source, at
    keep = keep and host.capturing(source.sip) is None  # a graph may be replayed after the memory has changed
    if keep and key in source._handle.moved:
        return source._handle.moved[key]
    x = source
    for policy in policies:
        target = deploy(host, at.shape, source.dtype, source.device, policy)
        to = Stored.of(host.config, at.shape, policy)
        parts = pieces_of(host.config, to)
        kernel = partial(copy, plan=Matrix(at, parts))
        handles = [x._handle, target._handle]
        host.launch(
            source.sip, sorted(parts), kernel, (target.pointer, (x.pointer,)), f"matmul move {name}", handles,
            reads=(x._handle,),
        )  # fmt: skip
        x, at = target, to
    if keep:
        host.keep_moved(source._handle, key, (x, at))
    return x, at
