"""Kernels that do what no kernel should: each is refused with its file and line, none counts as a success."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys

import greenlet
import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl.algorithm import algorithm
from kernbench.errors import KernelError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.triton_emu.testing import run_kernel

HERE = re.escape(__file__)


def generator(x, *, tl):
    tl.store(x, 1.0)
    yield


async def coroutine(x, *, tl):
    tl.store(x, 1.0)


async def async_generator(x, *, tl):
    yield tl.store(x, 1.0)


class Callable:
    def __call__(self, x, *, tl):
        yield


@pytest.mark.parametrize("kernel", [generator, coroutine, async_generator, functools.partial(generator), Callable()])
def test_a_generator_or_coroutine_is_refused_at_the_launch(torch, kernel):
    x = torch.zeros(4, dtype=torch.float32, device="ahbm")
    with pytest.raises(TypeError, match=rf"{HERE}:\d+: kernel \w+ is a (generator|coroutine): .*plain function"):
        torch.launch("lazy", kernel, x)


@pytest.mark.parametrize("kernel", [generator, coroutine])
def test_one_that_a_wrapper_hides_is_refused_when_it_runs(torch, kernel):
    x = torch.zeros(4, dtype=torch.float32, device="ahbm")
    torch.launch("lazy", lambda x, *, tl: kernel(x, tl=tl), x)
    line = kernel.__code__.co_firstlineno
    with pytest.raises(KernelError, match=rf"{HERE}:{line}: it returned a (generator|coroutine) and did nothing"):
        torch.ahbm.synchronize()


def lazy_rank(rank, torch):
    yield


async def waiting_rank(rank, torch):
    pass


@pytest.mark.parametrize("rank", [lazy_rank, waiting_rank, functools.partial(lazy_rank)])
def test_a_rank_is_refused_too(torch, rank):
    with pytest.raises(TypeError, match=rf"{HERE}:\d+: rank \w+ is a (generator|coroutine): .*plain function"):
        torch.multiprocessing.spawn(rank, (torch,))


@pytest.mark.parametrize("rank", [lazy_rank, waiting_rank])
def test_a_rank_that_a_wrapper_hides_is_refused_when_it_runs(torch, rank):
    with pytest.raises(
        ProcessRaisedException, match=rf"{HERE}:\d+: it returned a (generator|coroutine) and did nothing"
    ):
        torch.multiprocessing.spawn(lambda i: rank(i, torch))


def parses(x, *, tl):
    json.loads("{")


def leaves(x, *, tl):
    exit()


@pytest.mark.parametrize("kernel", [parses, leaves])
def test_a_failure_within_a_library_names_the_kernel_s_line(torch, kernel):
    torch.launch("k", kernel, torch.zeros(4, dtype=torch.float32, device="ahbm"))
    line = kernel.__code__.co_firstlineno + 1
    with pytest.raises(KernelError, match=rf"{HERE}:{line}: kernel {kernel.__name__}"):
        torch.ahbm.synchronize()


def test_an_algorithm_is_refused_too(torch):
    def arguments(*, n_elem, world_size):
        return ()

    own = algorithm(generator, arguments, name="lazy", topology="none", mapper="by_shard")
    x = torch.zeros(4, dtype=torch.float32, device="ahbm")
    with pytest.raises(TypeError, match="kernel generator is a generator"):
        torch.collective([x], own)


@pytest.mark.parametrize("operator", ["//", "%"])
@pytest.mark.parametrize("constant", [True, False])
def test_an_integer_divided_by_zero(torch, operator, constant):
    def kernel(x, *, tl):
        a = tl.arange(0, 4) if constant else tl.load(x, shape=(4,))
        tl.store(x, a // 0 if operator == "//" else a % 0)

    x = torch.arange(4, dtype=torch.int32, device="ahbm")
    torch.launch("divide", kernel, x)
    with pytest.raises(KernelError, match=rf"{HERE}:\d+: .*1 of 1 divisors are 0.*tl\.where"):
        torch.ahbm.synchronize()


def test_a_float_divided_by_zero_is_infinite():
    def kernel(x, *, tl):
        tl.store(x, tl.load(x, shape=(2,)) / 0.0)

    x = np.array([1.0, -1.0], np.float32)
    run_kernel(kernel, x)
    assert x.tolist() == [np.inf, -np.inf]


def kept_from(torch, x):
    """Return the tl, a tile and a constant of a launch that has ended."""
    kept = []

    def keep(x, *, tl):
        kept.extend((tl, tl.load(x, shape=(4,)), tl.arange(0, 4)))

    torch.launch("keep", keep, x)
    torch.ahbm.synchronize()
    return kept


USES = {
    "store by the kept tl": lambda old, tile, x, tl: old.store(x, 1.0),
    "load by the kept tl": lambda old, tile, x, tl: old.load(x, shape=(4,)),
    "store of the kept tile": lambda old, tile, x, tl: tl.store(x, tile),
    "sum with the kept tile": lambda old, tile, x, tl: tl.store(x, tl.load(x, shape=(4,)) + tile),
    "sum of the kept tile": lambda old, tile, x, tl: tl.store(x, tile + tl.load(x, shape=(4,))),
    "product of the kept tile": lambda old, tile, x, tl: tl.dot(tile[:, None], tile[None, :]),
    "values of the kept tile": lambda old, tile, x, tl: float(tl.sum(tile)),
    "numpy of the kept tile": lambda old, tile, x, tl: tile.numpy(),
    "mask of the kept tile": lambda old, tile, x, tl: tl.load(x + tl.arange(0, 4), mask=tile),
    "wait for the kept tile": lambda old, tile, x, tl: tl.wait(tile),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("session", ["same", "another"])
def test_what_is_kept_from_an_earlier_launch_is_refused(use, session):
    with kb.session("preset:small", data=True) as first:
        old, tile, _ = kept_from(first, first.ones(4, dtype=first.float32, device="ahbm"))
        if session == "same":
            outcome(first, use, old, tile)
    if session == "another":
        with kb.session("preset:small", data=True) as second:
            outcome(second, use, old, tile)


def outcome(torch, use, old, tile):
    x = torch.ones(4, dtype=torch.float32, device="ahbm")
    torch.launch("use", lambda x, *, tl: USES[use](old, tile, x, tl), x)
    with pytest.raises(KernelError, match=rf"{HERE}:\d+: .*belongs to a program that has ended"):
        torch.ahbm.synchronize()


def test_a_kept_tl_is_refused_outside_of_any_kernel(torch):
    old, tile, _ = kept_from(torch, torch.ones(4, dtype=torch.float32, device="ahbm"))
    for use in (lambda: old.zeros(4, old.float32) + tile, lambda: old.wait(tile), tile.numpy):
        with pytest.raises(KernelError, match="belongs to a program that has ended"):
            use()


def test_constants_hold_no_memory_and_may_be_kept(torch):
    x = torch.ones(4, dtype=torch.int32, device="ahbm")
    _, _, constant = kept_from(torch, x)
    torch.launch("use", lambda x, *, tl: tl.store(x, tl.load(x, shape=(4,)) + constant), x)
    assert x.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["tl", "tile"])
def test_what_another_program_of_the_launch_has_is_refused(torch, what):
    shared = []

    def kernel(x, *, tl):
        if not shared:
            shared.extend((tl, tl.load(x, shape=(2,))))
            for _ in range(64):  # still running when the other program begins
                tl.wait(tl.load(x, shape=(2,)))
        elif shared[0] is not tl:
            tl.wait(tl.load(x, shape=(2,)))
            if what == "tl":
                shared[0].store(x, 2.0)
            else:
                tl.store(x, shared[1])

    x = torch.zeros(4, dtype=torch.float32, dp=kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
    torch.launch("share", kernel, x)
    with pytest.raises(KernelError, match=r"is used outside of its program|belongs to another program"):
        torch.ahbm.synchronize()


@pytest.mark.parametrize(
    "stop",
    [sys.exit, lambda: sys.exit(1), lambda: (_ for _ in ()).throw(greenlet.GreenletExit), asyncio.CancelledError],
)
def test_a_kernel_that_ends_its_process_is_an_error(torch, stop):
    def kernel(x, *, tl):
        tl.store(x, 1.0)
        error = stop()
        raise error

    x = torch.zeros(4, dtype=torch.float32, device="ahbm")
    torch.launch("stop", kernel, x)
    with pytest.raises(KernelError, match=rf"{HERE}:\d+: kernel kernel.*(SystemExit|GreenletExit|CancelledError)"):
        torch.ahbm.synchronize()


def test_a_rank_that_ends_its_greenlet_is_an_error():
    def program(rank):
        raise greenlet.GreenletExit

    with kb.session("preset:default") as torch, pytest.raises(ProcessRaisedException, match="GreenletExit"):
        torch.multiprocessing.spawn(program, nprocs=2)
