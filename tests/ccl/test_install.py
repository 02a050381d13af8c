"""Algorithms by name, by path and as functions."""

from __future__ import annotations

import copy
import sys
from types import ModuleType

import numpy as np
import pytest

from kernbench import config
from kernbench.ccl import install
from kernbench.ccl.algorithm import Algorithm, algorithm, plan
from kernbench.ccl.algorithms import all_reduce
from kernbench.ccl.alpha_beta import Estimate, alpha_beta
from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip, configure_sfr_intracube_pe_ring
from kernbench.ccl.stages import Pairwise, Ring, Tree
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.errors import ConfigError
from kernbench.runtime_api.collective import simulator
from kernbench.topology.builder import resolve_topology

PACKAGED = config.read_ccl(config.default_ccl_path())
CONTENT = config.load_yaml(config.default_ccl_path())


def my_kernel(t_ptr, n_elem, world_size, *, tl):
    """Do nothing."""


@all_reduce()
def my_stages(rank, n):
    return [[Ring(rank, n, "E", "W")]]


def test_settings_of_an_all_reduce_made_of_stages():
    mine = algorithm(my_stages, n_slots=8)
    assert (mine.name, mine.n_slots) == ("my_stages", 8)
    assert mine.cost is my_stages.cost
    tensors = [np.full(6, rank, np.float16) for rank in range(3)]
    run_kernel_in_mock(mine, tensors)
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 6] * 3


@all_reduce()
def ring_with_a_default(rank, n, w=3):
    assert w in (3, 5)
    return [[Ring(rank, n, "E", "W")]]


@all_reduce(both_ways=True)
def tree_both_ways(rank, n):
    return [[Ring(rank % 2, 2, "E", "W"), Tree("N" if rank > 1 else None, ["S"] if rank < 2 else [], rank // 2)]]


@all_reduce(both_ways=True)
def opposite_rings(rank, n):
    return [[Ring(rank, n, "E", "W")], [Ring(rank, n, "E", "W").reversed]]


def test_a_stage_function_may_have_defaults():
    assert ring_with_a_default.kernel_args(n_elem=6, world_size=3)[-1] == 3
    assert ring_with_a_default.kernel_args(n_elem=6, world_size=3, w=5)[-1] == 5
    tensors = [np.full(6, rank, np.float16) for rank in range(3)]
    run_kernel_in_mock(ring_with_a_default, tensors)
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 6] * 3
    machine = resolve_topology("preset:six_sip_torus")
    found = plan(algorithm(ring_with_a_default), machine.config, range(6), [(0, 0)])
    assert Estimate(found, alpha_beta(machine, simulator(machine))).ns(1 << 10) > 0


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (tree_both_ways, r"'tree_both_ways': both_ways reverses its stages, which must all be rings, but one is Tree"),
        (opposite_rings, r"'opposite_rings': two of its streams receive from queue 'E'; give every stream queues"),
    ],
)
def test_streams_that_cannot_run_side_by_side_are_refused(stages, message):
    with pytest.raises(Exception, match=message):
        run_kernel_in_mock(algorithm(stages, topology="torus_2d"), [np.zeros(8, np.float16) for _ in range(4)])


def test_a_stage_is_hashable_whatever_holds_its_queues():
    assert hash(Tree(None, ["S", "E"], 0)) == hash(Tree(None, ("S", "E"), 0))
    assert hash(Pairwise(3, ["to1", "to2"])) == hash(Pairwise(3, ("to1", "to2")))


MINE = algorithm(my_kernel, name="from a path", topology="tree_binary")


@pytest.mark.parametrize("name", PACKAGED.algorithms)
def test_every_packaged_entry_is_an_algorithm(name):
    found = install.resolve_algorithm_config(name, PACKAGED)
    entry = PACKAGED.algorithms[name]
    assert (found.name, found.collective, found.contribution) == (name, entry.collective, entry.contribution)
    assert found.topology.__name__ == entry.topology.rpartition(":")[2]


