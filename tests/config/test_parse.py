"""Odd YAML and odd values: whatever a file holds, it is read or refused with one line for each fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.config import read_machine
from kernbench.config._files import parse_yaml
from kernbench.config._kinds import LARGEST
from kernbench.errors import ConfigError
from tests.config.contents import DEFAULT, changed, faults


@pytest.fixture
def refused(tmp_path):
    def read(text: str) -> list[str]:
        path = tmp_path / "topology.yaml"
        path.write_text(text, "utf-8")
        with pytest.raises(ConfigError) as caught:
            read_machine(path)
        assert path.read_text("utf-8") == text
        assert all(len(line.splitlines()) == 1 for line in caught.value.faults)
        return caught.value.faults

    return read


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-3", -3), ("+7", 7), ("2.50", 2.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("1.5E-2", 0.015),
        ("-.inf", -float("inf")), ("0.1", 0.1),
    ],
)  # fmt: skip
def test_decimal_numbers(text, number):
    (value, _) = parse_yaml(text)
    assert (value, type(value)) == (number, type(number))


@pytest.mark.parametrize("text", ["010", "1:30", "1_000", "0x10", "1e", "e3", "1.2.3", "."])
def test_what_older_yaml_reads_as_another_number_is_text(text):
    assert parse_yaml(text)[0] == text


@given(st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False)))
def test_a_number_reads_back_as_it_is_written(number):
    text = repr(number).replace("inf", ".inf")
    assert parse_yaml(text)[0] == number


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "base: default\ncube: &c {noc: *c}\n",
            "line 2, column 7 is not valid YAML: the group of this anchor holds an alias",
        ),
        ("base: &c [*c]\n", "line 1, column 7 is not valid YAML: the group of this anchor holds an alias of itself"),
        ("base: 2024-13-45\n", "line 1, column 7 is not valid YAML: month must be in 1..12"),
        ("base: !!int x\n", "line 1, column 7 is not valid YAML: invalid literal"),
        (f"base: {'9' * 5000}\n", "line 1, column 7 is not valid YAML: Exceeds the limit"),
        (f"base: {'[' * 3000}{']' * 3000}\n", "is not valid YAML: it is nested too deeply"),
        ("base: \0\n", "is not valid YAML: unacceptable character #x0000"),
        (
            "base: !!python/object:os.system x\n",
            "line 1, column 7 is not valid YAML: could not determine a constructor",
        ),
        ("? [a]\n: 1\n", "line 1, column 3 is not valid YAML: found unhashable key"),
    ],
    ids=range(9),
)
def test_text_that_holds_no_content(refused, text, said):
    (line,) = refused(text)
    assert f"topology.yaml: {said}" in line
    assert line.endswith("; correct the syntax there")


def test_a_merged_key_may_be_given_another_value(tmp_path):
    path = tmp_path / "topology.yaml"
    path.write_text(
        "base: default\nsystem: {pcie: &p {bw_gbs: 64, latency_ns: 9}, sip_link: {<<: *p, latency_ns: 5}}\n"
    )
    system = read_machine(path).system
    assert (system.sip_link.bw_gbs, system.sip_link.latency_ns, system.pcie.latency_ns) == (64, 5, 9)


def test_a_key_twice_in_one_line(refused):
    assert refused("base: small\nsip: {cube_mesh: {w: 1, w: 2}}\n") == [
        "topology.yaml: sip.cube_mesh.w is a duplicate key, in line 2; keep one"
    ]


def test_a_wrong_base_hides_no_other_fault(refused):
    lines = refused("cube: {hbm: {bw_gbs: -256.0}, noc: {rows: 0}}\nsystem: {zzz: 1}\nbase: smal\n")
    starts = ["base = 'smal' is no", "cube.hbm.bw_gbs = -256.0", "cube.noc.rows = 0 must", "system.zzz is unknown"]
    assert [start for start in starts if not any(f"topology.yaml: {start}" in line for line in lines)] == []
    assert len(lines) == 4


# Sizes


@pytest.mark.parametrize("path", ["system.pcie.latency_ns", "cube.pe.pe_gemm.clock_ghz", "system.sip_link.bw_gbs"])
def test_the_largest_number(path):
    assert faults(changed({path: LARGEST})) == []
    (line,) = faults(changed({path: LARGEST + 1}))
    assert line.startswith(f"{path} = 1000000000001.0 must be <= 1e+12 [")


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000, 1e308, -1e308], ids=range(5))
@pytest.mark.parametrize(
    "path", ["cube.hbm.bw_gbs", "cube.hbm.size_gib", "cube.pe.pe_gemm.tile.m", "cube.hbm.channels", "system.sips.count"]
)
def test_numbers_beyond_all_reason_are_refused_briefly(path, value):
    (line,) = faults(changed({path: value}))
    assert line.startswith(f"{path} = ")
    assert len(line) < 150


@pytest.mark.parametrize("x", [10**400, -1e308], ids=range(2))
def test_places_beyond_all_reason_are_off_the_die(x):
    (line,) = faults(changed({"cube.sram.pos_mm": [x, 0]}))
    assert "must be on the die of 18 x 18 [mm]" in line


# Overrides


def said_of(overrides) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_machine(DEFAULT, overrides)
    return caught.value.faults


@pytest.mark.parametrize("path", ["cube..hbm", ".cube", "cube.", 3, ""])
def test_what_is_no_path(path):
    assert said_of({path: 1}) == [f"override: {path!r} is not a path; join names by dots, as in sip.cube_mesh.w"]


def test_one_path_has_one_value():
    assert said_of(["sip.cube_mesh.w=2", "sip.cube_mesh.w=1"]) == [
        "override: sip.cube_mesh.w is set to 2 and to 1; keep one"
    ]
    assert read_machine(DEFAULT, ["sip.cube_mesh.w=2", "sip.cube_mesh.w=2"]).sip.cube_mesh.w == 2


def test_nan_by_override_is_one_fault():
    assert said_of({"cube.hbm.bw_gbs": float("nan")}) == [
        "override: cube.hbm.bw_gbs = nan must be a finite number [GB/s]"
    ]


@pytest.mark.parametrize("text", [3, None, ["sip.cube_mesh.w", 2]])
def test_what_is_no_text(text):
    assert said_of([text]) == [f"override: {text!r} must be path=value, as in sip.cube_mesh.w=2"]


def test_a_value_that_looks_like_a_date_and_is_none():
    (line,) = said_of(["cube.hbm.gather=2024-13-45"])
    assert line.endswith("has a value that is not valid YAML: month must be in 1..12; correct it, or put it in quotes")


def test_a_key_twice_in_the_value_of_an_override():
    assert said_of(["sip.cube_mesh={w: 1, w: 2, h: 1}"]) == [
        "override: 'sip.cube_mesh={w: 1, w: 2, h: 1}': w is a duplicate key, in line 1; keep one"
    ]


@given(st.text(max_size=30))
def test_any_text_as_an_override_is_taken_or_refused(text):
    for override in (text, f"cube.hbm.access_ns={text}"):
        lines = []
        try:
            read_machine(DEFAULT, [override])
        except ConfigError as error:
            lines = error.faults
        assert [line for line in lines if not line.startswith("override: ") or len(line.splitlines()) > 1] == []


def test_what_was_parsed_before_is_handed_out_anew():
    text = "a: {b: [1]}"
    parse_yaml(text)[0]["a"]["b"].append(2)
    assert parse_yaml(text)[0] == {"a": {"b": [1]}}
