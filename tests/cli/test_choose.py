"""`kernbench gemm` and `kernbench ccl`: a page for a question, a table for a list, errors that name line and remedy."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kernbench.cli.main import main
from kernbench.errors import ConfigError
from kernbench.ops.matmul import PLACEMENTS
from kernbench.studies import choice, lists
from kernbench.studies.lists import read_shapes

SMALL = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]


def test_a_product_has_a_page(capsys):
    assert main(["gemm", "1", "64", "512", "--trans-b", *SMALL]) == 0
    text = capsys.readouterr().out
    for said in (
        "C[1, 64] = A B', k = 512, f16, over 8 PEs",
        "closed form [ns]",
        "rows leaves 7 of 8 PEs idle",
        "  1. ",
    ):
        assert said in text
    assert main(["gemm", "1", "64", "512", "--json", *SMALL]) == 0
    assert {x["placement"] for x in json.loads(capsys.readouterr().out)["candidates"]} == set(PLACEMENTS)


@pytest.mark.slow
def test_a_collective_has_a_page(capsys):
    given = ["ccl", "--sips", "2x2", "--network", "torus_2d", "--bytes", "1KiB"]
    assert main([*given, *SMALL]) == 0
    text = capsys.readouterr().out
    for said in ("all_reduce of 1,024 B over 4 SIPs, torus_2d 2x2: ", "change first: ", "the 8 PEs of a cube", "  1. "):
        assert said in text
    assert main([*given, "--no-changes", "--json", *SMALL]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []


def test_a_list_of_products_is_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.csv").write_text(
        "name,m,n,k,trans_b\n# decode\na,1,64,512,1\nb,64,64,64,\nsame as a,1,64,512,1\n"
    )
    assert main(["gemm", "--csv", "shapes.csv", "--workers", "1", *SMALL]) == 0
    assert " is fastest for " in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "shapes" / "products.csv")
    assert list(table["name"]) == ["a", "b", "same as a"]
    assert table["simulated_ns"][0] == table["simulated_ns"][2] > 0
    monkeypatch.setattr(choice, "run", None)  # all rows are found
    before = (tmp_path / "shapes" / "products.csv").read_bytes()
    assert main(["gemm", "--csv", "shapes.csv", "--workers", "1", "--json", *SMALL]) == 0
    assert (tmp_path / "shapes" / "products.csv").read_bytes() == before


@pytest.mark.slow
def test_a_list_of_collectives_has_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.csv").write_text("name,bytes,sips,network\nsmall,64,2,ring_1d\nlarge,16KiB,2x2,torus_2d\n")
    assert main(["ccl", "--csv", "cases.csv", "--workers", "1", *SMALL]) == 0
    table = pd.read_csv(tmp_path / "cases" / "collectives.csv")
    assert list(table["system"]) == ["2 SIPs, ring_1d", "4 SIPs, torus_2d 2x2"]
    assert (table["simulated_ns"] > table["bound_ns"]).all()


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("gemm", "name,m,n\na,1,2\n", ["column 'k' is missing; the first line must name m, n, k"]),
        ("gemm", "model,m,n,k,transa\na,1,2,3,0\n", ["column 'transa' is unknown; did you mean trans_a?"]),
        ("gemm", "name,m,n,k,trans_c\na,1,2,3,0\n", ["column 'trans_c' is unknown; did you mean trans_"]),
        ("gemm", "name,m,n,k\na,1,2,zero\nb,1,0,1\nc,1\n", [
            "line 2: k = 'zero' must be a whole number >= 1", "line 3: n = '0' must be", "line 4: has 2 values, but 4",
        ]),
        ("gemm", "name,m,n,k\n", ["has no line after its first"]),
        ("gemm", 'name,m,n,k\na,1,2,3\n"b,1,2,3\nc,1,2,3\n', ["list.csv: line 3: ", "quotes closed"]),
        ("ccl", "name,bytes\na,some\n", ["line 2: bytes = 'some' must be a number of bytes"]),
        ("ccl", "name,bytes,topology\na,64,torus_2d\n", ["column 'topology' is unknown"]),
        ("ccl", "name,bytes,sips,network\na,64,4,moebius\nb,63,2by2,ring_1d\n", [
            "line 2: network = 'moebius' is unknown", "line 3: bytes = '63' must be a multiple",
            "line 3: sips = '2by2' must be a number of SIPs",
        ]),
        ("ccl", "name,bytes,sips\na,64,1\nb,64,0\n", ["a: sips = 1 must be >= 2", "b: ", "system.sips.count"]),
    ],
)  # fmt: skip
def test_every_fault_of_a_list_is_named_before_anything_is_written(tmp_path, monkeypatch, capsys, command, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text(text)
    assert main([command, "--csv", "list.csv"]) == 2
    error = capsys.readouterr().err
    for fault in said:
        assert fault in error
    assert not (tmp_path / "list").exists()


def test_a_list_goes_to_the_folder_that_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes").write_text("name,m,n,k\na,64,64,64\n")
    assert main(["gemm", "--csv", "shapes", "--workers", "1", *SMALL]) == 2
    assert "shapes is a file: give --out FOLDER" in capsys.readouterr().err
    assert main(["gemm", "--csv", "shapes", "--out", "v1.2", "--workers", "1", *SMALL]) == 0
    assert (tmp_path / "v1.2" / "products.csv").is_file()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("model,gemm,tp,m,n,k\nllama,qkv,8,64,32,16\n", "llama qkv 8"),
        ("m,n,k,trans_a\n64,32,16,0\n", "64 x 32 x 16"),
        ("gemm,name,m,n,k\nqkv,first,64,32,16\n", None),
    ],
)
def test_a_list_without_names_is_named_by_its_other_columns(tmp_path, text, named):
    (path := tmp_path / "list.csv").write_text(text)
    if named is None:
        with pytest.raises(ConfigError, match="column 'gemm' is unknown"):
            read_shapes(path)
    else:
        (shape,) = read_shapes(path)
        assert (shape["name"], shape["m"], shape["n"], shape["k"]) == (named, 64, 32, 16)


def test_the_question_is_one_of_two(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").touch()
    for wrong in (["gemm"], ["gemm", "1", "2"], ["gemm", "1", "2", "3", "--csv", "x.csv"], ["ccl"]):
        assert main(wrong) == 2
        assert "give " in capsys.readouterr().err


def test_estimates_are_printed_before_times_and_times_before_the_rest(capsys):
    assert main(["ccl", "--sips", "2", "--bytes", "256", "--workers", "1", *SMALL]) == 0
    text = capsys.readouterr().out
    order = [
        "all_reduce of 256 B over 2 SIPs, ring_1d (machine ", "Algorithms by the alpha-beta model (estimates",
        "Simulated: all_reduce of 256 B", "256 B of a SIP on other PEs",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    order += ["on the critical path of", "Change of time"]
    assert all(text.index(part) > places[2] for part in order[4:])
    assert all(text.count(part) == 1 for part in order)


@pytest.mark.parametrize("asked", [["gemm", "64", "64", "512"], ["ccl", "--sips", "2", "--bytes", "256"]])
def test_an_interrupt_keeps_what_is_known(asked, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(choice, "_simulated", interrupted)
    assert main([*asked, "--workers", "1", *SMALL]) == 1
    text, error = capsys.readouterr()
    assert "estimates, not simulated" in text
    assert "Simulated" not in text
    assert "interrupted; not known: simulated times" in error


def test_the_limit_ends_with_what_is_known(capsys):
    assert main(["gemm", "64", "64", "512", "--limit", "1e-6", *SMALL]) == 0
    text, error = capsys.readouterr()
    assert "estimates, not simulated" in text
    assert "stopped after --limit 1e-06; not known: simulated times" in error
    assert main(["ccl", "--sips", "2", "--bytes", "256", "--limit", "1e-6", "--json", *SMALL]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated_ns"] is None
    assert found["missing"] == [
        "simulated times", "the critical path", "the same bytes on other PEs", "changes of the machine",
    ]  # fmt: skip
    assert main(["gemm", "64", "64", "512", "--limit", "0", *SMALL]) == 2


def test_rows_of_a_list_are_written_as_they_end_the_smallest_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.csv").write_text("name,m,n,k\nlarge,64,64,512\nsmall,8,64,64\n")
    real, asked = lists.gemm, []

    def second_is_interrupted(m, n, k, **options):
        asked.append(m)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return real(m, n, k, **options)

    monkeypatch.setattr(lists, "gemm", second_is_interrupted)
    command = ["gemm", "--csv", "shapes.csv", "--workers", "1", *SMALL]
    assert main(command) == 1
    assert "the same command continues from there" in capsys.readouterr().err
    assert asked == [8, 64]
    assert list(pd.read_csv("shapes/products.csv")["name"]) == ["small"]
    assert main(command) == 0
    assert asked == [8, 64, 64]
    assert list(pd.read_csv("shapes/products.csv")["name"]) == ["large", "small"]


def test_a_list_ends_at_its_limit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.csv").write_text("name,m,n,k\na,8,64,64\nb,16,64,64\n")
    assert main(["gemm", "--csv", "shapes.csv", "--limit", "1e-6", *SMALL]) == 0
    assert "2 not known; the same command continues from there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["ccl", "--bytes", "64", "--topology", "torus_2d"],
            "is a network between SIPs, not a machine; give --network",
        ),
        (["run", "--bench", "qkv-gemm", "--topology", "ring_1d"], "give --set system.sips.topology=ring_1d"),
    ],
)
def test_a_network_is_no_machine(command, said, capsys):
    assert main(command) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_one_sip_has_no_collective(capsys):
    assert main(["ccl", "--sips", "1", "--bytes", "64", *SMALL]) == 2
    text, error = capsys.readouterr()
    assert not text
    assert "sips = 1 must be >= 2: a collective between SIPs needs two" in error


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.csv").write_text("name,m,n,k\na,8,64,64\n")
    (tmp_path / "file").write_text("")
    assert main(["gemm", "--csv", "shapes.csv", "--out", "file/new", "--workers", "1", *SMALL]) == 2
    assert "file/new cannot be written (" in capsys.readouterr().err
    assert main(["gemm", "--csv", "none.csv"]) == 2
    assert "'none.csv' does not exist" in capsys.readouterr().err
