"""What a PE's parts take, and what waits for what: one PE, operands in its own slice unless said otherwise.

A read of 256 B from its own slice takes 12 ns, of 4 KiB 27; of PE 7's slice 42.60 and 57.60.
"""

from __future__ import annotations

import itertools
import math

import pytest

from kernbench._dtypes import int8
from kernbench.config._dram import dram
from kernbench.policy._routing import router_of
from tests.components.one_pe import engine_of, gemm, launch, machine_of, pointer, rows, run

KIB = 1024


def loads(count: int, nbytes: int = 4 * KIB, pe: int = 0, gap: int = 4 * KIB):
    def kernel(tl) -> None:
        kept = [tl.load(pointer(i * gap, pe), shape=nbytes // 2) for i in range(count)]
        assert len(kept) == count

    return kernel


def starts(found) -> list[float]:
    return [start for start, _ in found]


def test_a_command_is_issued_every_two_ns():
    assert starts(rows(run(loads(4)), "load")) == [2, 4, 6, 8]


@pytest.mark.parametrize(("access_ns", "reads"), [(0, 2), (20, 3), (21, 3), (22, 4), (101, 8)])
def test_auto_reads_keep_the_link_busy_and_one_less_do_not(access_ns, reads):
    # One alone takes 27 ns and the access, its bytes 16 ns: 47 or 48 ns are three times that, 49 are not.
    def with_(outstanding: object) -> dict[str, object]:
        return {"cube.hbm.access_ns": access_ns, "cube.pe.pe_dma.outstanding_reads": outstanding}

    def end(outstanding: object) -> float:
        return rows(run(loads(30), with_(outstanding)), "load")[-1][1]

    assert router_of(machine_of(with_("auto")).graph).outstanding_reads == reads
    least = 2 + 27 + access_ns + 29 * 16
    assert end("auto") == end(reads) == least
    assert end(reads - 1) > least + 5


def test_auto_reads_cover_twice_the_latency_where_they_wait_for_rows_and_banks():
    given = {
        "cube.hbm.timing": "hbm3", "cube.hbm.access_ns": 0.0, "cube.hbm.turnaround_ns": 0.0, "cube.hbm.efficiency": 1.0,
        "cube.pe.pe_dma.outstanding_reads": "auto",
    }  # fmt: skip
    machine = machine_of(given)
    times = dram("hbm3").times_ps(machine.config.cube.hbm.channel_bw_gbs)
    alone_ns = 27 + (times["tRCDRD"] + times["CL"]) / 1000
    assert router_of(machine.graph).outstanding_reads == math.ceil(2 * alone_ns / 16)


@pytest.mark.parametrize("command_ns", [0, 1, 3.5])
def test_the_file_says_how_long_a_command_takes(command_ns):
    slow = run(loads(3), {"cube.pe.pe_cpu.command_ns": command_ns})
    assert starts(rows(slow, "load")) == [command_ns, 2 * command_ns, 3 * command_ns]


def test_issuing_does_not_wait_for_completion():
    # 57.60 ns each, all under way together: the last one starts 6 ns after the first.
    found = rows(run(loads(4, pe=7)), "load")
    assert starts(found) == [2, 4, 6, 8]
    assert found[0][1] == 2 + 57.6


def test_four_reads_are_outstanding_and_the_fifth_waits():
    four, five = rows(run(loads(4, 256, 7, 256)), "load"), rows(run(loads(5, 256, 7, 256)), "load")
    assert five[:4] == four
    # All on different channels, so the first comes back after 42.60, and makes room for the fifth.
    assert four[0] == (2, 44.6)
    assert five[4] == (44.6, 44.6 + 42.6)


def test_the_file_says_how_many_are_outstanding():
    def fifth(outstanding: int) -> float:
        return rows(run(loads(5, 256, 7, 256), {"cube.pe.pe_dma.outstanding_reads": outstanding}), "load")[4][0]

    assert fifth(5) == 10
    assert fifth(4) == 44.6
    assert fifth(3) > 44.6


def test_reads_and_writes_have_channels_of_their_own():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=128)
        tl.wait(a)
        kept = [tl.load(pointer(4 * KIB * (i + 1), 7), shape=128) for i in range(4)]
        tl.store(pointer(64 * KIB, 7), a)
        kept.append(tl.load(pointer(32 * KIB, 7), shape=128))

    engine = run(kernel)
    [(store, _)], found = rows(engine, "store"), rows(engine, "load")
    # The program goes on at 14; loads at 16, 18, 20, 22, the store at 24: it waits for no read, the fifth load does.
    assert starts(found)[1:5] == [16, 18, 20, 22]
    assert store == 24
    assert starts(found)[5] == found[1][1]


def test_four_writes_are_outstanding():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=128)
        tl.wait(a)
        for i in range(5):
            tl.store(pointer(64 * KIB + 256 * i, 7), a)

    found = rows(run(kernel), "store")
    assert starts(found)[:4] == [16, 18, 20, 22]
    assert starts(found)[4] == found[0][1]


