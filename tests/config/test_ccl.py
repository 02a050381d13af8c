"""ccl.yaml is read and refused as machine files are."""

from __future__ import annotations

import copy
import sys

import pytest

from kernbench import config
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.config import _kinds
from kernbench.errors import ConfigError

DEFAULT = config.load_yaml(config.default_ccl_path())

SIZES = ("n_slots", "slot_size", "ipcq_credit_size_bytes", "channels", "ll", "ll128", "simple", "world_size")
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
    assert sorted(faults(content)) == [
        "defaults.backpressure = 'none' must be credit",
        "defaults.buffer_kind = 'tmc' is unknown; did you mean tcm? known: tcm, sram, hbm",
        "defaults.n_slots = 0 must be >= 1",
        "defaults.root_cube = -1 must be corner, centre, or the number of a cube",
        "defaults.slot_size = '4096' must be a plain number, not text [B]",
        f"defaults.slots is unknown; did you mean n_slots? known: {', '.join(DEFAULT_KEYS)}",
    ]


def test_all_faults_of_an_entry_at_once():
    content = with_entry(
        topology="ring1d", mapper="leaders", n_slot=3, module="a/b.py", world_size=0, contribution="sip"
    )
    found = faults(content)
    assert [line.partition(";")[0] for line in found] == [
        "algorithms.mine.module = 'a/b.py' must be the dotted path of a module, as in kernbench.ccl.algorithms.ring",
        "algorithms.mine.topology = 'ring1d' is not a topology of participants",
        "algorithms.mine.mapper = 'leaders' is not a mapper",
        "algorithms.mine.n_slot is unknown",
        "algorithms.mine.world_size = 0 must be >= 1",
        "algorithms.mine.contribution = 'sip' is unknown",
    ]
    assert "did you mean ring_1d? known: " in found[1]
    assert "did you mean n_slots? known: " in found[3]


def test_faults_of_several_entries_and_of_the_choice():
    content = with_defaults(algorithm="ring_allreduce_tmc")
    content["algorithms"]["mine"] = 3
    content["algorithms"]["auto"] = content["algorithms"]["ring_allreduce_tcm"]
    keys = ", ".join(_kinds.keys(config.CclEntry))
    found = faults(content)
    assert "did you mean ring_allreduce_tcm? known: auto, " in found[0]
    assert found[1:] == [
        f"algorithms.mine = 3 must be a group of keys: {keys}",
        "algorithms.auto: the name is taken, it means the best for each call; choose another",
    ]


def test_dotted_paths_stand_for_names():
    mine = {"topology": f"{__name__}:star", "mapper": f"{__name__}:star", "validator": f"{__name__}:star"}
    assert config.read_ccl(with_entry(**mine)).algorithms["mine"].topology == f"{__name__}:star"


def star(lane):
    """Stand for a function of the user's own."""


