"""Space in TCM: what fits, what waits for space, and what is refused with its sizes."""

from __future__ import annotations

import gc

import pytest

from kernbench._dtypes import float16, int8
from kernbench.components._command import Value
from kernbench.components.builtin.pe_scheduler import TileJob
from kernbench.components.builtin.pe_tcm import PeTcm
from kernbench.errors import OutOfMemoryError
from kernbench.policy.address.allocator import FirstFit
from tests.components.one_pe import engine_of, gemm, launch, pointer, rows, run
from tests.topology.machines import default

MIB = 1 << 20
TILE = MIB // 2  # elements of f16 in a tile of 1 MiB
ROOM = 11  # MiB: what tile buffers and scratch leave of 16


def load(tl, i: int, mib: int = 1):
    return tl.load(pointer(i * MIB), shape=mib * TILE)


def keep(count: int, mib: int = 1):
    def kernel(tl) -> None:
        kept = [load(tl, i, mib) for i in range(count)]
        assert len(kept) == count

    return kernel


def test_eleven_mib_of_operands_fit_and_a_byte_more_does_not():
    run(keep(ROOM))
    with pytest.raises(OutOfMemoryError, match=r"1048576 B.*0 of 11534336 B.*del"):
        run(keep(ROOM + 1))


def test_the_file_says_how_much_there_is():
    run(keep(ROOM + 1), {"cube.pe.pe_tcm.size_mb": 17})
    with pytest.raises(OutOfMemoryError):
        run(keep(ROOM), {"cube.pe.pe_tcm.tile_buffer_mb": 5})


def test_what_would_not_fit_in_an_empty_memory_is_refused_at_once():
    with pytest.raises(OutOfMemoryError, match=r"sip0\.cube0\.pe0.*12582912 B.*11534336 B.*smaller tiles"):
        run(keep(1, 12))


def test_a_dropped_handle_makes_room_and_the_cycle_collector_is_not_needed():
    def kernel(tl) -> None:
        for i in range(2 * ROOM):
            tile = load(tl, i)
            del tile

    gc.disable()
    try:
        run(kernel)
    finally:
        gc.enable()


def test_space_that_a_command_still_uses_is_waited_for_and_not_longer():
    def kernel(tl) -> None:
        first = load(tl, 0, ROOM)
        tl.store(pointer(16 * MIB), first)
        del first
        load(tl, 0)

    engine = run(kernel)
    [(_, stored)] = rows(engine, "store")
    _, (second, _) = rows(engine, "load")
    assert second == stored + 2


def test_small_results_lie_in_scratch_and_larger_ones_with_the_operands():
    def results(count: int, kib: int):
        def kernel(tl) -> None:
            source = tl.load(pointer(), shape=kib * 512)
            kept = [source + 1.0 for _ in range(count)]
            assert len(kept) == count

        return kernel

    run(results(16, 64))
    with pytest.raises(OutOfMemoryError, match="scratch"):
        run(results(17, 64))
    run(results(100, 65))


def test_a_kernel_that_ends_gives_everything_back():
    engine = engine_of()
    for _ in range(3):
        launch(engine, keep(ROOM))


@pytest.mark.parametrize("more", [0, 1])
def test_the_last_byte_of_the_room_counts(more):
    def kernel(tl) -> None:
        kept = load(tl, 0, ROOM - 1), tl.load(pointer(32 * MIB, dtype=int8), shape=MIB + more)
        assert kept

    if more:
        with pytest.raises(OutOfMemoryError, match=r"1048577 B.*1048576 of 11534336 B"):
            run(kernel)
    else:
        run(kernel)


@pytest.mark.parametrize(("nbytes", "where"), [(64 * 1024, "scratch"), (64 * 1024 + 1, None)])
def test_a_result_goes_to_scratch_up_to_64_kib(nbytes, where):
    # Scratch is 1 MiB: seventeen results of 64 KiB do not fit, of one byte more they are operands, and do.
    def kernel(tl) -> None:
        source = tl.load(pointer(dtype=int8), shape=nbytes)
        kept = [source + source for _ in range(17)]
        assert len(kept) == 17

    if where:
        with pytest.raises(OutOfMemoryError, match=where):
            run(kernel)
    else:
        run(kernel)


@pytest.mark.parametrize("log", ["off", "operation", "tile"])
def test_a_tiled_command_is_released_without_the_cycle_collector(log: str):
    gc.collect()
    gc.disable()
    try:
        engine = run(gemm(64, 128, 64), log=log)
        assert not [job for job in gc.get_objects() if isinstance(job, TileJob) and job.pe.engine is engine]
    finally:
        gc.enable()


def test_space_is_free_in_the_order_of_times_not_of_returns():
    tcm = PeTcm("pe", default().config.cube.pe.pe_tcm, FirstFit("heap", 0, 3 * MIB))
    values = [Value((TILE,), float16) for _ in range(6)]
    for value in values[:3]:
        assert tcm.alloc(value, True, 0) == 0
    # All three are in use until their commands end: at 300, 100 and 200 ps, which events 30, 10 and 20 are.
    for value, at in zip(values[:3], (300, 100, 200), strict=True):
        tcm.free(value, at, at // 10)
    found = [(tcm.alloc(value, True, 50), tcm.freed_by) for value in values[3:]]
    assert found == [(100, 10), (200, 20), (300, 30)]
    assert [value.space.address for value in values[3:]] == [MIB, 2 * MIB, 0]