def test_a_store_starts_when_its_value_is_complete():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=128)
        tl.store(pointer(64 * KIB), a)

    engine = run(kernel)
    assert rows(engine, "load") == [(2, 14)]
    assert starts(rows(engine, "store")) == [14]


def test_a_load_waits_for_a_store_to_the_same_bytes_and_no_other():
    def kernel(to: int):
        def body(tl) -> None:
            a = tl.load(pointer(), shape=128)
            tl.store(pointer(64 * KIB), a)
            again = tl.load(pointer(to), shape=128)
            tl.wait(again)

        return body

    same, beside = run(kernel(64 * KIB)), run(kernel(64 * KIB + 256))
    assert starts(rows(same, "load"))[1] == rows(same, "store")[0][1]
    assert starts(rows(beside, "load"))[1] == 6


@pytest.mark.parametrize(
    ("dtype", "elements", "ns"), [("f16", 256, 1), ("f16", 257, 2), ("f32", 128, 1), ("f32", 129, 2)]
)
def test_the_vector_engine_takes_a_cycle_a_row_of_lanes(dtype, elements, ns):
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=elements, dtype=dtype)
        tl.wait(a + a)

    [(start, end)] = rows(run(kernel), "math")
    assert end - start == ns


def test_slow_operations_and_reductions():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=1024, dtype="f32")
        tl.wait(a)
        kept = tl.exp(a), tl.sum(a), a * 2.0
        assert kept

    times = [round(end - start, 3) for start, end in rows(run(kernel), "math")]
    # 8 rows of 128 lanes: 4 cycles each; 8 and a tree of 7 levels; 8.
    assert times == [32, 15, 8]


def test_vector_operations_follow_one_another():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=1024, dtype="f32")
        tl.wait(a)
        kept = a + a, a * a, a - a
        assert kept

    found = rows(run(kernel), "math")
    # 8 ns each and 2 ns to issue one: from the second on they queue.
    assert [b[0] - a[1] for a, b in itertools.pairwise(found)] == [0, 0]


def test_any_number_of_operations_may_wait_for_one_another():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=1024)
        for _ in range(1000):
            a = a + a

    times = rows(run(kernel, {"cube.pe.pe_cpu.command_ns": 0.01}), "math")
    assert len(times) == 1000
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(times))


def test_one_tile_by_hand():
    engine = run(gemm(32, 64, 32, "ref_ref"), log="tile")
    # Issued at 2, planned at 3. Two reads of 4 KiB from one slice: 27 ns, and 16 more behind each other.
    assert rows(engine, "dma_in") == [(3, 30), (3, 46)]
    # 8 KiB through 512 GB/s, 65,536 MAC at 4096 a cycle, 2 KiB through 512.
    assert rows(engine, "fetch") == [(46, 62)]
    assert rows(engine, "gemm") == [(62, 78)]
    assert rows(engine, "store_tcm") == [(78, 82)]
    # 2 KiB are 8 flits: the last arrives after 3 + 7, its burst takes 8, the acknowledgement 1.126.
    assert rows(engine, "dma_out") == [(82, pytest.approx(82 + 10 + 8 + 1.126))]
    assert rows(engine, "composite") == [(3, pytest.approx(101.126))]


@pytest.mark.parametrize(("shape", "times"), [((1, 1, 1), 1), ((32, 64, 33), 2), ((33, 65, 33), 8)])
def test_a_ragged_tile_costs_the_matrix_engine_a_full_one(shape, times):
    found = rows(run(gemm(*shape, "load_load"), log="tile"), "gemm")
    assert [end - start for start, end in found] == [16] * times


