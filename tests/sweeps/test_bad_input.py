"""Bad input is refused before anything runs: the field, what was given, what is expected."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.sweeps._plan import NumberRange, _Axis, read_plan
from tests.sweeps import studies


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"axes": ["x"]}, r"axes = \['x'\] must be a mapping of names"),
        ({"axes": {1: [1]}}, "axes: the name 1 must be a text"),
        ({"axes": {"x": {"a": {1: 2}}}}, "axis x: a: the name 1 must be a text"),
        ({"parameters": [1]}, r"parameters = \[1\] must be a mapping of fields and parameters"),
        ({"points": 3}, "points = 3 must be a list of settings"),
        ({"points": {"x": 1}}, "points = {'x': 1} must be a list of settings"),
        ({"points": [{"x": 1}, 2]}, r"points\[1\] = 2 must be a mapping of fields"),
        ({"samples": "many"}, "samples = 'many' must be >= 1, a whole number"),
        ({"samples": 2.5}, "samples = 2.5 must be >= 1, a whole number"),
        ({"seed": "x"}, "seed = 'x' must be >= 0, a whole number"),
        ({"where": 3}, "where = 3 must be an expression"),
        ({"axes": {"x": {"low": "a", "high": "b"}}}, "axis x: low = 'a' must be a number"),
        ({"axes": {"x": NumberRange(1, "b")}}, "axis x: high = 'b' must be a number"),
        ({"axes": {"x": {"low": 1, "high": 9, "log": "no"}}}, "axis x: log = 'no' must be true or false"),
        ({"axes": {"x": {"low": 1, "high": 9, "step": 0}}}, "axis x: step = 0 must be a number > 0"),
        ({"axes": {"x": NumberRange(5, 7, step=4)}}, "axis x: step = 4 has no multiple from low = 5 to high = 7"),
        ({"workers": "2"}, "workers = '2' must be >= 1, a whole number"),
        ({"workers": -1}, "workers = -1 must be >= 1, a whole number"),
        ({"time_limit_s": "2"}, r"time_limit_s = '2' must be a number > 0 \[s\]"),
        ({"memory_limit_mib": 0.5}, r"memory_limit_mib = 0.5 must be >= 1 \[MiB\], a whole number"),
        ({"axes": {"x": [{1, 2}]}}, r"x = {1, 2} must be a plain value"),
        ({"parameters": {"y": 1j}}, "y = 1j must be a plain value"),
        ({"axes": {"cube.hbm": [object()]}, "parameters": {"x": 1}}, "cube.hbm = <object .* must be a plain value"),
        ({"axes": {"x": [1], "status": {"a": {"y": 1}}}}, "status is a column of the table itself"),
        ({"folder": 3}, "folder = 3 must be the path of a folder"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_says_what_it_is(options, said):
    given = {"axes": {"x": [1]}, "workers": 1, "cache": False, "progress": False} | options
    with pytest.raises(ConfigError, match=said):
        kb.sweep("preset:small", studies.square, **given)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_is_a_file(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"folder = .* must be a folder, or a new one; .*file is a file"):
        kb.sweep("preset:small", studies.square, {"x": [1]}, folder=tmp_path / "file" / below, progress=False)


def test_a_plan_file_is_held_to_the_same(tmp_path):
    path = tmp_path / "plan.yaml"
    for line, said in (
        ("points: 3", "points = 3"),
        ("time_limit_s: '2'", "time_limit_s = '2'"),
        ("machine: 3", "machine = 3 must be a path"),
        ("machine: none.yaml", ".*none.yaml: cannot be read"),
        ("machine: {base: small, cube: {ucie: {port_ns: x}}}", "machine: cube.ucie.port_ns = 'x' must be a plain"),
        ("study: 3", "study = 3 must be a name"),
        ("study: no_such:f", "study 'no_such:f': No module named"),
        ("axes: {m: {low: 1, high: 1" + 400 * "0" + "}}", "axis m: high = 1000"),
    ):
        given = {"machine": "preset:small", "study": "gemm", "axes": "{k: [64]}"}
        key, _, value = line.partition(": ")
        path.write_text("".join(f"{name}: {text}\n" for name, text in (given | {key: value}).items()))
        with pytest.raises(ConfigError, match=f"^plan.yaml: {said}"):
            read_plan(path)


@pytest.mark.parametrize(
    ("span", "values"),
    [
        (NumberRange(1, 9, step=4), [4, 8]),
        (NumberRange(1, 9, log=True, step=4), [4, 8]),
        (NumberRange(4, 8, step=4), [4, 8]),
        (NumberRange(0.1, 0.3, step=0.1), [0.1, 0.2, 0.3]),
    ],
    ids=str,
)
def test_a_range_with_a_step_gives_multiples_of_it_within(span, values):
    axis = _Axis.of("x", span)
    assert {axis.pick(share / 100)[0] for share in range(101)} == set(values)


def lazy(machine, x):
    yield {"y": x}


async def waiting(torch, x):
    pass


@pytest.mark.parametrize("study", [lazy, waiting])
def test_a_generator_or_coroutine_is_no_study(study):
    with pytest.raises(TypeError, match=rf"test_bad_input.py:\d+: study {study.__name__} is a (generator|coroutine)"):
        kb.sweep("preset:small", study, {"x": [1]})
