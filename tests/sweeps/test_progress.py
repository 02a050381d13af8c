"""What a sweep says while it runs."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.sweeps._runner import FIRST, Progress, ProgressCounter, left_s
from tests.sweeps import studies


def test_every_point_is_told_and_the_time_left_once_the_first_have_shown_it(tmp_path):
    said = []
    options = {"workers": 1, "cache": False, "folder": tmp_path}
    kb.sweep("preset:small", studies.hurts, {"x": [1, 2, 3]}, progress=said.append, **options)
    kb.sweep("preset:small", studies.hurts, {"x": list(range(10))}, progress=said.append, **options)
    assert [p.done for p in said] == [1, 2, 3, *range(1, 11)]
    last = said[-1]
    assert (last.total, last.found, last.failed) == (10, 3, 1)
    assert [p.left_s is not None for p in said[3:]] == [p.done - p.found >= FIRST for p in said[3:]]
    assert str(last) == "10 of 10 points, 3 found finished, 1 failed"


def test_the_time_left_follows_from_work_not_from_the_number_of_points():
    assert left_s(10.0, FIRST - 1, 50.0, 25.0) is None
    assert left_s(10.0, FIRST, 50.0, 25.0) == 5.0
    work = {**dict.fromkeys("abcde", 100.0), **dict.fromkeys("fghi", 1.0), "found": 1000.0}
    watch = ProgressCounter(work, False)
    watch.point("found", ok=True, found=True)
    for key in "abcde":
        watch.point(key, ok=True, found=False)
    now = watch.now()
    assert now.left_s == pytest.approx(now.elapsed_s * 4 / 500)


def test_the_time_left_reads_well():
    assert str(Progress(5, 20, 0, 0, 10.0, 30.0)) == "5 of 20 points, about 30 s left"
    assert str(Progress(5, 20, 0, 0, 10.0, 600.0)) == "5 of 20 points, about 10 min left"


def test_a_bar_stands_in_the_terminal_and_goes_away(capsys):
    watch = ProgressCounter(dict.fromkeys("abc", 1.0), True)
    watch.point("a", ok=True, found=False)
    watch.point("b", ok=False, found=False)
    watch.close()
    err = capsys.readouterr().err
    assert "2/3" in err
    assert "1 failed" in err
