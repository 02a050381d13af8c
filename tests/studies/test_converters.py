"""Scripts that write logs of other tools as CSV, for `kb.fidelity`."""

from __future__ import annotations

import csv
import runpy
import sys

import pytest

from kernbench.studies import fidelity
from kernbench.studies._references import read_references
from tests.repo import ROOT

DATA = ROOT / "milestones" / "fidelity" / "data"
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


@pytest.fixture
def convert(tmp_path, monkeypatch, capsys):
    """Run a script on files of given texts; return the references that it writes, and what it says."""

    def run(tool, **files):
        paths = []
        for name, text in files.items():
            paths.append(tmp_path / name.replace("__", "."))
            paths[-1].write_text(text)
        monkeypatch.setattr(sys, "argv", ["convert.py", *map(str, paths)])
        said = ""
        try:
            runpy.run_path(str(DATA / tool / "convert.py"), run_name="__main__")
        except SystemExit as error:
            said = error.code if isinstance(error.code, str) else ""
        out, err = capsys.readouterr()
        (tmp_path / "written.csv").write_text(out)
        rows = read_references([tmp_path / "written.csv"]) if out.count("\n") > 1 else []
        assert not [fault for row in rows for fault in fidelity._wrong(row)]
        return rows, said + err

    return run


def compared(rows):
    return [(x.workload, x.parameters, x.value, x.unit) for x in rows]


@pytest.mark.parametrize("name", ["NCF", "test_mnk", "transformer_partial"])
def test_runs_of_scale_sim_give_the_committed_rows(convert, name):
    """A report, topology and configuration of each run, as SCALE-Sim writes and reads them, give its rows."""
    runs = {}
    for row in read_references([DATA / "scalesim" / f"{name}.csv"]):
        runs.setdefault(row.source, []).append(row)
    assert len(runs) > 2 or name == "transformer_partial"
    for rows in runs.values():
        array, dataflows = rows[0].parameters, {"output": "os", "weight": "ws", "input": "is"}
        report, topology = "LayerID, Total Cycles, Stall Cycles,\n", "Layer,M,N,K,\n"
        for i, row in enumerate(rows):
            report += f"{i}, {row.value + 7 * i}, {7 * i},\n"
            topology += (
                f"{row.workload.partition(' ')[2]},{row.parameters['m']},{row.parameters['n']},{row.parameters['k']},\n"
            )
        config = (
            f"[architecture_presets]\nArrayHeight: {array['rows']}\nArrayWidth: {array['cols']}\n"
            f"Dataflow: {dataflows[array['dataflow'].partition('_')[0]]}\n"
        )
        found, said = convert("scalesim", **{"report.csv": report, f"{name}.csv": topology, "run.cfg": config})
        assert not said
        assert compared(found) == compared(rows)


def test_scale_sim_layers_take_their_sizes_from_the_topology(convert):
    [found], _ = convert(
        "scalesim", COMPUTE_REPORT__csv=REPORT, layers__csv="Layer,M,N,K,\na,16,17,18,\n", run__cfg=CFG
    )
    assert (found.workload, found.value, found.unit) == ("layers a", 100.0, "cycles")
    assert found.parameters == {"m": 16, "n": 17, "k": 18, "rows": 8, "cols": 4, "dataflow": "weight_stationary"}


def test_a_layer_that_a_network_repeats_is_one_row(convert):
    rows = REPORT.splitlines()
    report = "\n".join([*rows, rows[-1].replace("0,", "1,", 1)])
    topology = "Layer,M,N,K,\na,16,17,18,\na,16,17,18,\n"
    found, _ = convert("scalesim", COMPUTE_REPORT__csv=report, layers__csv=topology, run__cfg=CFG)
    assert len(found) == 1


def test_reports_of_scale_sim_3_also_count_cycles_with_prefetch(convert):
    report = "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles,\n0, 1252, 1234567, 0,\n"
    topology = "Layer, M, N, K, Sparsity,\nA, 40, 20, 50, 1:1,\n"
    config = f"{CFG}\n[sparsity]\nBlockSize: 8\n"
    [found], _ = convert("scalesim", COMPUTE_REPORT__csv=report, gemm__csv=topology, run__cfg=config)
    assert (found.value, found.parameters["m"], found.parameters["k"]) == (1234567.0, 40, 50)


