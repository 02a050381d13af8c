"""Files of other tools: what is read from them, and one clear error for each thing that is wrong."""

from __future__ import annotations

import re

import pytest

from kernbench.errors import ConfigError
from kernbench.studies._references import TOOLS, read_references

HEADER = "workload,parameters,value,unit,source\n"

NCCL = """\
NCCL version 2.18.1+cuda12.1
# nThread 1 nGpus 4 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  10 on  host device  0 [0x07] GPU
#  Rank  1 Group  0 Pid  10 on  host device  1 [0x0a] GPU
#  Rank  2 Group  0 Pid  10 on  host device  2 [0x45] GPU
#  Rank  3 Group  0 Pid  10 on  host device  3 [0x4b] GPU
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     1.10    0.00    0.00      0     1.00    0.00    0.00      0
        1024           256     float     sum      -1    12.50    0.08    0.12      0    12.40    0.08    0.12      0
        2048           512     half      sum      -1    13.00    0.16    0.24      0    12.90    0.16    0.24      0
        4096          1024     float     max      -1    14.00    0.29    0.44      0    13.90    0.29    0.44      0
        8192          1024    double     sum      -1    15.00    0.29    0.44      0    13.90    0.29    0.44      0
# Out of bounds values : 0 OK
"""

REPORT = (
    "LayerID, Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,\n0, 110, 10, 1, 1, 1,\n"
)
CFG = "[general]\nrun_name = one\n[architecture_presets]\nArrayHeight: 8\nArrayWidth:   4\nDataflow : ws\n"
CONV = (
    "Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter, Strides,\n"
    "Conv1, 8, 9, 3, 2, 5, 7, 2,\n"
)

BOOKSIM = """\
BEGIN Configuration File: mine.cfg
// an 8 x 8 mesh
topology = mesh; k = 8; n = 2;
num_vcs = 4;
vc_buf_size = 8;
traffic = transpose;
packet_size = 8;
injection_rate = 0.02;
END Configuration File: mine.cfg
Class 0:
Packet latency average = 70.5
====== Overall Traffic Statistics ======
====== Traffic class 0 ======
Packet latency average = 62.5 (1 samples)
Injected flit rate average = 0.16 (1 samples)
Injected packet size average = 8 (1 samples)
"""

RAMULATOR = """\
frontend:
  impl: LoadStoreTrace
memory_system:
  controller:
    avg_read_latency: 45.5
    cycles: 81302
    num_read_reqs: 6
    num_write_reqs: 2
    total_throughput_MBps: 5670.0
"""


def write(tmp_path, files):
    paths = []
    for name, text in files.items():
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        paths.append(path)
    return paths


def read(tmp_path, **files):
    return read_references(write(tmp_path, {name.replace("__", "."): text for name, text in files.items()}))


def faults(tmp_path, files):
    with pytest.raises(ConfigError) as error:
        read_references(write(tmp_path, files))
    return error.value.faults


def test_a_csv_is_read_in_any_order_of_columns_with_comments_and_units(tmp_path):
    text = "# mine\nunit,value,source,workload,parameters\n\nus,1.5,a device,gemm,m=1; k=2; n=3; cube.hbm.channels=4\n"
    [found] = read(tmp_path, mine__csv="\ufeff" + text.replace("\n", "\r\n"))
    assert (found.workload, found.value, found.unit, found.source) == ("gemm", 1500.0, "ns", "a device")
    assert found.parameters == {"m": 1, "k": 2, "n": 3, "cube.hbm.channels": 4}
    assert found.where.endswith("mine.csv:4")


def test_pairs_may_be_separated_by_spaces(tmp_path):
    [found] = read(tmp_path, mine__csv=f"{HEADER}NCF 1,m=1 k = 2 n=3,1,cycles,x\n")
    assert (found.workload, found.parameters) == ("NCF 1", {"m": 1, "k": 2, "n": 3})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("gemm,m=1,1,parsec,x", "line 2: unit = 'parsec' is unknown; "),
        ("gemm,m=1,0,ns,x", "line 2: value = '0' must be a number above 0"),
        ("gemm,m=1,nan,ns,x", "line 2: value = 'nan' must be a number above 0"),
        ("gemm,m,1,ns,x", "line 2: parameters: 'm' must be key=value; "),
        ("gemm,m=1; m=2,1,ns,x", "line 2: parameters: m is repeated; remove one of them"),
        ("gemm,cube.noc=[1,1,ns,x", "line 2: parameters: cube.noc is not valid YAML: "),
        (",m=1,1,ns,x", "line 2: workload is empty; state it"),
        ("gemm,m=1,1,ns,", "line 2: source is empty; state it"),
        ("gemm,m=1,1,ns", "line 2: has 4 cells, expected 5; "),
        ("gemm,m=1,1,ns,x\ngemm,m=1,2,ns,x", "mine.csv:3: repeats gemm of "),
    ],
)
def test_each_fault_of_a_csv_names_line_and_remedy(tmp_path, row, expected):
    [fault] = faults(tmp_path, {"mine.csv": f"{HEADER}{row}\n"})
    assert expected in fault
    assert str(tmp_path / "mine.csv") in fault


