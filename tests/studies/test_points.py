"""Points of a study: order, what is kept, what an interrupt leaves, and that workers change nothing."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from kernbench.errors import KernbenchError
from kernbench.points._cache import FINISHED
from kernbench.points._keys import code_version
from kernbench.studies import Parameter, Study
from kernbench.studies.milestone import progress

POINTS = [{"x": x} for x in (3, 1, 2)]
ran: list[int] = []


class Square(Study):
    name, title = "square", "Squares"
    parameters: ClassVar = {"points": Parameter(POINTS, "points")}

    def points(self, machine, *, points):
        return points

    def simulate(self, machine, *, x):
        ran.append(x)
        return {"y": x**2}


class Cube(Square):
    def simulate(self, machine, *, x):
        ran.append(x)
        return {"y": x**3}


class FailsAtTwo(Square):
    def simulate(self, machine, *, x):
        if x == 2:
            raise ValueError("two is not for me")
        return super().simulate(machine, x=x)


class InterruptedAtTwo(Square):
    def simulate(self, machine, *, x):
        if x == 2 and 2 not in ran:
            ran.append(2)
            raise KeyboardInterrupt
        return super().simulate(machine, x=x)


square, cube, fails_at_two, is_interrupted_at_two = Square(), Cube(), FailsAtTwo(), InterruptedAtTwo()


def run_points(study, points, **options):
    return [{"y": row["y"]} for row in study.run("preset:small", points=points, **options)]


@pytest.fixture(autouse=True)
def _nothing_ran():
    ran.clear()


def test_rows_come_in_the_order_of_points():
    assert run_points(square, POINTS) == [{"y": 9}, {"y": 1}, {"y": 4}]


@pytest.mark.slow
def test_workers_change_nothing(tmp_path):
    assert run_points(square, POINTS, folder=tmp_path, workers=2) == run_points(square, POINTS)


def test_a_finished_point_is_not_run_again(tmp_path):
    run_points(square, POINTS[:2], folder=tmp_path)
    ran.clear()
    assert run_points(square, POINTS, folder=tmp_path) == [{"y": 9}, {"y": 1}, {"y": 4}]
    assert ran == [2]


def test_what_one_folder_has_finished_is_found_for_another(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))
    run_points(square, POINTS[:2], folder=tmp_path / "one")
    ran.clear()
    assert run_points(square, POINTS, folder=tmp_path / "two") == [{"y": 9}, {"y": 1}, {"y": 4}]
    assert ran == [2]
    assert run_points(cube, POINTS) == [{"y": 27}, {"y": 1}, {"y": 8}], "another study's rows are others"


def test_an_interrupt_keeps_what_was_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_points(is_interrupted_at_two, POINTS, folder=tmp_path)
    ran[:] = [2]
    run_points(is_interrupted_at_two, POINTS, folder=tmp_path)
    assert ran == [2, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_point_that_raises_is_said_and_the_others_are_kept(tmp_path, workers):
    with pytest.raises(RuntimeError, match="square: a point failed: ValueError: two is not for me"):
        run_points(fails_at_two, POINTS, folder=tmp_path, workers=workers)
    with pytest.raises(KernbenchError, match="in simulate"):
        run_points(fails_at_two, POINTS, folder=tmp_path)


def test_a_line_that_was_cut_short_is_run_again(tmp_path):
    run_points(square, POINTS, folder=tmp_path)
    store = tmp_path / FINISHED
    store.write_text(store.read_text()[:-5])
    ran.clear()
    assert run_points(square, POINTS, folder=tmp_path) == [{"y": 9}, {"y": 1}, {"y": 4}]
    assert ran == [2]


def test_results_of_other_code_are_not_reused(tmp_path, monkeypatch):
    run_points(square, POINTS, folder=tmp_path)
    ran.clear()
    monkeypatch.setattr("kernbench.points._keys.code_version", lambda study="": "other")
    run_points(square, POINTS, folder=tmp_path)
    assert ran == [3, 1, 2]


def test_the_version_of_the_code_is_short():
    assert len(code_version()) == 12


def test_progress_counts_the_latest_run(tmp_path):
    store = tmp_path / FINISHED
    assert progress(store) == (0, 0, 0, 0, 0)
    run_points(square, POINTS[:2], folder=tmp_path)
    assert progress(store)[:3] == (1, 2, 2)
    run_points(square, POINTS, folder=tmp_path)
    assert progress(store)[:3] == (2, 1, 1)
    assert all(json.loads(line) for line in store.read_text().splitlines())