def test_the_nearest_file_is_read(tmp_path, monkeypatch):
    content = copy.deepcopy(CONTENT)
    content["defaults"] |= {"n_slots": 32, "algorithm": "ring_allreduce_hbm"}
    (tmp_path / "ccl.yaml").write_text(
        config.default_ccl_path().read_text().replace("  # n_slots: 4  ", "  n_slots: 32  ")
    )
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert install.load_ccl_config().defaults.n_slots == 32
    assert install.resolve_algorithm_config("ring_allreduce_hbm").n_slots == 32
    assert install.resolve_algorithm_config(config=content).name == "ring_allreduce_hbm"


def test_the_machine_fills_in_what_the_file_leaves_out(two_sips):
    found = install.resolve_algorithm_config("ring_allreduce_sram", PACKAGED, two_sips)
    assert (found.buffer_kind, found.n_slots, found.slot_size, found.credit_bytes) == ("sram", 4, 4096, 16)
    assert install.resolve_algorithm_config("ring_allreduce_sram", PACKAGED).n_slots is None


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"'ring_allreduce_tmc' is unknown; did you mean ring_allreduce_tcm\? known: "
    ):
        install.resolve_algorithm_config("ring_allreduce_tmc", PACKAGED)


def test_auto_is_the_tuner_s_to_say():
    with pytest.raises(ConfigError, match="the tuner says which"):
        install.resolve_algorithm_config(config=PACKAGED)


def test_entries_by_what_they_do():
    assert "intercube_allreduce" in install.names(PACKAGED, "all_reduce", "cube")
    assert "intercube_allreduce" not in install.names(PACKAGED, "all_reduce", "rank")
    assert install.names(PACKAGED, "barrier") == ["tree_barrier"]


def test_a_module_of_ones_own(monkeypatch):
    mine = ModuleType("my_star")
    mine.kernel, mine.kernel_args = my_kernel, lambda *, n_elem, world_size: (n_elem, world_size)
    monkeypatch.setitem(sys.modules, "my_star", mine)
    content = copy.deepcopy(CONTENT)
    content["algorithms"]["star"] = content["algorithms"]["tree_allreduce"] | {"module": "my_star"}
    mine.cost = "an attribute with another meaning"
    star = install.resolve_algorithm_config("star", content)
    assert star.kernel is my_kernel
    assert star.cost is None
    assert install.resolve_algorithm_config(mine).name == "my_star"
    del mine.kernel_args
    with pytest.raises(ConfigError, match=r"algorithms.star.module = 'my_star': the module has no kernel_args"):
        install.resolve_algorithm_config("star", content)


TWO_RINGS = """
from kernbench.ccl.algorithms import all_reduce
from kernbench.ccl.stages import Pairwise, Ring, Tree

@all_reduce(both_ways=False)
def one_ring(rank, n):
    return [[Ring(rank, n, "E", "W")]]
"""


def test_an_all_reduce_of_a_few_lines(tmp_path, monkeypatch):
    """It is checked without running it, has the options of a ring, takes as long, and has a closed form."""
    (tmp_path / "my_stages.py").write_text(TWO_RINGS)
    monkeypatch.syspath_prepend(tmp_path)
    content = copy.deepcopy(CONTENT)
    ring = content["algorithms"]["ring_allreduce_tcm"]
    content["algorithms"]["mine"] = ring | {"module": "my_stages.one_ring", "options": {"both_ways": True}}
    content["algorithms"]["theirs"] = ring | {"options": {"both_ways": True}}
    ccl = install.load_ccl_config(content)
    assert "my_stages" not in sys.modules
    machine = resolve_topology("preset:six_sip_torus")
    mine, theirs = (
        plan(install.resolve_algorithm_config(name, ccl), machine.config, range(6), [(0, 0)])
        for name in ("mine", "theirs")
    )
    model = alpha_beta(machine, simulator(machine))
    for nbytes in (64, 1 << 20):
        assert Estimate(mine, model).ns(nbytes) == Estimate(theirs, model).ns(nbytes) > 0
    x = [np.full(7, rank, np.float16) for rank in range(6)]
    run_kernel_in_mock(mine, x)
    assert all((v == 15).all() for v in x)
    assert install.load_ccl_config(content).algorithms["mine"] == ccl.algorithms["mine"]  # imported by now
    content["algorithms"]["mine"]["options"] = {"both_way": True}
    with pytest.raises(ConfigError, match=r"is not an option of my_stages.one_ring; did you mean both_ways"):
        install.load_ccl_config(content)
    content["algorithms"]["mine"] = ring | {"module": "my_stages.two_rings"}
    with pytest.raises(
        ConfigError, match=r"module = 'my_stages.two_rings' cannot be imported: my_stages has no 'two_rings';"
    ):
        install.load_ccl_config(content)


