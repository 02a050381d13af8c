"""The command line that the acceptances of kernels and of models share."""

from __future__ import annotations

import sys

import pytest

from tests.acceptance.table import table


def measure(name):
    if name == "Bad":
        raise ValueError("no\nsecond line")
    return name, "7", "ok"


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["acceptance", *arguments])
    return table("What it runs.\n\nMore.", ("numpy",), ["Good", "Better", "Bad"], ("case", "n:", "what"), measure)


def test_all_cases_run_and_one_that_fails_says_why(monkeypatch, capsys):
    assert run(monkeypatch) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("numpy ")
    assert lines[1:] == [
        "case  n  what", "Good  7  ok", "Better  7  ok", "Bad  FAILED  ValueError: no", "1 of 3 failed",
    ]  # fmt: skip


def test_parts_of_names_choose_cases_and_the_table_is_markdown(monkeypatch, capsys):
    assert run(monkeypatch, "--markdown", "gOO", "tt") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "| case | n | what |", "| --- | ---: | --- |", "| Good | 7 | ok |", "| Better | 7 | ok |", "all 2 passed",
    ]  # fmt: skip


def test_a_name_that_no_case_has_is_an_error(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "good", "worst")
    assert "no name contains 'worst'; there are Good, Better, Bad" in capsys.readouterr().err