def test_all_faults_of_all_files_are_reported_at_once(tmp_path):
    found = faults(tmp_path, {"a.csv": f"{HEADER}gemm,m=1,1,parsec,x\ngemm,m=1,-1,ns,x\n", "b.txt": "hello\n"})
    assert len(found) == 3
    assert "b.txt: line 1: 'hello' is not the format of a supported tool; expected nccl-tests output" in " ".join(found)


def test_missing_and_unknown_columns_are_named(tmp_path):
    [fault] = faults(tmp_path, {"mine.csv": "workload,parameters,value,units\n"})
    assert "column unit is missing; column source is missing; column 'units' is unknown; write workload," in fault


def test_a_file_without_rows_is_an_error(tmp_path):
    assert "no result to compare" in faults(tmp_path, {"mine.csv": HEADER})[0]
    assert faults(tmp_path, {"mine.csv": "\n"})[0].endswith("mine.csv: is empty; pass " + TOOLS)


def test_headings_in_capitals_and_the_micro_sign_are_read(tmp_path):
    for sign in "\u00b5\u03bc":
        [found] = read(tmp_path, mine__csv=f"{HEADER.upper()}gemm,m=1,2,{sign}s,x\n")
        assert (found.value, found.unit) == (2000.0, "ns")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_columns_that_no_comma_separates_are_refused(tmp_path, separator):
    [fault] = faults(tmp_path, {"mine.csv": f"# mine\n{HEADER.replace(',', separator)}"})
    assert "mine.csv: line 2: columns must be separated by commas; save it as CSV" in fault


def test_a_file_that_is_no_text_is_an_error(tmp_path):
    assert "is not UTF-8 text" in faults(tmp_path, {"mine.csv": b"\xff\xfe\x00"})[0]


def test_nccl_tests_are_read_out_of_place_with_their_ranks(tmp_path):
    first, second, third, fourth = read(tmp_path, all_reduce_perf__txt=NCCL)
    assert (first.workload, first.value, first.unit) == ("all_reduce", 12_500.0, "ns")
    assert first.parameters == {"bytes": 1024, "ranks": 4, "dtype": "f32", "devices_per_thread": 4}
    assert "2.18.1" in first.source
    assert second.parameters["dtype"] == "f16"
    assert "redop max" in third.refused
    assert "double" in fourth.refused
    assert not first.refused


def test_nccl_tests_under_mpirun_and_with_the_collective_in_the_text(tmp_path):
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in ("# ./alltoall_perf -g 4", *NCCL.splitlines()))
    assert {found.workload for found in read(tmp_path, log__txt=tagged)} == {"all_to_all"}


def test_nccl_tests_without_name_or_ranks_say_what_to_add(tmp_path):
    body = "\n".join(line for line in NCCL.splitlines() if "Rank" not in line)
    found = faults(tmp_path, {"log.txt": body})
    assert re.search(r"log.txt: line \d+: no line before names the collective; add the command line", found[0])
    assert re.search(r"log.txt: line \d+: no line before lists the ranks", found[1])


def test_several_runs_in_one_output_have_their_own_collective_and_ranks(tmp_path):
    two_ranks = "".join(line + "\n" for line in NCCL.splitlines() if not re.match(r"#\s+Rank +[23] ", line))
    log = f"# Collective test starting: all_reduce_perf\n{NCCL}# Collective test starting: all_gather_perf\n{two_ranks}"
    found = read(tmp_path, slurm__out=log)
    assert {(x.workload, x.parameters["ranks"]) for x in found} == {("all_reduce", 4), ("all_gather", 2)}


def test_programs_of_nccl_tests_without_an_equivalent_say_so(tmp_path):
    assert "sendrecv is not timed here; known: all_reduce" in read(tmp_path, sendrecv_perf__txt=NCCL)[0].refused


def test_nccl_tests_before_2_12_have_an_error_column_and_may_lack_in_place_ones(tmp_path):
    old = NCCL.replace("#wrong", " error").replace("    root", "")
    old = "".join(re.sub(r" +-1 ", " ", line)[:90] + "\n" for line in old.splitlines())
    assert read(tmp_path, all_reduce__txt=old)[0].value == 12_500.0


def test_a_damaged_line_of_nccl_tests_is_named(tmp_path):
    [fault] = faults(
        tmp_path,
        {
            "all_reduce.txt": NCCL.replace("     sum      -1    12.50", "", 1).replace(
                "0.08    0.12      0    12.40    0.08    0.12      0", "", 1
            )
        },
    )
    assert "line 14: has" in fault


def test_scale_sim_layers_take_their_sizes_from_the_topology(tmp_path):
    [found] = read(tmp_path, COMPUTE_REPORT__csv=REPORT, layers__csv="Layer,M,N,K,\na,16,17,18,\n", run__cfg=CFG)
    assert (found.workload, found.value, found.unit) == ("layers a", 100.0, "cycles")
    assert found.parameters == {"m": 16, "n": 17, "k": 18, "rows": 8, "cols": 4, "dataflow": "weight_stationary"}


