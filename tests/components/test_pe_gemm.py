"""The matrix engine: its time for a tile, at a flat rate, as a systolic array and from a table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from kernbench._dtypes import as_dtype
from kernbench.analysis._roofline import ideal_gemm, macs_per_ns, matrix_engine, matrix_ns
from kernbench.config import read_machine
from kernbench.errors import ConfigError, KernelError
from kernbench.policy._routing import router_of
from tests.components.one_pe import gemm, machine_of, rows, run

F16 = as_dtype("f16")
DATA = Path(__file__).parents[2] / "milestones" / "fidelity" / "data" / "scalesim"
TABLE = [[16, 64, 16, 0.25], [32, 64, 16, 0.5], [16, 64, 32, 0.4], [32, 64, 32, 0.8]]
ARRAY = {"model": "systolic", "systolic.rows": 32, "systolic.cols": 16, "systolic.dataflow": "weight_stationary"}


def changes(values: dict[str, Any]) -> dict[str, Any]:
    return {f"cube.pe.pe_gemm.{name}": value for name, value in values.items()}


def engine(**values: Any):
    return matrix_engine(read_machine({"base": "default"}, changes(values)).cube.pe.pe_gemm)


def cycles(mkn: tuple[int, int, int], dtype: str = "f16", **values: Any) -> float:
    return engine(**values).tile_ps(*mkn, as_dtype(dtype)) / 1000


def test_at_a_flat_rate_every_tile_takes_as_long_as_a_full_one():
    assert cycles((32, 64, 32)) == cycles((1, 1, 1)) == 16
    assert cycles((32, 64, 32), "f32") == 64


@pytest.mark.parametrize(
    ("dataflow", "expected"),
    [
        # 4 folds over m and n: k = 64 streams, skewed over 32 + 16 - 2.
        ("output_stationary", 4 * (64 + 46) - 1),
        # 4 folds over k and n: 32 cycles to load, then m = 48 streams.
        ("weight_stationary", 4 * (32 + 48 + 46) - 1),
        # 6 folds over k and m: 32 cycles to load, then n = 32 streams.
        ("input_stationary", 6 * (32 + 32 + 46) - 1),
    ],
)
def test_a_systolic_array_fills_streams_and_drains_each_fold(dataflow, expected):
    array = ARRAY | {"systolic.dataflow": dataflow}
    assert cycles((48, 64, 32), **array) == expected
    assert cycles((48, 64, 32), clock_ghz=2.0, **array) == expected / 2


def test_one_more_row_or_column_is_one_more_fold():
    fold = 32 + 32 + 46
    for mkn, folds in (((32, 32, 16), 1), ((32, 33, 16), 2), ((32, 32, 17), 2), ((32, 33, 17), 4)):
        assert cycles(mkn, **ARRAY) == folds * fold - 1, mkn


def test_the_peak_of_an_array_is_its_positions_and_types_keep_their_ratio():
    array = engine(**ARRAY)
    assert (array.peak(F16), array.peak(as_dtype("f32"))) == (32 * 16, 32 * 16 / 4)
    assert cycles((32, 32, 16), "f32", **ARRAY) == 4 * cycles((32, 32, 16), **ARRAY)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.csv")), ids=lambda path: path.stem)
def test_cycles_are_those_of_scale_sim(path):
    with path.open(newline="", encoding="utf-8") as file:
        layers = list(csv.DictReader(file))
    assert layers
    wrong = []
    for layer in layers:
        of = dict(pair.split("=") for pair in layer["parameters"].split())
        array = {"systolic.dataflow": of["dataflow"]} | {f"systolic.{key}": int(of[key]) for key in ("rows", "cols")}
        found = cycles((int(of["m"]), int(of["k"]), int(of["n"])), model="systolic", **array)
        if found != int(layer["value"]):
            wrong.append((layer["workload"], layer["parameters"], found, layer["value"]))
    assert not wrong


def test_a_table_has_the_efficiency_of_a_shape_and_is_linear_between():
    peak = 32 * 64 * 32 / 4096
    assert cycles((32, 64, 32), model="table", table=TABLE) == peak / 0.8
    assert cycles((16, 64, 32), model="table", table=TABLE) == peak / 2 / 0.4
    # Half way in m and a quarter in n: 0.5625 in all.
    mean = 0.75 * (0.25 + 0.5) / 2 + 0.25 * (0.4 + 0.8) / 2
    expected = 24 * 64 * 20 / 4096 / mean
    assert cycles((24, 64, 20), model="table", table=TABLE) == pytest.approx(expected, abs=1e-3)


def test_below_the_table_a_tile_costs_as_much_as_the_smallest_of_the_table():
    smallest = cycles((16, 64, 16), model="table", table=TABLE)
    assert cycles((1, 1, 1), model="table", table=TABLE) == cycles((15, 64, 16), model="table", table=TABLE) == smallest
    assert cycles((16, 64, 17), model="table", table=TABLE) != smallest


def test_a_table_of_efficiency_one_is_the_flat_rate():
    assert cycles((32, 64, 32), model="table", table=[[32, 64, 32, 1]]) == cycles((32, 64, 32))


def test_a_table_is_read_from_a_csv_file_next_to_the_machine_file(tmp_path):
    (tmp_path / "eff.csv").write_text("m,k,n,efficiency\n32,64,32,0.5\n")
    (tmp_path / "own.yaml").write_text("base: default\ncube: {pe: {pe_gemm: {model: table, table: eff.csv}}}\n")
    machine = read_machine(tmp_path / "own.yaml")
    assert machine.cube.pe.pe_gemm.table == ((32, 64, 32, 0.5),)
    assert (
        machine.hash
        == read_machine({"base": "default"}, changes({"model": "table", "table": [[32, 64, 32, 0.5]]})).hash
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k,efficiency\n", "line 1 must name the columns m,k,n,efficiency"),
        ("m,k,n,efficiency\n32,64,32\n", "line 2 has 3 values"),
        ("m,k,n,efficiency\n32,64,32,0.5\n32,64,x,1\n", "line 3: 32,64,x,1 is not m,k,n,efficiency"),
        ("m,k,n,efficiency\n32,64,32,1.5\n", r"table\[0\]\[3\] = 1.5 must be <= 1"),
        ("m,k,n,efficiency\n", "table is empty"),
    ],
)
def test_a_csv_file_that_is_no_table_is_refused(tmp_path, monkeypatch, text, message):
    (tmp_path / "eff.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_machine({"base": "default"}, changes({"model": "table", "table": "eff.csv"}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "table", "table": [[16, 64, 32, 0.5]]}, r"table ends at m = 16, below cube.pe.pe_gemm.tile.m = 32"),
        (
            {"model": "table", "table": TABLE, "other_tiles": [[16, 64, 33]]},
            r"ends at n = 32, below .*other_tiles = 33",
        ),
        ({"other_tiles": [[16, 64]]}, r"other_tiles\[0\] = \[16, 64\] must be \[m, k, n\]"),
        ({"other_tiles": [[512, 512, 512]]}, r"tile_buffer_mb = 4 must be >= 8.0079 \[MiB\]"),
        ({"table": TABLE[:3]}, r"table has no row for \[m, k, n\] = \[32, 64, 32\]"),
        ({"table": [*TABLE, TABLE[0]]}, r"\[m, k, n\] = \[16, 64, 16\] occurs twice; keep one"),
        ({"table": [[32, 64, 32]]}, r"table\[0\] = \[32, 64, 32\] must be \[m, k, n, efficiency\]"),
        ({"model": "systolic", "systolic.rows": 1, "systolic.cols": 1}, "1 x 1 positions"),
        ({"model": "sistolic"}, "did you mean systolic"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        read_machine({"base": "default"}, changes(values))


class Halved:
    """A user's engine: twice the time of its MACs at 1024 a cycle."""

    def __init__(self, config):
        self.tile = (config.tile.m, config.tile.k, config.tile.n)

    def tile_ps(self, m, k, n, dtype):
        return 2 * m * k * n * 1000 // 1024

    def peak(self, dtype):
        return 1024.0


