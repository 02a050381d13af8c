"""Where files of configuration are, what may be wrong with them as files, and what the packaged ones hold."""

from __future__ import annotations

import re

import pytest

from kernbench import config
from kernbench.errors import ConfigError
from tests.repo import ROOT

DEFAULT = config.preset_path("default")
MARK = re.compile(r"\((ref|std|chosen)\b")


def refused(path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.read_machine(path)
    return caught.value.faults


@pytest.fixture
def write(tmp_path):
    def write_file(text: str | bytes, name: str = "topology.yaml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


# Finding


def test_the_nearest_file_upward_is_found(tmp_path, monkeypatch):
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a"):
        (folder / "topology.yaml").write_text("")
    assert config.find(start=deep) == tmp_path / "a" / "topology.yaml"
    monkeypatch.chdir(deep)
    assert config.find() == tmp_path / "a" / "topology.yaml"
    assert config.find("topology.yaml", tmp_path) == tmp_path / "topology.yaml"


def test_a_folder_of_that_name_is_no_file(tmp_path):
    (tmp_path / "topology.yaml").mkdir()
    assert config.find(start=tmp_path) == DEFAULT


@pytest.mark.parametrize(("name", "packaged"), [("topology.yaml", DEFAULT), ("ccl.yaml", config.default_ccl_path())])
def test_without_a_file_the_packaged_default_is_found(tmp_path, name, packaged):
    assert config.find(name, tmp_path) == packaged


# As files


def test_a_file_that_is_not_there(tmp_path):
    (line,) = refused(tmp_path / "none.yaml")
    assert re.search(r"none\.yaml: cannot be read \(No such file.*\); give the path of a YAML file", line)


def test_a_folder_is_no_file(tmp_path):
    (line,) = refused(tmp_path)
    assert "cannot be read" in line


def test_bytes_that_are_no_text(write):
    (line,) = refused(write(b"a: \xff"))
    assert "topology.yaml: is not UTF-8 text at byte 3; save it as UTF-8" in line


def test_a_byte_order_mark_is_no_matter(write):
    assert config.read_machine(write(b"\xef\xbb\xbfbase: small\n")).n_sips == 1


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("# no more\n", "is empty"), ("- 1\n", "holds a list")])
def test_what_is_no_mapping(write, text, said):
    (line,) = refused(write(text))
    assert f"topology.yaml: {said}; expected groups of keys" in line


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: [1\nb: 2\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2, column 1"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: *b\n", "line 1, column 4"),
    ],
)
def test_what_is_no_yaml_is_located(write, text, place):
    (line,) = refused(write(text))
    assert re.search(rf"topology\.yaml: {place}.* is not valid YAML: .*; correct the syntax there", line)


def test_every_key_that_stands_twice_is_reported_with_the_other_faults(write):
    text = DEFAULT.read_text(encoding="utf-8")
    text = text.replace("    channels: 8 ", "    channels: 8\n    channels: 4 ").replace(
        "pitch_mm: 3.0", "pitch_mm: -3.0"
    )
    text += "sip: {}\n"
    lines = refused(write(text))
    at = [text.splitlines().index(line) + 1 for line in ("sip:", "    channels: 8", "sip: {}")]
    assert lines[0] == f"topology.yaml: sip is a duplicate key, in lines {at[0]} and {at[2]}; keep one"
    assert lines[3:] == [
        "topology.yaml: cube.noc.pitch_mm = -3.0 must be > 0 [mm]",
        f"topology.yaml: cube.hbm.channels is a duplicate key, in lines {at[1]} and {at[1] + 1}; keep one",
    ]


def test_an_anchor_may_be_used_twice(write):
    text = "base: default\nsystem: {sip_link: &wire {bw_gbs: 64, latency_ns: 9}, pcie: *wire}\n"
    machine = config.read_machine(write(text))
    pcie, sip_link = machine.system.pcie, machine.system.sip_link
    assert (pcie.bw_gbs, pcie.latency_ns) == (sip_link.bw_gbs, sip_link.latency_ns) == (64, 9)


def test_numbers_with_an_exponent_are_numbers(write):
    assert config.read_machine(write("base: default\ncube: {hbm: {access_ns: 4e1}}\n")).cube.hbm.access_ns == 40


def test_a_file_read_as_such_may_not_have_a_key_twice(write):
    with pytest.raises(ConfigError, match=r"plan\.yaml: a\.b is a duplicate key, in lines 2 and 3"):
        config.load_yaml(write("a:\n  b: 1\n  b: 2\n", "plan.yaml"))
    assert config.load_yaml(write("a: [1, 2.5, x]\n")) == {"a": [1, 2.5, "x"]}


