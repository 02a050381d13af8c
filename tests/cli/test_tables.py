"""Tables of the command line, for a person at a terminal and for a pipe."""

from __future__ import annotations

import pytest

from kernbench.cli._options import echo_table

LONG = "word " * 60 + "end"
ROWS = [["[b]a", LONG, "1,024"], ["\x1b[31mred", "b", "8"]]


def test_a_pipe_gets_each_row_as_one_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    echo_table(["name", "says", "bytes"], ROWS, left=2, indent=2)
    head, first, second = capsys.readouterr().out.splitlines()
    width = len("  \\x1b[31mred  ") + len(LONG) + len("  1,024")
    assert head.split() == ["name", "says", "bytes"]
    assert first == f"  [b]a{LONG:>{len(LONG) + 9}}  1,024"
    assert second.startswith("  \\x1b[31mred  b ")
    assert {len(head), len(first), len(second)} == {width}


def test_a_terminal_gets_long_cells_folded_and_bold_heads(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    echo_table(["name", "says", "bytes"], ROWS, left=2)
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b[1m" in lines[0]
    assert len(lines) > 5
    assert all(len(line) <= 40 for line in lines[1:])
    assert " ".join(lines).split().count("word") == 60


@pytest.mark.parametrize("heads", [["", ""], ["a", "b"]])
def test_heads_are_a_line_where_there_are_any(heads, capsys):
    echo_table(heads, [["x", 1]])
    assert len(capsys.readouterr().out.splitlines()) == 1 + any(heads)
