"""Checks of a critical path, and programs of every kind to check it on."""

from __future__ import annotations

from itertools import pairwise

from kernbench.analysis._critical_path import _UNKNOWN, critical_path
from kernbench.analysis._launches import calls, span
from tests.components.one_pe import pointer


def checked(records):
    """Return the critical path, which must be a chain from 0 to the makespan whose every cause the log tells.

    That of each launch must be one from its start to its end.
    """
    path = chain(records, (), 0, records.makespan_ps)
    for launches in calls(records.launches).values():
        chain(records, launches, *span(launches))
        if len(launches) > 1:
            chain(records, launches[-1:], *span(launches[-1:]))
    return path


def chain(records, launches, start_ps, end_ps):
    """Return the critical path of launches, or of the run, which must be a chain that leaves nothing out."""
    path = critical_path(records, launches)
    assert sum(step.end_ps - step.start_ps for step in path.steps) == end_ps - start_ps == path.makespan_ps
    assert sum(path.parts().values()) == path.makespan_ps
    assert (path.steps[0].start_ps, path.steps[-1].end_ps) == (start_ps, end_ps)
    for step in path.steps:
        assert sum(part.ps for part in step.parts) == step.end_ps - step.start_ps > 0, step
        assert all(part.ps > 0 for part in step.parts), step
    for a, b in pairwise(path.steps):
        assert a.end_ps == b.start_ps
    unknown = [
        step for step in path.steps if step.because == _UNKNOWN or any(p.resource == _UNKNOWN for p in step.parts)
    ]
    assert not unknown
    return path


def program(steps):
    """Return a kernel of `steps`, names of `STEPS` with the PE whose memory they touch."""

    def kernel(tl):
        tiles = []
        for i, (name, pe) in enumerate(steps):
            STEPS[name](tl, tiles, pointer((i % 6) << 16, pe), pointer((6 + i % 3) << 16, pe))

    return kernel


def _last(tl, tiles):
    return tiles[-1] if tiles else tl.zeros((32, 64), tl.float16)


def _composite(tl, tiles, a, out, *, pinned=False, epilogue=(), wait=False):
    left = _last(tl, tiles) if pinned else tl.ref(a, (32, 64))
    done = tl.composite("gemm", left, tl.ref(a, (64, 96)), out, epilogue=epilogue)
    if wait:
        tl.wait(done)


STEPS = {
    "load": lambda tl, tiles, a, out: tiles.append(tl.load(a, shape=(32, 64))),
    "load column": lambda tl, tiles, a, out: tiles.append(tl.load(a + tl.arange(0, 2048) * 3).reshape(32, 64)),
    "store": lambda tl, tiles, a, out: tl.store(out, _last(tl, tiles)),
    "vector": lambda tl, tiles, a, out: tiles.append(tl.exp(_last(tl, tiles)) + 1),
    "dot": lambda tl, tiles, a, out: tiles.append(
        tl.dot(_last(tl, tiles).to(tl.float16), tl.load(a, shape=(64, 64))).to(tl.float16)
    ),
    "gemm": _composite,
    "pinned gemm": lambda *args: _composite(*args, pinned=True),
    "gemm with epilogue": lambda *args: _composite(*args, epilogue=["gelu"]),
    "gemm with bias": lambda tl, tiles, a, out: _composite(tl, tiles, a, out, epilogue=[("bias", out)]),
    "gemm, waited for": lambda *args: _composite(*args, wait=True),
    "math": lambda tl, tiles, a, out: tl.composite("math", tl.ref(a, (64, 64)), tl.ref(a, (64, 64)), out),
    "drop": lambda tl, tiles, a, out: tiles.clear(),
}