def test_a_module_that_is_not_there():
    content = copy.deepcopy(CONTENT)
    content["algorithms"]["star"] = content["algorithms"]["tree_allreduce"] | {"module": "no_such.star"}
    with pytest.raises(ConfigError, match=r"module = 'no_such.star' cannot be imported.*Python path"):
        install.resolve_algorithm_config("star", content)


def test_the_file_has_to_fit_the_machine(two_sips):
    content = copy.deepcopy(CONTENT)
    content["algorithms"]["intercube_allreduce"]["root_cube"] = 16
    for read in (content, install.load_ccl_config(content)):
        assert install.resolve_algorithm_config("intercube_allreduce", read).root_cube == 16
        with pytest.raises(ConfigError, match=r"algorithms.intercube_allreduce.root_cube = 16 must be < 16"):
            install.resolve_algorithm_config("ring_allreduce_tcm", read, two_sips)


def test_a_kernel_an_algorithm_and_a_path():
    assert install.resolve_algorithm_config(my_kernel) == algorithm(my_kernel)
    assert install.resolve_algorithm_config(MINE) is MINE
    assert install.resolve_algorithm_config(f"{__name__}:MINE") is MINE
    assert install.resolve_algorithm_config(f"{__name__}:my_kernel").name == "my_kernel"
    with pytest.raises(ConfigError, match="3 is not an algorithm"):
        install.resolve_algorithm_config(3)


@pytest.mark.parametrize(
    ("setting", "said"),
    [({"buffer_kind": "tmc"}, "buffer_kind = 'tmc' is unknown; did you mean tcm"),
     ({"contribution": "sip"}, "contribution = 'sip' is unknown; known: rank, cube, pe"),
     ({"slot_size": 0}, "slot_size = 0 must be a whole number >= 1"),
     ({"world_size": 2.5}, "world_size = 2.5 must be a whole number >= 1")],
)  # fmt: skip
def test_an_algorithm_of_ones_own_is_checked_where_it_is_made(setting, said):
    with pytest.raises(ConfigError, match=f"algorithm 'my_kernel': {said}"):
        algorithm(my_kernel, **setting)


def test_an_unknown_setting_lists_the_known_ones():
    with pytest.raises(TypeError, match=r"'slots' is not a setting; did you mean n_slots\?"):
        algorithm(lambda t_ptr, n, world, *, tl: None, slots=4)


def test_the_wiring_of_cubes_and_devices_is_that_of_the_plan(six_sips):
    cubes = [(cube, 0) for cube in range(16)]
    planned = plan(_over_cubes(), six_sips, range(6), cubes)
    assert configure_sfr_intercube_multisip(six_sips) == {
        place: role.neighbours for place, role in planned.programs.items()
    }
    assert len(configure_sfr_intercube_multisip(six_sips, sips=[0, 1], pes=[0, 3])) == 64


def _over_cubes() -> Algorithm:
    return algorithm(my_kernel, topology="intercube", mapper="by_cube", root_cube="centre")


def test_the_wiring_of_a_cube_s_pes(two_sips):
    wiring = configure_sfr_intracube_pe_ring(two_sips, sips=[1], cubes=[5])
    assert len(wiring) == 8
    assert wiring[1, 5, 7] == {"local_E": ((1, 5, 0), "local_W"), "local_W": ((1, 5, 6), "local_E")}
