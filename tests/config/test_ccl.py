"""ccl.yaml is read and refused as machine files are."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from kernbench import config
from kernbench.errors import ConfigError

DEFAULT = config.load_yaml(config.default_ccl_path())
ROOT = Path(__file__).parents[2]

SIZES = ("n_slots", "slot_size", "ipcq_credit_size_bytes", "world_size")
DEFAULT_KEYS = (*SIZES, "algorithm", "buffer_kind", "backpressure", "vc_chunk_size", "n_elem", "root_cube")


def with_defaults(**changes) -> dict:
    content = copy.deepcopy(DEFAULT)
    content["defaults"] |= changes
    return content


def with_entry(**changes) -> dict:
    """Return the packaged content, with one more entry `mine` like a ring's but for some keys; None takes one away."""
    content = copy.deepcopy(DEFAULT)
    entry = content["algorithms"]["ring_allreduce_tcm"] | changes
    content["algorithms"]["mine"] = {key: value for key, value in entry.items() if value is not None}
    return content


def faults(content) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.read_ccl(content)
    return [line.removeprefix("ccl: ") for line in caught.value.faults]


def test_the_packaged_file():
    packaged = config.read_ccl(config.default_ccl_path())
    defaults = packaged.defaults
    assert (defaults.algorithm, defaults.buffer_kind, defaults.vc_chunk_size) == ("auto", "tcm", 256)
    assert (defaults.n_slots, defaults.slot_size, defaults.ipcq_credit_size_bytes) == (None, None, None)
    named = {"intercube_allreduce", "ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_sram",
             "mesh_allreduce_4", "tree_allreduce_7", "hierarchical_allreduce"}  # fmt: skip
    assert named <= set(packaged.algorithms)
    assert {entry.collective for entry in packaged.algorithms.values()} == set(config.COLLECTIVES)


def test_the_file_of_the_repository_is_the_packaged_one():
    assert (ROOT / "ccl.yaml").read_text() == config.default_ccl_path().read_text()


def test_an_entry_stands_over_the_defaults():
    content = with_entry(buffer_kind="hbm", world_size=5)
    content["defaults"] |= {"n_slots": 8, "world_size": 3}
    read = config.read_ccl(content)
    keys = ("buffer_kind", "n_slots", "slot_size", "world_size", "backpressure")
    assert [read.setting("mine", key) for key in keys] == ["hbm", 8, None, 5, "credit"]


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_kinds_of_rings(kind):
    assert config.read_ccl(with_defaults(buffer_kind=kind)).defaults.buffer_kind == kind


def test_all_faults_of_the_defaults_at_once():
    content = with_defaults(n_slots=0, buffer_kind="tmc", slots=4, backpressure="none", slot_size="4096", root_cube=-1)
    del content["defaults"]["vc_chunk_size"]
    assert sorted(faults(content)) == [
        "defaults.backpressure = 'none' must be credit",
        "defaults.buffer_kind = 'tmc' is unknown; did you mean tcm? known: tcm, sram, hbm",
        "defaults.n_slots = 0 must be >= 1",
        "defaults.root_cube = -1 must be corner, centre, or the number of a cube",
        "defaults.slot_size = '4096' must be a plain number, not text [B]",
        f"defaults.slots is unknown; did you mean n_slots? known: {', '.join(DEFAULT_KEYS)}",
        "defaults.vc_chunk_size is missing; add it; the packaged default has 256 [B]",
    ]


def test_all_faults_of_an_entry_at_once():
    content = with_entry(
        topology="ring1d", mapper="leaders", validator=None, n_slot=3, module="a/b.py", world_size=0, contribution="sip"
    )
    found = faults(content)
    assert [line.partition(";")[0] for line in found] == [
        "algorithms.mine.validator is missing",
        "algorithms.mine.module = 'a/b.py' must be the dotted path of a module, as in kernbench.ccl.algorithms.ring",
        "algorithms.mine.topology = 'ring1d' is no topology of participants",
        "algorithms.mine.mapper = 'leaders' is no mapper",
        "algorithms.mine.n_slot is unknown",
        "algorithms.mine.world_size = 0 must be >= 1",
        "algorithms.mine.contribution = 'sip' is unknown",
    ]
    assert "did you mean ring_1d? known: " in found[2]
    assert "did you mean n_slots? known: " in found[4]


def test_faults_of_several_entries_and_of_the_choice():
    content = with_defaults(algorithm="ring_allreduce_tmc")
    content["algorithms"]["mine"] = 3
    content["algorithms"]["auto"] = content["algorithms"]["ring_allreduce_tcm"]
    keys = ", ".join(config.CclEntry.model_fields)
    found = faults(content)
    assert "did you mean ring_allreduce_tcm? known: auto, " in found[0]
    assert found[1:] == [
        f"algorithms.mine = 3 must be a group of keys: {keys}",
        "algorithms.auto: the name is taken, it means the best for each call; choose another",
    ]


def test_dotted_paths_stand_for_names():
    mine = {"topology": "my.graphs:star", "mapper": "my.graphs:odd_cubes", "validator": "my.graphs:any"}
    assert config.read_ccl(with_entry(**mine)).algorithms["mine"].topology == "my.graphs:star"


def test_faults_of_a_file_carry_its_name(tmp_path):
    path = tmp_path / "ccl.yaml"
    path.write_text("default: {}\n")
    with pytest.raises(ConfigError) as caught:
        config.read_ccl(path)
    assert [line.partition(";")[0] for line in caught.value.faults] == [
        "ccl.yaml: defaults is missing",
        "ccl.yaml: algorithms is missing",
        "ccl.yaml: default is unknown",
    ]