ENGINES = {
    "systolic": ARRAY,
    "table": {"model": "table", "table": [[16, 32, 16, 0.25], [32, 32, 16, 0.5], [16, 64, 16, 0.3], [32, 64, 16, 0.5],
                                          [16, 32, 32, 0.4], [32, 32, 32, 0.5], [16, 64, 32, 0.5], [32, 64, 32, 0.8]]},
    "impl": {"impl": f"{__name__}:Halved"},
}  # fmt: skip


@pytest.mark.parametrize("values", ENGINES.values(), ids=ENGINES)
def test_the_simulation_takes_the_time_of_every_shape_of_tile(values):
    # 2 x 2 x 2 tiles, ragged at the ends: 8 shapes.
    m, k, n = 40, 80, 48
    machine = changes(values)
    timed = matrix_engine(read_machine({"base": "default"}, machine).cube.pe.pe_gemm)
    expected = [
        timed.tile_ps(min(32, m - i), min(64, k - j), min(32, n - h), F16) / 1000
        for i in (0, 32)
        for h in (0, 32)
        for j in (0, 64)
    ]
    assert len(set(expected)) > 2
    done = rows(run(gemm(m, k, n), machine, log="tile"), "gemm")
    assert [round(end - start, 3) for start, end in done] == expected


@pytest.mark.parametrize("values", ENGINES.values(), ids=ENGINES)
def test_roofline_and_ideal_time_ask_the_same_engine(values):
    config = read_machine({"base": "default"}, changes(values))
    timed, mkn = matrix_engine(config.cube.pe.pe_gemm), (64, 128, 64)
    tile_ns = timed.tile_ps(32, 64, 32, F16) / 1000
    assert macs_per_ns(config, "f16") == timed.peak(F16)
    assert matrix_ns(config, mkn, "f16") == pytest.approx(8 * tile_ns)
    ideal = ideal_gemm(config, mkn, streamed=())
    assert (ideal.limiter, ideal.tile_ns) == ("gemm", pytest.approx(tile_ns))
    assert ideal.utilization == pytest.approx(64 * 128 * 64 / timed.peak(F16) / ideal.time_ns)
    # Nothing but the engine limits: fetch 16 + 8 tiles + the end of the write-back.
    simulated = rows(run(gemm(*mkn, "load_load"), changes(values), log="tile"), "composite")[0]
    assert ideal.time_ns <= simulated[1] - simulated[0] <= 1.1 * ideal.time_ns