def test_a_convolution_is_the_product_that_scale_sim_makes_of_it(convert):
    [found], _ = convert("scalesim", COMPUTE_REPORT__csv=REPORT, layers__csv=CONV, run__cfg=CFG)
    assert (found.parameters["m"], found.parameters["k"], found.parameters["n"]) == (4 * 5, 3 * 2 * 5, 7)


@pytest.mark.parametrize(
    ("report", "topology", "config", "expected"),
    [
        (REPORT, "Layer,M,N,K,\na,1,2,3,\nb,1,2,3,\n", CFG, "r.csv: has 1 layers, "),
        (REPORT, "Layer,M,N,K,\na,1,two,3,\n", CFG, "t.csv: line 2: a, 1, two, 3,  does not fit the header"),
        (REPORT, "Layer,M,N,K,\na,1,2,3,\n", CFG.replace(": ws", ": xs"), "Dataflow = xs is unknown; use"),
        (REPORT, "Layer,M,N,K,\na,1,2,3,\n", CFG.replace("ArrayW", "W"), "run.cfg: 'ArrayWidth' is missing"),
        (REPORT.replace("110", "many"), "Layer,M,N,K,\na,1,2,3,\n", CFG, "r.csv: line 2: Total Cycles and"),
    ],
)  # fmt: skip
def test_a_wrong_run_of_scale_sim_says_what_to_pass(convert, report, topology, config, expected):
    found, said = convert("scalesim", r__csv=report, t__csv=topology, run__cfg=config)
    assert not found
    assert expected in said


def test_logs_of_booksim_give_the_committed_rows(convert):
    """A log of the committed configurations with a committed latency gives that row."""
    path = DATA / "booksim2" / "results.csv"
    with path.open() as file:
        texts = {row["parameters"]: row["value"] for row in csv.DictReader(file)}
    done = 0
    for (text, value), row in zip(texts.items(), read_references([path]), strict=True):
        given = row.parameters
        if row.workload != "noc" or given["traffic"] == "hotspot":
            continue
        config = (DATA / "booksim2" / f"{given['topology']}.cfg").read_text()
        config = config.replace("traffic = uniform", f"traffic = {given['traffic']}")
        config = config.replace("packet_size = 1;", f"packet_size = {given['packet']};")
        log = (
            f"BEGIN Configuration File: mine.cfg\n{config}\nEND Configuration File: mine.cfg\n"
            f"====== Overall Traffic Statistics ======\nPacket latency average = {value} (1 samples)\n"
            f"Injected flit rate average = {given['load']} (1 samples)\n"
            f"Injected packet size average = {given['packet']} (1 samples)\n"
        )
        [found], said = convert("booksim2", log__txt=log)
        assert not said
        assert compared([found]) == compared([row]), text
        done += 1
    assert done > 20


def test_a_booksim_log_gives_the_overall_latency_and_the_measured_load(convert):
    [found], _ = convert("booksim2", log__txt=BOOKSIM)
    assert (found.workload, found.value, found.unit) == ("noc", 62.5, "cycles")
    assert found.parameters == {
        "topology": "mesh", "k": 8, "n": 2, "traffic": "transpose", "packet": 8, "vcs": 4, "vc_flits": 8, "load": 0.16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("END Configuration File", "END", "log.txt: left out: the configuration is missing"),
        ("topology = mesh", "topology = fly", "topology = fly is not simulated by kernbench; known: mesh, torus"),
        ("traffic = transpose", "traffic = bitcomp", "traffic = bitcomp is not simulated by kernbench; known: uniform"),
        (
            "traffic = transpose",
            "traffic = hotspot({{0,1},{1,7}})",
            "traffic = hotspot({{0,1},{1,7}}) is not simulated",
        ),
        ("size average = 8", "size average = 20", "packets have 20 flits, packet_size is 8; write options of"),
        ("====== Overall Traffic", "Simulation unstable,", "log.txt: left out: the run did not converge"),
    ],
)
def test_a_booksim_log_without_a_row_is_left_out_and_the_others_are_written(convert, old, new, expected):
    [found], said = convert("booksim2", log__txt=BOOKSIM.replace(old, new), other__txt=BOOKSIM)
    assert found.value == 62.5
    assert expected in said
