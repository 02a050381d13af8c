"""The machine panel: fields, wrong values, what changed, files."""

from __future__ import annotations

import pytest
import yaml

import kernbench as kb
from kernbench import config
from kernbench.errors import ConfigError, HostError
from kernbench.notebook._machine_form import MachineForm, field_groups, machine_yaml
from kernbench.viz._fields import fields


@pytest.fixture
def form():
    return MachineForm("preset:small")


def test_every_value_of_a_machine_file_has_a_field_in_one_group():
    def leaves(tree, path=""):
        for key, value in tree.items():
            yield from leaves(value, f"{path}{key}.") if isinstance(value, dict) else [f"{path}{key}"]

    content = config.load_yaml(config.preset_path("default"))
    assert set(leaves(content)) - {"schema_version"} <= set(fields())
    grouped = [field.path for group in field_groups().values() for field in group]
    assert sorted(grouped) == sorted(fields())


def test_every_value_is_shown_as_it_would_be_typed(form):
    for path in fields():
        assert form.set(path, form.text(path)), path
    assert not form.texts
    assert not form.changed()


def test_a_change_is_taken_and_told(form):
    assert form.set("cube.noc.link_bw_gbs", "512")
    assert form.machine.config.cube.noc.link_bw_gbs == 512
    [change] = form.changed()
    assert (change.field, change.before, change.after) == ("cube.noc.link_bw_gbs", 256.0, 512.0)
    assert form.overrides() == ["cube.noc.link_bw_gbs=512"]
    assert kb.load("preset:small", form.overrides()).hash == form.machine.hash


def test_the_value_of_the_file_is_no_change(form):
    form.set("cube.noc.link_bw_gbs", "512")
    form.set("cube.noc.link_bw_gbs", form.file.spec["cube"]["noc"]["link_bw_gbs"].__format__("g"))
    assert not form.changed()


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("cube.noc.link_bw_gbs", "-5", "must be > 0 [GB/s]"),
        ("cube.noc.link_bw_gbs", "fast", "must be a plain number, not text"),
        ("cube.hbm.channels", "6", "must be a power of two"),
        ("cube.hbm.gather", "[", "not valid YAML"),
        ("cube.noc.removed", "[[1, 1, 1]]", "must be a pair"),
    ],
)
def test_a_wrong_value_has_the_validators_message_beside_it_and_the_machine_stays(form, path, text, says):
    before = form.machine.hash
    assert not form.set(path, text)
    assert says in form.wrong[path]
    assert path in form.wrong[path]
    assert form.machine.hash == before
    assert form.text(path) == text, "what was typed stays, to be mended"


def test_two_wrong_values_have_a_message_each_and_mending_both_helps(form):
    form.set("cube.noc.link_bw_gbs", "-5")
    form.set("cube.hbm.channels", "6")
    assert set(form.wrong) == {"cube.noc.link_bw_gbs", "cube.hbm.channels"}
    form.set("cube.noc.link_bw_gbs", "300")
    assert set(form.wrong) == {"cube.hbm.channels"}
    assert form.set("cube.hbm.channels", "8")
    assert form.machine.config.cube.noc.link_bw_gbs == 300


def test_optional_values_can_be_given_and_taken_back(form):
    assert form.set("system.sips.count", "6")
    assert not form.set("system.sips.topology", "torus_2d")
    form.set("system.sips.w", "3")
    assert form.set("system.sips.h", "2"), form.wrong
    assert not form.set("system.sips.w", "")
    form.reset()
    assert not form.wrong
    assert not form.changed()


def test_saves_a_file_that_is_the_machine_and_keeps_what_is_there(form, tmp_path):
    form.set("cube.ucie.port_ns", "4")
    path = form.save(tmp_path / "topology.yaml")
    assert kb.load(path).hash == form.machine.hash
    assert yaml.safe_load(machine_yaml(form.machine))["cube"]["ucie"]["port_ns"] == 4
    with pytest.raises(ConfigError, match="is there already"):
        form.save(path)
    with pytest.raises(HostError, match="cannot be written"):
        form.save(tmp_path / "none" / "topology.yaml")


def test_a_wrong_machine_is_not_saved(form, tmp_path):
    form.set("cube.ucie.port_ns", "-4")
    with pytest.raises(ConfigError, match=r"port_ns = -4.0 must be >= 0"):
        form.save(tmp_path / "topology.yaml")
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_leaves_the_form_as_it_was(form, tmp_path):
    with pytest.raises(ConfigError):
        form.load(tmp_path / "none.yaml")
    assert form.machine.source == "preset:small"


def test_a_page_loads_what_it_offers_and_nothing_else(tmp_path):
    form = MachineForm("preset:small", page=True)
    path = tmp_path / "mine.yaml"
    path.write_text("base: small\n")
    for source in (path, str(path), "preset:no_such"):
        with pytest.raises(ConfigError, match=r"a page loads only what it offers: .*preset:small"):
            form.load(source)
    assert form.machine.source == "preset:small"
    form.load("preset:default")
    assert form.machine.source == "preset:default"
    with pytest.raises(ConfigError, match="a page writes no files"):
        form.save(tmp_path / "saved.yaml")
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_changes_no_field_that_names_code_or_a_file():
    form = MachineForm("preset:small", page=True)
    names = [path for path in fields() if path.endswith((".impl", ".table"))]
    assert "cube.pe.pe_gemm.table" in names
    for path in names:
        with pytest.raises(ConfigError, match="it names code"):
            form.set(path, "os:system")
        with pytest.raises(ConfigError, match="or a file of the server"):
            form.set(path, "/etc/hostname")
    assert set(form.fields()) == set(fields()) - set(names)
    assert form.set("cube.ucie.port_ns", "4")


def test_begins_with_presets_and_the_nearest_file(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert list(MachineForm.sources()) == [f"preset:{name}" for name in config.presets()]
    form.save("topology.yaml")
    assert MachineForm.sources()["file topology.yaml"] == str(tmp_path / "topology.yaml")
