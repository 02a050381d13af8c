"""From a file, a base and overrides to a machine: what is said, in which order, and what the hash depends on."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from types import MappingProxyType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.config import read_machine
from kernbench.errors import ConfigError
from tests.config.contents import DEFAULT, GONE, changed, faults, leaves


@pytest.fixture
def write(tmp_path):
    def write_file(content: object, name: str = "topology.yaml"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False), "utf-8")
        return path

    return write_file


# All faults at once


def test_all_faults_of_a_file_at_once_and_in_its_order(write):
    path = write(
        changed(
            {
                "cube.hbm.bw_gbs": -256.0,
                "sip.cube_mesh.w": 20,
                "system.sips.topology": "rings",
                "cube.noc.link_bw_gbps": 1,
                "cube.pe.pe_tcm.size_mb": 3,
                "cube.pe.pe_gemm.tile": GONE,
            }
        )
    )
    with pytest.raises(ConfigError) as caught:
        read_machine(path)
    expected = [
        "system.sips.topology = 'rings' is unknown",
        "sip.cube_mesh = 20 x 4 = 80 cubes must be <= 64",
        "cube.noc.link_bw_gbps is unknown",
        "cube.hbm.bw_gbs = -256.0 must be > 0 [GB/s]",
        "cube.pe.pe_gemm.tile is missing",
        "cube.pe.pe_tcm.size_mb = 3 must be > 5.125 [MiB]",
    ]
    assert len(caught.value.faults) == len(expected)
    for line, start in zip(caught.value.faults, expected, strict=True):
        assert line.startswith(f"topology.yaml: {start}")
    assert str(caught.value).splitlines() == caught.value.faults


def test_a_rule_is_silent_about_keys_that_are_wrong_themselves():
    # Eight channels of -1 GB/s break no rule about the links of a slice, nor does a missing link.
    for change in ({"cube.hbm.channel_bw_gbs": -1}, {"cube.hbm.bw_gbs": GONE}, {"cube.hbm": 3}):
        assert len(faults(changed(change))) == 1


def test_an_empty_mapping_misses_the_groups():
    assert [line.split(";")[0] for line in faults({})] == [
        f"{group} is missing" for group in ("schema_version", "system", "sip", "cube", "cost")
    ]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(), st.text(max_size=3), st.just({}), st.just({"x": 1}),
    st.lists(st.integers(-1, 9), max_size=3), st.just([[0, 0]]), st.just(GONE),
)  # fmt: skip


def groups_and_leaves(content: dict, path: str = "") -> list[str]:
    paths = []
    for key, value in content.items():
        paths.append(f"{path}{key}")
        paths += groups_and_leaves(value, f"{path}{key}.") if isinstance(value, dict) else []
    return paths


@given(st.dictionaries(st.sampled_from(groups_and_leaves(DEFAULT)), JUNK, max_size=5))
def test_whatever_a_file_holds_it_loads_or_is_refused_key_by_key(changes):
    apart = {k: v for k, v in changes.items() if not any(k.startswith(f"{other}.") for other in changes)}
    content = changed(apart)
    lines: list[str] | None = None
    try:
        spec = read_machine(content).to_spec()
    except ConfigError as error:
        lines = error.faults
    if lines is None:
        assert read_machine(spec).to_spec() == spec
    else:
        assert lines
        files = "give cube.pe.pe_gemm.table the path of a CSV file"  # a text there is one
        assert all(line.startswith("machine: ") or line.endswith(files) for line in lines)


def test_packaged_files_are_read_without_pydantic():
    code = """
import sys
from kernbench.config import default_ccl_path, preset_path, presets, read_ccl, read_machine
for name in presets():
    machine = read_machine(preset_path(name), {"cube.ucie.port_ns": 7})
