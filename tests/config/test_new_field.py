"""A key that is added to the schema, and nowhere else, is known to all that read machine files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from kernbench.analysis._critical_path import _BECAUSE, _ENDS
from kernbench.analysis._resources import LINKS, RESOURCES
from kernbench.config._kinds import DURATION
from kernbench.config._schema import machine_keys, settings
from kernbench.topology.builder import resolve_topology
from kernbench.viz._machine_layout import _LABELS
from tests.repo import PACKAGE

KEY = "cube.noc.lanes_in_use"
GROUP = '    """The router mesh of a cube."""\n'
DESCRIBED = (
    '    lanes_in_use: Share = rate("Lanes of NoC links", "Share of lanes in use", sets="mesh link",'
    ' parts=("sram",), default=1.0)\n'
)
# What a copy of the package with this key says of it.
ASKED = f"""
import json
import kernbench as kb
from kernbench.analysis._what_if._predictions import tornado_of
from kernbench.errors import ConfigError
from kernbench.notebook._machine_form import MachineForm, field_groups
from kernbench.sweeps.sensitivity import sensitivity_plan
from kernbench.viz._fields import fields
from kernbench.viz._machine_layout import machine_section

KEY, LINKS = {KEY!r}, "cube.noc.link_bw_gbs"

def study(machine, size=1):
    return {{"size": size}}

def kernel(x, *, tl):
    tl.load(x, shape=(32, 32), dtype="f16")

def refused(call, *args, **more):
    try:
        call(*args, **more)
    except ConfigError as error:
        return str(error)

for value in (0.5, 1.5):
    with open(f"share_{{value}}.yaml", "w") as file:
        file.write(f"base: small\\ncube: {{{{noc: {{{{lanes_in_use: {{value}}}}}}}}}}\\n")
machine, given = kb.load("preset:small"), kb.load("share_0.5.yaml")
form = MachineForm(machine)
with kb.session(machine, data=True) as torch:
    torch.launch("load", kernel, torch.ones(32, 32, dtype=torch.float16, device="ahbm"))
result = torch.result
(reason,) = [x for x in result.why() if x.what == "mesh link" and x.host]
picture = machine_section(given)
print(json.dumps({{
    "kernbench": kb.__file__,
    "spec": [x.spec["cube"]["noc"]["lanes_in_use"] for x in (machine, given)],
    "hashes": [machine.hash, given.hash],
    "refused": refused(kb.load, "share_1.5.yaml"),
    "stops": fields()[KEY].stops(1.0)[-2:],
    "group": [name for name, members in field_groups().items() if fields()[KEY] in members],
    "form": [form.text(KEY), form.set(KEY, "0.5"), form.machine.hash, form.set(KEY, "1.5"), form.wrong],
    "why": [reason.fields, reason.advice()],
    "what_if": [result.what_if([f"{{field}}={{value}}"]).predicted_ns for field, value in ((KEY, 0.5), (LINKS, 128))],
    "now": result.latency_ns,
    "tornado": [field for field, _ in tornado_of(result.records).rows],
    "picture": picture["fields"][KEY],
    "kinds": [kind for kind, shown in picture["kinds"].items() if KEY in shown["fields"]],
    "sensitivity": [point.machine.spec["cube"]["noc"]["lanes_in_use"]
                    for point in sensitivity_plan(given, study, [KEY]).points],
}}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "kernbench", ignore=shutil.ignore_patterns("__pycache__"))
    schema = folder / "kernbench" / "config" / "_schema.py"
    text = schema.read_text(encoding="utf-8")
    assert text.count(GROUP) == 1
    schema.write_text(text.replace(GROUP, GROUP + DESCRIBED), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], cwd=folder, env=env, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kernbench"].startswith(str(folder))
    return found


def test_a_file_may_state_it_and_has_its_default_otherwise(said):
    assert said["spec"] == [1.0, 0.5]
    plain, given = said["hashes"]
    assert plain == resolve_topology("preset:small").hash != given  # with its default it changes no hash
    assert said["refused"].startswith(f"share_1.5.yaml: {KEY} = 1.5 must be <= 1")


def test_the_form_of_the_explorer_has_it(said):
    assert said["group"] == ["Network on chip"]
    assert said["stops"] == [0.95, 1.0]
    text, valid, machine, too_much, wrong = said["form"]
    assert (text, valid, too_much) == ("1.0", True, False)
    assert machine == said["hashes"][1]
    assert wrong == {KEY: f"{KEY} = 1.5 must be <= 1"}


def test_why_suggests_it_for_the_resource_that_it_sets(said):
    fields, advice = said["why"]
    assert set(fields) == {KEY, "cube.noc.link_bw_gbs"}
    assert advice.startswith("raise ")
    assert KEY in advice


def test_predictions_and_their_tornado_cover_it(said):
    with_less, with_half_the_bandwidth = said["what_if"]
    assert with_less == with_half_the_bandwidth > said["now"]
    assert KEY in said["tornado"]


def test_the_picture_shows_it_at_its_links_and_parts(said):
    shown = said["picture"]
    assert (shown["label"], shown["description"]) == ("Lanes of NoC links", "Share of lanes in use")
    assert (shown["value"], shown["stops"][-1]) == (0.5, 1.0)
    assert said["kinds"] == ["cube", "sram", "mesh_link"]


def test_a_sensitivity_study_changes_it(said):
    assert said["sensitivity"] == pytest.approx([0.5, 0.4, 0.6])


def test_every_resource_has_the_keys_that_set_it():
    resources = {*RESOURCES.values(), *LINKS.values()}
    named = {name for key in machine_keys() for name in key.sets}
    assert resources <= named
    assert {part for key in machine_keys() for part in key.parts} <= set(_LABELS)
    # Limits are what steps began with; no resource is called like one, or `why` would list it among them.
    begun = {*_BECAUSE.values(), *_ENDS.values(), "a full buffer behind"}
    assert named - resources <= begun
    assert not resources & begun


def test_a_prediction_knows_one_latency_of_each_link_and_component():
    several = {name for name in (*RESOURCES.values(), *LINKS.values()) if len(settings(name, DURATION)) > 1}
    assert several == {"host, start of launches", "start of a protocol"}  # which predictions leave out