def test_a_network_may_repeat_a_layer(tmp_path):
    rows = REPORT.splitlines()
    report = "\n".join([*rows, rows[-1].replace("0,", "1,", 1)])
    topology = "Layer,M,N,K,\na,16,17,18,\na,16,17,18,\n"
    assert len(read(tmp_path, COMPUTE_REPORT__csv=report, layers__csv=topology, run__cfg=CFG)) == 2


def test_reports_of_scale_sim_3_also_count_cycles_with_prefetch(tmp_path):
    report = "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles,\n0, 1252, 791, 0,\n"
    topology = "Layer, M, N, K, Sparsity,\nA, 40, 20, 50, 1:1,\n"
    config = f"{CFG}\n[sparsity]\nBlockSize: 8\n"
    [found] = read(tmp_path, COMPUTE_REPORT__csv=report, gemm__csv=topology, run__cfg=config)
    assert (found.value, found.parameters["m"], found.parameters["k"]) == (791.0, 40, 50)


def test_a_convolution_is_the_product_that_scale_sim_makes_of_it(tmp_path):
    [found] = read(tmp_path, COMPUTE_REPORT__csv=REPORT, layers__csv=CONV, run__cfg=CFG)
    assert (found.parameters["m"], found.parameters["k"], found.parameters["n"]) == (4 * 5, 3 * 2 * 5, 7)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"r.csv": REPORT}, "r.csv: contains no layer sizes; pass the topology (a CSV with "),
        ({"run.cfg": CFG}, "run.cfg: is an input of SCALE-Sim; pass the COMPUTE_REPORT.csv of its run, too"),
        (
            {"r.csv": REPORT, "t.csv": "Layer,M,N,K,\na,1,2,3,\nb,1,2,3,\n", "run.cfg": CFG},
            "r.csv: has 1 layers, ",
        ),
        (
            {"r.csv": REPORT, "t.csv": "Layer,M,N,K,\na,1,two,3,\n", "run.cfg": CFG},
            "t.csv: line 2: 'a, 1, two, 3' does not fit the header",
        ),
        (
            {"r.csv": REPORT, "t.csv": "Layer,M,N,K,\na,1,2,3,\n", "run.cfg": CFG.replace(": ws", ": xs")},
            "run.cfg: Dataflow = 'xs' is unknown; use one of ws, os, is",
        ),
        (
            {"r.csv": REPORT.replace("110", "many"), "t.csv": "Layer,M,N,K,\na,1,2,3,\n", "run.cfg": CFG},
            "r.csv: line 2: Total Cycles = 'many' must be a number above 0",
        ),
    ],
)  # fmt: skip
def test_an_incomplete_run_of_scale_sim_says_what_to_pass(tmp_path, files, expected):
    assert any(expected in fault for fault in faults(tmp_path, files))


def test_a_booksim_log_gives_the_overall_latency_and_the_measured_load(tmp_path):
    [found] = read(tmp_path, log__txt=BOOKSIM)
    assert (found.workload, found.value, found.unit) == ("noc", 62.5, "cycles")
    assert found.parameters == {
        "topology": "mesh", "k": 8, "n": 2, "traffic": "transpose", "packet": 8, "vcs": 4, "vc_flits": 8, "load": 0.16,
    }  # fmt: skip


def test_a_booksim_run_above_saturation_is_not_comparable(tmp_path):
    [found] = read(tmp_path, log__txt=BOOKSIM.partition("====== Overall")[0] + "Simulation unstable, ending ...\n")
    assert "did not converge" in found.refused


@pytest.mark.parametrize(("name", "value"), [("topology", "fly"), ("traffic", "bitcomp"), ("traffic", "hotspot")])
def test_a_booksim_log_of_another_network_or_traffic_is_not_comparable(tmp_path, name, value):
    before = {"topology": "mesh", "traffic": "transpose"}[name]
    [found] = read(tmp_path, log__txt=BOOKSIM.replace(f"{name} = {before}", f"{name} = {value}"))
    assert found.refused.startswith(f"{name} '{value}' of a log is not compared; known: ")
    [compared] = read(tmp_path, log__txt=BOOKSIM)
    assert not compared.refused


def test_a_booksim_log_whose_options_are_not_in_the_file_is_refused(tmp_path):
    [fault] = faults(tmp_path, {"log.txt": BOOKSIM.replace("size average = 8", "size average = 20")})
    assert "packets have 20 flits, the file's packet_size is 8; write options of the command line into" in fault


def test_ramulator_statistics_lack_the_stream(tmp_path):
    found = read(tmp_path, stats__yaml=RAMULATOR)
    assert [(x.workload, x.value, x.unit) for x in found] == [("hbm", 5.67, "GB/s"), ("hbm", 45.5, "cycles")]
    assert all("do not contain the stream" in x.refused for x in found)
    assert found[0].where.endswith(":9")


def test_ramulator_statistics_that_are_no_yaml_name_the_line(tmp_path):
    [fault] = faults(tmp_path, {"stats.yaml": RAMULATOR.replace("cycles: 81302", "cycles: [81302")})
    assert "stats.yaml: line " in fault
    assert "is not valid YAML" in fault