@pytest.mark.parametrize(("dtype", "ns"), [("f16", 16), ("bf16", 16), ("f8e4m3fn", 16), ("i8", 16), ("f32", 64)])
def test_the_rate_of_each_type(dtype, ns):
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=(32, 64), dtype=dtype)
        b = tl.load(pointer(32 * KIB), shape=(64, 32), dtype=dtype)
        tl.wait(tl.dot(a, b))

    [(start, end)] = rows(run(kernel, log="tile"), "gemm")
    assert end - start == ns


def test_double_buffering_hides_the_transfer():
    # One operand streamed: 16 ns to read, to fetch and to multiply a tile. From the second on, one every 16 ns.
    engine = run(gemm(32, 64 * 40, 32, "load_ref"), log="tile")
    found = rows(engine, "gemm")
    steady = [b[0] - a[0] for a, b in itertools.pairwise(found)]
    assert set(steady) == {16}


def test_one_buffer_does_not():
    # With a single buffer the next read begins when the fetch is through: 27 + 16 a tile.
    engine = run(gemm(32, 64 * 10, 32, "load_ref"), {"cube.pe.pe_tcm.buffers_per_operand": 1}, log="tile")
    found = rows(engine, "gemm")
    assert {b[0] - a[0] for a, b in itertools.pairwise(found)} == {27 + 16}


def test_two_streamed_operands_are_limited_by_their_transfer():
    engine = run(gemm(32, 64 * 40, 32, "ref_ref"), log="tile")
    found = rows(engine, "gemm")
    assert (found[-1][0] - found[8][0]) / (len(found) - 9) == pytest.approx(32, rel=0.02)


def test_a_full_buffer_stalls_the_stage_before():
    # A vector engine ten times slower than the matrix engine: with 2 buffers between them, the matrix engine may
    # be 3 tiles ahead (2 in the buffers, 1 waiting to leave), and then goes at the vector engine's pace.
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=(32, 64))
        b = tl.load(pointer(1 << 20), shape=(64, 32 * 12))
        tl.wait(tl.composite("gemm", a, b, pointer(1 << 21), epilogue=["exp"]))

    slow = {"cube.pe.pe_math.clock_ghz": 0.2}
    engine = run(kernel, slow, log="tile")
    matrix, vector = rows(engine, "gemm"), rows(engine, "math")
    assert {end - start for start, end in vector} == {160}
    # Vector work on tile i frees a buffer, into which tile i + 2 goes, and only then may tile i + 3 begin.
    assert [matrix[i + 3][0] for i in range(2, 8)] == [vector[i][0] for i in range(2, 8)]
    one = rows(run(kernel, {**slow, "cube.pe.pe_tcm.stage_buffers": 1}, log="tile"), "gemm")
    assert one[4][0] > matrix[4][0], "fewer buffers, earlier stall"


def test_a_slow_way_out_stalls_all_stages():
    quick, slow = (
        rows(run(gemm(32 * 8, 64, 32, "load_load"), {"cube.hbm.channel_bw_gbs": bw}, log="tile"), "gemm")[-1][0]
        for bw in (32, 2)
    )
    assert slow > quick


def test_composites_of_a_program_overlap():
    def kernel(tl) -> None:
        a, b, out = (pointer(place << 24) for place in range(3))
        for made in [
            tl.composite("gemm", tl.ref(a, (32, 512)), tl.ref(b, (512, 32)), out + i * 1024) for i in range(3)
        ]:
            tl.wait(made)

    (_, first), (begin, second), (_, third) = rows(run(kernel, log="tile"), "composite")
    assert begin < first
    # The slice is never idle: 16 tiles of 4 KiB and an output of 2 KiB at 256 GB/s.
    assert second - first == 16 * 16 + 8
    assert third - second < 16 * 16 + 8  # the last output is written alone


def test_a_composite_of_the_second_program_queues_behind_the_first():
    engine = engine_of(log="tile")
    first, second = (launch(engine, gemm(32, 64, 32, "ref_ref")) for _ in range(2))
    assert second.start_ps >= first.end_ps


def test_remote_operands_cost_their_distance():
    # Two slices at work: neither waits for the other.
    engine = run(gemm(32, 64, 32, "ref_ref", a_pe=7), log="tile")
    assert rows(engine, "dma_in") == [(3, 30), (3, 60.6)]