read_ccl(default_ccl_path(), machine)
print("pydantic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


# Base


def test_a_file_states_only_what_differs_from_its_base(write):
    config = read_machine(write("base: small\ncube: {hbm: {access_ns: 7}}\n"))
    assert config == read_machine({"base": "small"}, {"cube.hbm.access_ns": 7})
    assert (config.n_sips, config.cubes_per_sip) == (1, 4)


@pytest.mark.parametrize("base", ["smal", 3, None, ["small"]])
def test_an_unknown_base_lists_the_presets(base):
    (line,) = faults({"base": base})
    hint = "did you mean small? " if base == "smal" else ""
    if base != ["small"]:
        assert line == (
            f"base = {base!r} is not a preset, nor a file that ends in .yaml; {hint}known: a100_sxm, "
            "a100_sxm_calibrated, default, detailed, gpu_launch, h100_sxm, h100_sxm_calibrated, h200_sxm, "
            "hbm3_conservative, large, protocol_overhead, six_sip_torus, small, tpu_v5e, wormhole_n150"
        )


def test_faults_of_a_file_on_a_base_carry_its_name(write):
    with pytest.raises(ConfigError, match=r"^mine\.yaml: cube\.hbm\.acces_ns is unknown; did you mean access_ns\?"):
        read_machine(write("base: default\ncube: {hbm: {acces_ns: 7}}\n", "mine.yaml"))


def test_a_base_is_a_file_beside_the_one_that_names_it(write, tmp_path):
    (tmp_path / "parts").mkdir()
    write("base: small\ncube: {hbm: {access_ns: 7}, noc: {pitch_mm: 5}}\n", "parts/mine.yaml")
    read = read_machine(write("base: parts/mine.yaml\ncube: {hbm: {access_ns: 9}}\n"))
    assert read == read_machine({"base": "small"}, {"cube.hbm.access_ns": 9, "cube.noc.pitch_mm": 5})


def test_the_table_of_a_base_is_beside_that(write, tmp_path):
    (tmp_path / "parts").mkdir()
    write("m,k,n,efficiency\n64,64,64,0.5\n", "parts/table.csv")
    write("base: small\ncube: {pe: {pe_gemm: {table: table.csv}}}\n", "parts/mine.yaml")
    assert read_machine(write("base: parts/mine.yaml\n")).cube.pe.pe_gemm.table == ((64, 64, 64, 0.5),)


def test_faults_of_a_base_carry_its_name(write):
    write("base: small\ncube: {hbm: {access_ns: -7}}\n", "mine.yaml")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: cube\.hbm\.access_ns = -7\.0 "):
        read_machine(write("base: mine.yaml\ncube: {hbm: {access_ns: 7}}\n"))
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        read_machine(write("base: other.yaml\n"))


def test_files_that_rest_on_each_other_are_refused(write):
    write("base: topology.yaml\n", "mine.yaml")
    with pytest.raises(ConfigError, match=r"^mine\.yaml: base = 'topology\.yaml' rests on this file"):
        read_machine(write("base: mine.yaml\n"))


# Overrides


def test_overrides_as_mapping_and_as_text():
    mapping = read_machine(DEFAULT, {"sip.cube_mesh.w": 2, "system.sips.topology": "fully_connected"})
    text = read_machine(DEFAULT, ["sip.cube_mesh.w=2", "system.sips.topology=fully_connected"])
    assert mapping == text
    assert (text.sip.cube_mesh.w, text.system.sips.topology) == (2, "fully_connected")
    assert read_machine(DEFAULT, "sip.cube_mesh.w=2").sip.cube_mesh.w == 2


def test_values_of_text_are_yaml():
    config = read_machine(
        DEFAULT,
        ["cube.noc.removed=[[2, 2]]", "cube.hbm.access_ns=1e1", "system.sips.w=null", "sip.cube_mesh={w: 1, h: 2}"],
    )
    assert config.cube.noc.removed == ((2, 2),)
    assert config.cube.hbm.access_ns == 10
    assert config.system.sips.w is None
    assert config.cubes_per_sip == 2


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sip.cube_mess.w=2"], "override: sip.cube_mess is unknown; did you mean cube_mesh? known: cube_mesh, io"),
        ({"sip.cube_mesh.ww": 2}, "override: sip.cube_mesh.ww is unknown; did you mean w? known: w, h"),
        (["cube.hbm.bw_gbs.x=2"], "override: cube.hbm.bw_gbs.x is unknown; cube.hbm.bw_gbs is a value"),
        (["=2"], "override: '=2' must be path=value, as in sip.cube_mesh.w=2"),
        (["sip.cube_mesh.w"], "override: 'sip.cube_mesh.w' must be path=value, as in sip.cube_mesh.w=2"),
        (["sip.cube_mesh.w=[1"], "override: 'sip.cube_mesh.w=[1' has a value that is not valid YAML"),
        (["cube.hbm.bw_gbs=-256"], "override: cube.hbm.bw_gbs = -256.0 must be > 0 [GB/s]"),
        (["cube.hbm.bw_gbs=128"], "override: cube.hbm.bw_gbs = 128 must be >= 256 [GB/s]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_override(overrides, said):
    with pytest.raises(ConfigError) as caught:
        read_machine(DEFAULT, overrides)
    (line,) = caught.value.faults
    assert line.startswith(said)


def test_all_faults_of_overrides_and_file_at_once():
    with pytest.raises(ConfigError) as caught:
        read_machine(changed({"cube.hbm.channels": 3}), ["x", "y=1", "sip.cube_mesh.w=0"])
    starts = [
        "override: 'x' must be",
        "override: y is unknown",
        "override: sip.cube_mesh.w = 0",
        "machine: cube.hbm.cha",
    ]
    assert [line[: len(start)] for line, start in zip(caught.value.faults, starts, strict=True)] == starts


LEAVES = {
    "system.sips.count": [1, 3], "system.switch.overhead_ns": [0, 2.5], "sip.cube_mesh": [{"w": 1, "h": 3}],
    "sip.cube_mesh.w": [1, 2], "cube.hbm.access_ns": [40], "cube.pe.pe_gemm.tile": [{"m": 16, "k": 16, "n": 16}],
    "cube.pe.pe_gemm.tile.k": [8, 32], "cube.noc.router.impl": ["my_lab.parts:SlowRouter"],
}  # fmt: skip


@given(st.data())
def test_the_order_of_overrides_does_not_matter(data):
    paths = data.draw(st.lists(st.sampled_from(sorted(LEAVES)), unique=True))
    pairs = [(path, data.draw(st.sampled_from(LEAVES[path]))) for path in paths]
    other = data.draw(st.permutations(pairs))
    config = read_machine(DEFAULT, dict(pairs))
    assert read_machine(DEFAULT, dict(other)).hash == config.hash
    assert read_machine(DEFAULT, [f"{path}={json.dumps(value)}" for path, value in other]).hash == config.hash
    # One after the other comes to the same, unless a group is set after what is in it.
    if not any(b.startswith(f"{a}.") for i, (a, _) in enumerate(other) for b, _ in other[:i]):
        step = read_machine(DEFAULT)
        for path, value in other:
            step = read_machine(step.to_spec(), {path: value})
        assert step == config


def test_what_is_handed_in_stays_as_it_was():
    content, group = changed({}), {"w": 2, "h": 2}
    read_machine(content, {"sip.cube_mesh": group, "sip.cube_mesh.w": 3})
    assert content == DEFAULT
    assert group == {"w": 2, "h": 2}


# Hash and content


def test_the_hash_is_of_the_content_alone(write):
    text = yaml.safe_dump(changed({"cube.noc.pitch_mm": 3, "cube.hbm.channels": 8.0}), sort_keys=True)
    assert text.splitlines()[0] == "cost:"
    assert read_machine(write(text)).hash == read_machine(DEFAULT).hash
    assert read_machine(changed({"cube.hbm.access_ns": -0.0})).hash == read_machine(DEFAULT).hash
    assert len(read_machine(DEFAULT).hash) == 64


@pytest.mark.parametrize("path", [p for p, v in leaves(DEFAULT).items() if isinstance(v, (int, float))])
def test_every_number_is_in_the_hash_but_costs(path):
    if path.startswith("cost."):
        assert read_machine(changed({path: 99})).hash == read_machine(DEFAULT).hash
    elif path != "schema_version":
        # Up or down, whichever the rules allow.
        value = leaves(DEFAULT)[path]
        other = value * 2 if faults(changed({path: value * 2 or 1})) == [] else value / 2
        assert read_machine(changed({path: other or 1})).hash != read_machine(DEFAULT).hash


def test_an_optional_key_that_is_null_is_absent():
    assert read_machine(changed({"system.sips.w": None})).hash == read_machine(DEFAULT).hash


def test_the_spec_reads_as_the_file():
    config = read_machine(DEFAULT)
    assert config.to_spec() == DEFAULT
    assert read_machine(MappingProxyType(config.to_spec())) == config


def test_a_configuration_travels():
    config = read_machine(DEFAULT)
    assert config.hash
    assert pickle.loads(pickle.dumps(config)) == config
