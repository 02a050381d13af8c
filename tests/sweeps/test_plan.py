"""Plans: which points there are, and which cannot be, before anything runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import ConfigError
from kernbench.studies.gemm import GemmStudy
from kernbench.sweeps._plan import NumberRange, _Axis, latin_hypercube, make_plan, read_plan
from tests.sweeps import studies

SMALL = "preset:small"
PROGRAM = GemmStudy().program


def plan(axes, study=studies.square, **options):
    return make_plan(SMALL, study, axes, **options)


def shown(plan):
    return [tuple(point.shown.values()) for point in plan.points]


def test_a_grid_is_every_combination_the_last_axis_fastest():
    assert shown(plan({"x": [1, 2], "y": [3, 4]})) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_an_axis_may_set_several_things_under_one_name():
    got = plan({"x": [1], "mesh": {"tall": {"sip.cube_mesh.w": 1}, "one": {"sip.cube_mesh": {"w": 1, "h": 1}, "y": 2}}})
    assert shown(got) == [(1, "tall"), (1, "one")]
    assert [p.machine.config.cubes_per_sip for p in got.points] == [2, 1]
    assert [p.parameters for p in got.points] == [{"x": 1}, {"x": 1, "y": 2}]


def test_points_may_be_listed():
    got = plan({}, points=[{"x": 1}, {"x": 2, "sip.cube_mesh.w": 1}])
    assert [p.parameters["x"] for p in got.points] == [1, 2]
    assert got.axes == ("x", "sip.cube_mesh.w")


def test_machines_that_cannot_be_are_listed_with_the_reason_and_the_rest_is_run():
    got = plan({"x": [1, 2], "cube.hbm.channel_bw_gbs": [16, 64, -1]})
    assert len(got) == 2
    assert [x.shown["cube.hbm.channel_bw_gbs"] for x in got.invalid] == [64, -1, 64, -1]
    assert got.invalid[0].reason.startswith("cube.hbm.bw_gbs = 256 must be >= 512 [GB/s]")
    assert got.invalid[1].reason.startswith("cube.hbm.channel_bw_gbs = -1.0 must be > 0 [GB/s]")
    assert "4 more cannot be" in repr(got)


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("x < 3", [1, 2]),
        ("x < 3 and `sip.cube_mesh.w` == 2 and pes >= 32", [1, 2]),
        ("area_mm2 < 1", []),
        (lambda row: row["x"] * row["y"] == 30, [3]),
        (["x > 1", "x < 3"], [2]),
    ],
    ids=["one", "several", "none left", "a function", "a list"],
)
def test_constraints(where, left):
    got = plan({"x": [1, 2, 3], "sip.cube_mesh.w": [2]}, parameters={"y": 10}, where=where)
    assert [p.shown["x"] for p in got.points] == left
    assert len(got.invalid) == 3 - len(left)
    assert all("does not satisfy" in x.reason for x in got.invalid)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"axes": {"z": [1]}}, "parameter z of tests.sweeps.studies:square is unknown; known: x, y"),
        ({"axes": {"y": [1]}}, "parameter x of tests.sweeps.studies:square is missing"),
        ({"axes": {"x": []}}, r"axis x = \[\] must be a list of values"),
        ({"axes": {"x": "abc"}}, "axis x = 'abc' must be a list"),
        ({"axes": {"x": {"a": 3}}}, "axis x: 'a' must hold settings"),
        ({"axes": {"x": NumberRange(1, 2)}}, "axis x is a range: give its values, or a number of samples"),
        ({"axes": {"x": {"low": 2, "high": 1}}}, "axis x: low = 2 must be < high = 1"),
        ({"axes": {"x": {"low": 1, "high": 2, "lag": 1}}}, "axis x: lag is unknown"),
        ({"axes": {"x": [1]}, "samples": 0}, "samples = 0 must be >= 1"),
        ({"axes": {}}, "the plan has no points"),
        ({"axes": {"x": [1]}, "where": "nothing > 1"}, "where: nothing > 1: .*columns: x, sips"),
        ({"axes": {"x": [1]}, "study": "gem"}, "'gem' is not a study; did you mean gemm"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_plan_that_is_wrong_says_so(options, said):
    with pytest.raises(ConfigError, match=said):
        plan(**options)


def test_settings_that_are_the_same_point_are_run_once():
    got = plan({"x": [1, 1], "label": {"a": {"y": 1}, "b": {"y": 1}}})
    assert len(got) == 4
    assert len(got.distinct) == 1


@settings(max_examples=20)
@given(samples=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_latin_hypercube_uses_each_part_of_each_axis_once(samples, seed):
    axes = [
        _Axis.of("x", NumberRange(0, 1)),
        _Axis.of("y", NumberRange(1, 1024, log=True)),
        _Axis.of("z", ["a", "b", "c", "d"]),
    ]
    choices = [settings for _, settings in latin_hypercube(axes, samples, seed)]
    assert sorted(int(c["x"] * samples) for c in choices) == list(range(samples))
    assert all(1 <= c["y"] <= 1024 for c in choices)
    counts = [sum(c["z"] == letter for c in choices) for letter in "abcd"]
    assert max(counts) - min(counts) <= 2  # a part that two letters share may go to either


def test_a_hypercube_is_the_same_for_the_same_seed():
    axes = {"x": {"low": 64, "high": 4096, "log": True, "step": 64}}
    first = shown(plan(axes, samples=8, seed=1))
    assert first == shown(plan(axes, samples=8, seed=1)) != shown(plan(axes, samples=8, seed=2))
    assert all(x % 64 == 0 and 64 <= x <= 4096 and isinstance(x, int) for (x,) in first)


def test_a_program_has_its_parameters_and_those_of_the_engine():
    assert len(make_plan(SMALL, PROGRAM, {"log": ["off", "tile"], "k": [64]})) == 2
    with pytest.raises(ConfigError, match=r"known: m, k, n, .*, log, data, tie_seed"):
        make_plan(SMALL, PROGRAM, {"mode": ["exact"]})


def test_what_is_left_out_is_the_point_that_its_own_value_gives():
    left_out, given, other = (
        plan({"x": [1]}, **more).keys for more in ({}, *({"parameters": {"y": y}} for y in (1, 2)))
    )
    assert left_out == given != other
    (usual,) = make_plan(SMALL, PROGRAM, {"m": [64]}).keys
    named = {
        "k": 512,
        "n": 512,
        "staging": "ref_ref",
        "dtype": "f16",
        "log": "operation",
        "data": False,
    }
    assert make_plan(SMALL, PROGRAM, {"m": [64]}, parameters=named).keys == (usual,)
    assert make_plan(SMALL, PROGRAM, {"m": [64]}, parameters=named | {"data": True}).keys != (usual,)


def test_a_default_that_is_no_plain_value_is_left_to_the_version_of_the_code():
    def study(machine, *, x, kind=object):
        return {"y": x}

    assert len(make_plan(SMALL, study, {"x": [1, 2]}).keys) == 2


def test_a_program_may_not_take_what_says_how_it_is_run():
    def program(torch, *, data: int = 1):
        return None

    with pytest.raises(ConfigError, match=r"parameter data of .*program is one of how it is run: name it otherwise"):
        make_plan(SMALL, program, {"data": [1]})


def test_a_plan_file(tmp_path):
    path = tmp_path / "my_plan.yaml"
    (tmp_path / "machine.yaml").write_text("base: small\n")
    path.write_text("machine: machine.yaml\nstudy: gemm\naxes: {k: [64, 128]}\nparameters: {m: 32}\ntime_limit_s: 5\n")
    read = read_plan(path)
    assert shown(read.plan) == [(64,), (128,)]
    assert read.limits.seconds == 5
    path.write_text("stud: gemm\naxs: {}\n")
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert [fault.split(";")[0] for fault in caught.value.faults] == [
        "my_plan.yaml: stud is unknown",
        "my_plan.yaml: axs is unknown",
        "my_plan.yaml: study is missing: name one of `kernbench list studies`",
    ]