def test_strided_reads_every_line_a_tile_touches():
    def first(gather: str, k: int) -> float:
        engine = run(gemm(32, k, 32, "ref_load"), {"cube.hbm.gather": gather}, log="tile")
        start, end = rows(engine, "dma_in")[0]
        return end - start

    # Rows of 64 f16 are 128 B: a matrix 64 wide is as good as packed, in one of 2048 each row has its own line, and
    # the rows of a tile all lie on one channel: 32 rounds of 8.
    assert first("packed", 64) == first("strided", 64) == 27
    assert first("packed", 2048) == 27
    assert first("strided", 2048) == 1 + 32 * 8 + 3


@pytest.mark.parametrize(
    ("at", "nbytes", "waits"), [(-256, 256, False), (-255, 256, True), (255, 1, True), (256, 1, False)]
)
def test_commands_keep_their_order_from_the_first_byte_they_share(at, nbytes, waits):
    # A store to bytes 64 KiB to 64 KiB + 256, then a load that ends or begins at one of these borders.
    def kernel(tl) -> None:
        a = tl.load(pointer(dtype=int8), shape=256)
        tl.store(pointer(64 * KIB, dtype=int8), a)
        tl.wait(tl.load(pointer(64 * KIB + at, dtype=int8), shape=nbytes))

    engine = run(kernel)
    expected = rows(engine, "store")[0][1] if waits else 6
    assert starts(rows(engine, "load"))[1] == expected


def test_two_loads_of_the_same_bytes_do_not_wait_for_each_other():
    assert starts(rows(run(loads(3, gap=0)), "load")) == [2, 4, 6]


@pytest.mark.parametrize(("elements", "slow", "tree"), [(128, 4, 8), (129, 8, 9), (256, 8, 9), (257, 12, 10)])
def test_a_started_row_of_lanes_costs_a_whole_one(elements, slow, tree):
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=elements, dtype="f32")
        tl.wait(a)
        kept = tl.exp(a), tl.sum(a)
        assert kept

    assert [round(end - start, 3) for start, end in rows(run(kernel), "math")] == [slow, tree]


@pytest.mark.parametrize("buffers", [1, 2, 3, 5])
def test_a_streamed_operand_has_its_number_of_buffers(buffers):
    # The fetch is the bottleneck: a read is issued when the fetch that frees its buffer ends, and none earlier.
    slow = {
        "cube.pe.pe_tcm.buffers_per_operand": buffers,
        "cube.pe.pe_dma.outstanding_reads": 8,
        "cube.pe.pe_tcm.read_bw_gbs": 64,
    }
    engine = run(gemm(32, 64 * 12, 32, "load_ref"), slow, log="tile")
    reads, fetches = rows(engine, "dma_in"), rows(engine, "fetch")
    assert [start for start, _ in reads[buffers:]] == [end for _, end in fetches[: len(reads) - buffers]]
    assert all(start < fetches[0][1] for start, _ in reads[:buffers])


@pytest.mark.parametrize(
    ("offsets", "ns"), [((0, 127), 12), ((0, 128), 12), ((0, 1024), 20), ((127, 1024), 20), ((0, 1023), 12)]
)
def test_a_line_of_a_pointer_tile_is_served_once(offsets, ns):
    # Elements of 2 B: 128 are a line, 1024 are one line on each channel. Lines 0 and 8 share a channel, 0 and 7 do not.
    def kernel(tl) -> None:
        tl.wait(tl.load(pointer() + tl.arange(0, 2) * (offsets[1] - offsets[0]) + offsets[0]))

    [(start, end)] = rows(run(kernel), "load")
    # Four bytes cross two links, in 16 ps each, instead of 256 in 1 ns.
    assert round(end - start, 3) == ns - 2 + 2 * 0.016


def test_a_masked_element_touches_no_line():
    def kernel(tl) -> None:
        i = tl.arange(0, 2)
        tl.wait(tl.load(pointer() + i * 1024, mask=i < 1))

    [(start, end)] = rows(run(kernel), "load")
    assert round(end - start, 3) == 10 + 2 * 0.008


@pytest.mark.parametrize("data", [False, True])
def test_without_data_a_command_keeps_nothing_that_computes_values(data):
    kept = []

    def kernel(tl) -> None:
        a, b = (tl.load(pointer(at), shape=(32, 32)) for at in (0, 1 << 20))
        kept.append(tl.composite("gemm", a, b, pointer(1 << 21)).command)
        assert (kept[0].compute is not None) == data

    run(kernel, data=data)
    assert kept