def test_a_type_without_a_rate_is_refused():
    with pytest.raises(KernelError, match=r"the matrix engine does not take torch\.int32; expected one of"):
        engine().tile_ps(32, 64, 32, as_dtype("i32"))


OTHER = changes({"other_tiles": [[64, 64, 64]]})
SECOND = changes({"tile": {"m": 64, "k": 64, "n": 64}})


@pytest.mark.parametrize(("mkn", "variant", "tile", "of"), [
    # Read at 256 GB/s, 2 A tiles of 4 KiB or 8 KiB a tile: 2,048 tiles of 32 ns, or 512 of 64 ns.
    ((512, 512, 512), "ref_ref", "64x64x64", SECOND),
    # A whole tile is computed for 8 rows: 128 tiles of 20 ns, or 64 of 64 ns.
    ((8, 512, 512), "ref_ref", "32x64x32", {}),
    # Nothing is read, and the engine takes as long with both: the first small tile is fetched sooner.
    ((64, 128, 64), "load_load", "32x64x32", {}),
])  # fmt: skip
def test_a_product_takes_the_tile_of_the_least_ideal_time(mkn, variant, tile, of):
    both = run(gemm(*mkn, variant), OTHER, log="operation")
    (found,) = {command.tag for command in both.records().commands if command.name == "gemm"}
    assert found == f"{'x'.join(map(str, mkn))}, tile {tile}"
    assert rows(both, "composite") == rows(run(gemm(*mkn, variant), of, log="operation"), "composite")
    config, alone = (machine_of(x).config for x in (OTHER, of))
    streamed = ("a", "b") if variant == "ref_ref" else ()
    assert ideal_gemm(config, mkn, streamed=streamed) == ideal_gemm(alone, mkn, streamed=streamed)


def test_a_tie_takes_the_first_tile_and_one_tile_is_not_named():
    twice = run(gemm(64, 64, 64), changes({"other_tiles": [[32, 64, 32]]}))
    assert [x.tag for x in twice.records().commands if x.name == "gemm"] == ["64x64x64, tile 32x64x32"]
    once = run(gemm(64, 64, 64))
    assert [x.tag for x in once.records().commands if x.name == "gemm"] == ["64x64x64"]
    assert rows(once, "composite") == rows(twice, "composite")


def test_a_dot_writes_nothing_to_memory_and_why_counts_the_tiles():
    def kernel(a, *, tl):
        tl.dot(tl.zeros((512, 64), dtype="f16"), tl.zeros((64, 512), dtype="f16"))

    with kb.session(machine_of(OTHER | {"cube.pe.pe_tcm.read_bw_gbs": 256})) as torch:
        torch.launch("dot", kernel, torch.empty(1, dtype=torch.float16, device="ahbm"))
    (text,) = (x for x in torch.result.why().limits() if "tile" in x)
    assert text == "products of the run by matrix tile: 1 of 64x64x64"  # fetches half of what the small ones do
    with pytest.raises(
        ConfigError, match=r"other_tiles = .*: a prediction does not know which tile a product takes then"
    ):
        torch.result.what_if({"cube.pe.pe_gemm.clock_ghz": 2.0})


def test_small_tiles_need_more_reads_under_way():
    auto = {"cube.pe.pe_dma.outstanding_reads": "auto", "cube.hbm.access_ns": 101}
    smaller = auto | changes({"other_tiles": [[16, 64, 32]]})
    assert router_of(machine_of(smaller).graph).outstanding_reads > router_of(machine_of(auto).graph).outstanding_reads
