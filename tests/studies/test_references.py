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
    assert f"b.txt: line 1: 'hello' is not the format of a supported tool; expected {TOOLS}" in " ".join(found)


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