# Packaged


def test_the_presets():
    assert config.presets() == [
        "a100_sxm",
        "a100_sxm_calibrated",
        "default",
        "detailed",
        "gpu_launch",
        "h100_sxm",
        "h100_sxm_calibrated",
        "h200_sxm",
        "hbm3_conservative",
        "large",
        "protocol_overhead",
        "six_sip_torus",
        "small",
        "tpu_v5e",
        "wormhole_n150",
    ]
    with pytest.raises(ConfigError, match=r"preset:larg is unknown; did you mean large\? known: a100_sxm, a100"):
        config.preset_path("larg")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("small", (1, 4, 8, "ring_1d")),
        ("default", (2, 16, 8, "ring_1d")),
        ("detailed", (2, 16, 8, "ring_1d")),
        ("gpu_launch", (2, 16, 8, "ring_1d")),
        ("protocol_overhead", (2, 16, 8, "ring_1d")),
        ("hbm3_conservative", (2, 16, 8, "ring_1d")),
        ("six_sip_torus", (6, 16, 8, "torus_2d")),
        ("large", (64, 16, 8, "torus_2d")),
        ("a100_sxm", (8, 1, 108, "switch")),
        ("a100_sxm_calibrated", (8, 1, 108, "switch")),
        ("h100_sxm", (8, 1, 132, "switch")),
        ("h100_sxm_calibrated", (8, 1, 132, "switch")),
        ("h200_sxm", (8, 1, 132, "switch")),
        ("tpu_v5e", (16, 1, 4, "torus_2d")),
        ("wormhole_n150", (1, 1, 64, "ring_1d")),
    ],
)
def test_every_preset_loads(name, shape):
    machine = config.read_machine(config.preset_path(name))
    assert (machine.n_sips, machine.cubes_per_sip, machine.pes_per_cube, machine.system.sips.topology) == shape


def test_the_conservative_hbm_differs_in_its_hbm():
    hbm = config.read_machine(config.preset_path("hbm3_conservative")).cube.hbm
    assert (hbm.efficiency, hbm.access_ns) == (0.8, 40)
    back = config.read_machine(
        config.preset_path("hbm3_conservative"), {"cube.hbm.efficiency": 1, "cube.hbm.access_ns": 0}
    )
    assert back == config.read_machine(DEFAULT)


@pytest.mark.parametrize(("name", "packaged"), [("topology.yaml", DEFAULT), ("ccl.yaml", config.default_ccl_path())])
def test_a_file_of_the_repository_is_in_effect_there_and_as_packaged(name, packaged):
    assert config.find(name, ROOT / "notebooks") == ROOT / name
    assert (ROOT / name).read_text(encoding="utf-8") == packaged.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [DEFAULT, config.default_ccl_path()], ids=lambda path: path.name)
def test_every_value_carries_its_mark(path):
    # What an algorithm is made of is no constant of a model.
    lines = path.read_text(encoding="utf-8").partition("\nalgorithms:")[0].splitlines()
    valued = [line for line in lines if re.match(r"\s*\w+: *[^\s#]", line)]
    plain = [line for line in valued if not re.match(r"\s*(impl|schema_version):", line)]
    assert len(plain) > 5
    assert not [line for line in plain if not MARK.search(line.partition("#")[2])]


def test_marks_are_those_of_the_documentation():
    rows = [line.split(" | ") for line in (ROOT / "docs" / "model.md").read_text("utf-8").splitlines()]
    table = {row[0].strip("| `"): row[3].strip() for row in rows if len(row) == 5 and row[0].startswith("| `")}
    said = {key: set(mark.split(", ")) for key, mark in table.items() if mark}
    found: dict[str, set[str]] = {}
    groups: list[tuple[int, str]] = []
    for line in DEFAULT.read_text(encoding="utf-8").splitlines():
        if key := re.match(r"( *)(\w+):", line):
            groups = [group for group in groups if group[0] < len(key[1])] + [(len(key[1]), key[2])]
            if mark := MARK.search(line.partition("#")[2]):
                path = ".".join(name for _, name in groups)
                documented = path if path in said else path.rpartition(".")[0]
                found.setdefault(documented, set()).add(mark[1])
    assert len(said) > 50
    assert {key: found.get(key) for key in said} == said
