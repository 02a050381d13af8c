"""`kernbench gemm` and `kernbench ccl`: a page for a question, a table for a list, errors that name line and remedy."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from kernbench.cli.main import main
from kernbench.studies import best

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
    assert {x["placement"] for x in json.loads(capsys.readouterr().out)["candidates"]} == {
        "rows", "columns", "2-D", "split-K",
    }  # fmt: skip


def test_a_collective_has_a_page(capsys):
    given = ["ccl", "--sips", "2x2", "--topology", "torus_2d", "--bytes", "1KiB"]
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
    monkeypatch.setattr(best, "run", None)  # all points are found
    before = (tmp_path / "shapes" / "products.csv").read_bytes()
    assert main(["gemm", "--csv", "shapes.csv", "--workers", "1", "--json", *SMALL]) == 0
    assert (tmp_path / "shapes" / "products.csv").read_bytes() == before


def test_a_list_of_collectives_has_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.csv").write_text("name,bytes,sips,topology\nsmall,64,2,ring_1d\nlarge,16KiB,2x2,torus_2d\n")
    assert main(["ccl", "--csv", "cases.csv", "--workers", "1", *SMALL]) == 0
    table = pd.read_csv(tmp_path / "cases" / "collectives.csv")
    assert list(table["system"]) == ["2 SIPs, ring_1d", "4 SIPs, torus_2d 2x2"]
    assert (table["simulated_ns"] > table["bound_ns"]).all()


@pytest.mark.parametrize(
    ("command", "text", "said"),
    [
        ("gemm", "name,m,n\na,1,2\n", ["column 'k' is missing; the first line must name name, m, n, k"]),
        ("gemm", "name,m,n,k,trans_c\na,1,2,3,0\n", ["column 'trans_c' is unknown; did you mean trans_"]),
        ("gemm", "name,m,n,k\na,1,2,zero\nb,1,0,1\nc,1\n", [
            "line 2: k = 'zero' must be a whole number >= 1", "line 3: n = '0' must be", "line 4: has 2 values, but 4",
        ]),
        ("gemm", "name,m,n,k\n", ["has no line after its first"]),
        ("gemm", 'name,m,n,k\na,1,2,3\n"b,1,2,3\nc,1,2,3\n', ["list.csv: line 3: ", "quotes closed"]),
        ("ccl", "name,bytes\na,some\n", ["line 2: bytes = 'some' must be a number of bytes"]),
        ("ccl", "name,bytes,sips,topology\na,64,4,moebius\n", ["a: ", "moebius"]),
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


def test_the_question_is_one_of_two(capsys):
    for wrong in (["gemm"], ["gemm", "1", "2"], ["gemm", "1", "2", "3", "--csv", "x.csv"], ["ccl"]):
        assert main(wrong) == 2
        assert "give " in capsys.readouterr().err
