"""The JSON schema says of a file what reading it says, as far as single keys go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench import config
from tests.config.contents import DEFAULT, GONE, changed, faults, leaves

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the notebook extra")

SCHEMA = config.json_schema()
CHECK = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", config.presets())
def test_presets_are_valid(name):
    assert CHECK.is_valid(config.load_yaml(config.preset_path(name)))


@pytest.mark.parametrize(
    "changes",
    [
        {"cube.hbm.bw_gbs": 0}, {"cube.hbm.bw_gbs": "256"}, {"cube.hbm.bw_gbps": 1}, {"cube.hbm": GONE},
        {"cube.hbm.gather": "x"}, {"cube.noc.removed": [[1]]}, {"schema_version": 2}, {"base": "zzz"},
        {"cube.pe_layout.corners": []}, {"cube.hbm.efficiency": 1.5},
    ],
    ids=", ".join,
)  # fmt: skip
def test_what_is_refused_is_invalid(changes):
    assert faults(changed(changes))
    assert not CHECK.is_valid(changed(changes))


def test_on_a_base_keys_may_be_left_out_but_not_be_wrong():
    assert CHECK.is_valid({"base": "small", "cube": {"hbm": {"access_ns": 4}}})
    assert not CHECK.is_valid({"base": "small", "cube": {"hbm": {"acces_ns": 4}}})
    assert not CHECK.is_valid({"base": "small", "cube": {"hbm": {"access_ns": -4}}})


NUMBERS = [path for path, value in leaves(DEFAULT).items() if isinstance(value, (int, float))]


@given(st.sampled_from(NUMBERS), st.one_of(st.integers(-2, 300), st.booleans(), st.none(), st.text(max_size=2)))
def test_what_reads_is_valid(path, value):
    content = changed({path: value})
    if not faults(content):
        assert CHECK.is_valid(content)


def properties(node: object):
    if isinstance(node, dict):
        yield from node.get("properties", {}).items()
        for inner in node.values():
            yield from properties(inner)


def test_every_key_is_described_and_every_unit_shown():
    described = 0
    for name, entry in properties(SCHEMA):
        if "$ref" not in entry and "allOf" not in entry:
            assert entry.get("description"), name
            described += 1
            unit = entry.get("unit")
            assert unit is None or entry["description"].endswith(f"[{unit}]"), name
            assert unit or not name.endswith(("_ns", "_gbs", "_mm", "_mb", "_kib", "_mib", "_gib", "_bytes")), name
    assert described > 100