def test_what_is_named_in_python_has_to_be_there(tmp_path, monkeypatch):
    (tmp_path / "my_broken.py").write_text("def kernel(:\n")
    (tmp_path / "my_empty.py").write_text("def kernel(t_ptr, *, tl): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    holds = "it has to define kernel(t_ptr, ..., *, tl) and kernel_args(*, n_elem, world_size)"
    cannot = "correct it, or put it on the Python path"
    for key, value, said in [
        ("module", "no_such.ring", f"cannot be imported: ModuleNotFoundError: No module named 'no_such'; {cannot}"),
        ("module", "my_broken", f"cannot be imported: SyntaxError: invalid syntax (<unknown>, line 1); {cannot}"),
        ("topology", "no_such:star", f"cannot be imported: ModuleNotFoundError: No module named 'no_such'; {cannot}"),
    ]:
        assert faults(with_entry(**{key: value})) == [f"algorithms.mine.{key} = {value!r} {said}"]
    assert faults(with_entry(module="my_empty", mapper=f"{__name__}:stars")) == [
        f"algorithms.mine.module = 'my_empty': the module has no kernel_args; {holds}",
        f"algorithms.mine.mapper = '{__name__}:stars': the module has no stars; it has to define a function stars",
    ]


def test_a_module_that_a_file_names_is_not_run(tmp_path, monkeypatch):
    package = tmp_path / "colleague"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('run')\n")
    (package / "ring.py").write_text(
        "raise SystemExit('run')\nfrom colleague.base import args as kernel_args\n"
        "if 1:\n    def kernel(t_ptr, *, tl): ...\n"
    )
    (package / "base.py").write_text("import sys\nsys.exit('run')\ndef args(*, n_elem, world_size, row=1): ...\n")
    (package / "free.py").write_text("from no_such import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    read = config.read_ccl(with_entry(module="colleague.ring", topology="colleague.base:args", options={"row": 2}))
    assert read.algorithms["mine"].options == {"row": 2}
    config.read_ccl(with_entry(module="colleague.free", options={"anything": 2}))
    assert faults(with_entry(module="colleague.ring", mapper="colleague.ring:heads", options={"rows": 2})) == [
        "algorithms.mine.mapper = 'colleague.ring:heads': the module has no heads; it has to define a function heads",
        "algorithms.mine.options.rows = 2 is not an option of colleague.ring; did you mean row? known: row",
    ]
    assert not [name for name in sys.modules if name.startswith("colleague")]
    with pytest.raises(ConfigError, match=r"module 'colleague.ring' cannot be imported"):
        resolve_algorithm_config("mine", with_entry(module="colleague.ring"))


TORUS = {"module": "kernbench.ccl.algorithms.torus_2d", "topology": "torus_2d"}


def test_options_are_those_of_the_module():
    right = with_entry(
        **TORUS, options={"both_ways": False, "chunk_bytes": 512, "grid_w": 3, "grid_h": 2}, world_size=6
    )
    assert config.read_ccl(right).algorithms["mine"].options["grid_w"] == 3
    module, known = TORUS["module"], "op, row, chunk_bytes, both_ways, grid_w, grid_h"
    assert faults(with_entry(**TORUS, options={"both_way": True, "sip_w": 2, "root_cube": 1})) == [
        f"algorithms.mine.options.both_way = True is not an option of {module}; did you mean both_ways? known: {known}",
        "algorithms.mine.options.sip_w = 2 is the machine's to say; leave it out",
        "algorithms.mine.options.root_cube = 1 is a key of the entry; write it next to options, not in it",
    ]
    ring, known = "is not an option of kernbench.ccl.algorithms.ring", "known: op, row, chunk_bytes, both_ways"
    assert faults(with_entry(options={"grid_w": 3, "grid_h": 2})) == [
        f"algorithms.mine.options.grid_w = 3 {ring}; {known}",
        f"algorithms.mine.options.grid_h = 2 {ring}; {known}",
    ]


def test_a_grid_has_two_sides_and_as_many_places_as_take_part():
    for options, key, said in [
        ({"grid_w": 3}, "options.grid_w", "= 3 says half of the grid of participants; add grid_h"),
        ({"grid_h": 3}, "options.grid_h", "= 3 says half of the grid of participants; add grid_w"),
        ({"grid_w": 3, "grid_h": 0}, "options.grid_h", "= 0 must be a whole number >= 1"),
        ({"grid_w": "3", "grid_h": 1}, "options.grid_w", "= '3' must be a whole number >= 1"),
        ({"grid_w": 2, "grid_h": 2}, "world_size",
         "= 6, but options.grid_w x grid_h = 2 x 2; make them equal, or leave world_size out"),
    ]:  # fmt: skip
        assert faults(with_entry(**TORUS, options=options, world_size=6)) == [f"algorithms.mine.{key} {said}"]
    assert config.read_ccl(with_entry(**TORUS, options={"grid_w": 2, "grid_h": 2}))


def test_the_default_is_an_all_reduce():
    [said] = faults(with_defaults(algorithm="ring_all_gather"))
    assert said.startswith("defaults.algorithm = 'ring_all_gather' does all_gather, and the default is that of all_red")
    assert "known: auto, intercube_allreduce, " in said
    assert "tree_barrier" not in said
    assert config.read_ccl(with_defaults(algorithm="intercube_allreduce"))


def test_the_root_cube_is_one_of_the_machine(tmp_path):
    machine = config.read_machine(config.preset_path("default"))
    content = with_entry(root_cube=99)
    content["defaults"]["root_cube"] = 16
    assert config.read_ccl(content).algorithms["mine"].root_cube == 99  # some machine may have so many
    for source in (content, config.read_ccl(content)):
        with pytest.raises(ConfigError) as caught:
            config.read_ccl(source, machine)
        assert caught.value.faults == [
            f"ccl: {key}.root_cube = {n} must be < 16, the cubes of a SIP of this machine; name another, or corner or "
            "centre"
            for key, n in (("defaults", 16), ("algorithms.mine", 99))
        ]
    assert config.read_ccl(with_entry(root_cube=15), machine)


def test_faults_of_a_file_carry_its_name(tmp_path):
    path = tmp_path / "ccl.yaml"
    path.write_text("default: {}\nalgorithms: {mine: {module: tests.nothing}}\n")
    with pytest.raises(ConfigError) as caught:
        config.read_ccl(path)
    assert [line.partition(";")[0] for line in caught.value.faults] == [
        "ccl.yaml: default is unknown",
        "ccl.yaml: algorithms.mine.topology is missing",
        "ccl.yaml: algorithms.mine.module = 'tests.nothing' cannot be imported: tests has no 'nothing'",
    ]


# What a file may leave out


def entry(name: str, **changes) -> config.CclEntry:
    return config.read_ccl({"algorithms": {name: changes}}).algorithms[name]


def test_a_file_may_leave_out_whatever_is_packaged():
    packaged = config.read_ccl(config.default_ccl_path())
    assert config.read_ccl({}) == packaged
    for key in DEFAULT["defaults"]:
        content = with_defaults()
        del content["defaults"][key]
        assert config.read_ccl(content) == packaged
    for name, values in DEFAULT["algorithms"].items():
        assert entry(name) == packaged.algorithms[name]
        for key in values:
            content = with_defaults()
            del content["algorithms"][name][key]
            assert config.read_ccl(content) == packaged


def test_what_a_file_states_is_first_and_counts():
    read = config.read_ccl(
        {
            "defaults": {"n_elem": 64},
            "algorithms": {
                "mine": {"module": "kernbench.ccl.algorithms.ring", "topology": "ring_1d", "n_slots": 2},
                "ring_allreduce_hbm": {"n_slots": 3},
            },
        }
    )
    assert list(read.algorithms)[:3] == ["mine", "ring_allreduce_hbm", "intercube_allreduce"]
    assert set(read.algorithms) == {"mine", *DEFAULT["algorithms"]}
    assert (read.defaults.n_elem, read.defaults.root_cube) == (64, "centre")
    mine, hbm = read.algorithms["mine"], read.algorithms["ring_allreduce_hbm"]
    assert (mine.mapper, mine.validator, mine.n_slots, mine.buffer_kind) == ("by_shard", "multi_pe_sip_local", 2, None)
    assert (hbm.module, hbm.n_slots, hbm.buffer_kind) == ("kernbench.ccl.algorithms.ring", 3, "hbm")


def test_an_algorithm_takes_part_as_packaged_under_any_name_of_its_entry():
    found = entry("mine", module="kernbench.ccl.algorithms.intercube", n_elem=8)
    assert (found.topology, found.mapper, found.contribution, found.root_cube) == ("intercube", "by_cube", "cube", None)
    other = entry("intercube_allreduce_corner", module="kernbench.ccl.algorithms.ring")
    assert (other.topology, other.contribution, other.root_cube) == ("ring_1d", "rank", None)


def test_a_file_is_read_as_a_mapping_too():
    read = config.read_ccl({"defaults": {"n_slots": 2}})
    assert list(read) == ["defaults", "algorithms"]
    assert read["defaults"]["n_slots"] == 2
    assert read["defaults"].get("slot_size", 7) == 7
    assert dict(read["algorithms"]["ring_allreduce_hbm"])["buffer_kind"] == "hbm"
    with pytest.raises(KeyError):
        read["algorithms"]["ring_allreduce_hbm"]["n_elem"]


# Files of the reference design

REFERENCE = """
defaults: {algorithm: intercube_allreduce, buffer_kind: sram, backpressure: sleep, n_slots: 4, slot_size: 4096,
           vc_chunk_size: 256, ipcq_credit_size_bytes: 16}
algorithms:
  intercube_allreduce:
    {module: kernbench.ccl.algorithms.intercube_allreduce, topology: none, buffer_kind: hbm, n_elem: 64, root_cube: 5}
  ring_allreduce: {module: kernbench.ccl.algorithms.ring_allreduce, topology: ring_1d, world_size: 2}
  mesh_allreduce: {module: kernbench.ccl.algorithms.mesh_allreduce, topology: mesh_2d}
"""


def test_a_file_of_the_reference_design_loads(tmp_path):
    path = tmp_path / "ccl.yaml"
    path.write_text(REFERENCE)
    with pytest.warns(UserWarning, match="instead") as caught:
        read = config.read_ccl(path)
    asked, topologies = "ccl.yaml: algorithms", "is not that of kernbench.ccl.algorithms"
    assert [str(warning.message) for warning in caught] == [
        "ccl.yaml: defaults.backpressure = sleep is not modelled; credit is used instead",
        f"{asked}.intercube_allreduce.topology = none {topologies}.intercube; intercube is used instead",
        f"{asked}.mesh_allreduce.topology = mesh_2d {topologies}.mesh_2d; mesh_2d_no_wrap is used instead",
    ]
    assert (read.defaults.backpressure, read.defaults.buffer_kind, read.defaults.slot_size) == ("credit", "sram", 4096)
    cubes, ring = read.algorithms["intercube_allreduce"], read.algorithms["ring_allreduce"]
    assert (cubes.module, cubes.buffer_kind, cubes.root_cube) == ("kernbench.ccl.algorithms.intercube", "hbm", 5)
    assert (cubes.contribution, cubes.mapper, cubes.topology) == ("cube", "by_cube", "intercube")
    assert (ring.module, ring.topology, ring.world_size) == ("kernbench.ccl.algorithms.ring", "ring_1d", 2)


def test_what_nobody_knows_is_refused_in_such_a_file_too():
    module = "kernbench.ccl.algorithms.rung"
    content = {"defaults": {"backpressure": "poll", "slots": 4}, "algorithms": {"a": {"module": module}}}
    with pytest.warns(UserWarning, match=r"ccl: defaults.backpressure = poll is not modelled"):
        found = faults(content)
    assert [line.partition(";")[0] for line in found] == [
        "defaults.slots is unknown",
        "algorithms.a.topology is missing",
        f"algorithms.a.module = {module!r} cannot be imported: ImportError: kernbench.ccl.algorithms has no 'rung'",
    ]
