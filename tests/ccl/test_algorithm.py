"""Plans: who takes part, whom each talks to, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.ccl._group import Group
from kernbench.ccl.algorithm import algorithm, devices, plan, plan_group
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.errors import ConfigError
from kernbench.topology.builder import resolve_topology

CUBES = [(cube, 0) for cube in range(16)]
ALL = [(cube, pe) for cube in range(16) for pe in range(8)]


def kernel(t_ptr, n_elem, world_size, *, tl):
    """Do nothing."""


def test_each_shard_has_a_lane_over_the_devices(two_sips):
    found = plan(algorithm(kernel), two_sips, [0, 1], [(0, 0), (3, 5)])
    assert found.world_size == 2
    assert [subgroup.places for subgroup in found.subgroups] == [((0, 0, 0), (1, 0, 0)), ((0, 3, 5), (1, 3, 5))]
    role = found.programs[1, 3, 5]
    assert (role.rank, role.subgroup, role.neighbours["E"]) == (1, 1, ((0, 3, 5), "W"))
    assert set(found.on(1)) == {(0, 0), (3, 5)}


def test_a_slot_above_32_kib_holds_one_message():
    def options(found, slot_bytes, **stated):
        machine = resolve_topology("preset:default", {"cube.pe.pe_ipcq.slot_bytes": slot_bytes}).config
        return replace(found, options=stated).on(machine).options

    ring = resolve_algorithm_config("ring_allreduce_tcm")
    assert options(ring, 32768) == {}
    assert options(ring, 65536) == {"chunk_bytes": 65536}
    assert options(ring, 65536, chunk_bytes=4096) == {"chunk_bytes": 4096}
    assert options(algorithm(kernel), 65536) == {}  # its arguments have no size of a message


def test_the_bytes_of_a_call_choose_its_protocol():
    at = "cube.pe.pe_ipcq."
    machine = resolve_topology(
        "preset:default",
        {f"{at}ll.up_to_bytes": 4096, f"{at}ll128.up_to_bytes": 65536, f"{at}ll.chunk_ns": 7, f"{at}ll128.n_slots": 2,
         f"{at}simple.slot_bytes": 8192, f"{at}simple.channels": 3},
    ).config  # fmt: skip
    ring = resolve_algorithm_config("ring_allreduce_tcm")
    found = {n: ring.on(machine, n) for n in (1, 4096, 4097, 65536, 65537)}
    assert [each.protocol for each in found.values()] == ["ll", "ll", "ll128", "ll128", "simple"]
    assert ring.on(machine).protocol == "simple"
    assert [(a.sends_by.chunk_ns, a.n_slots, a.slot_size, a.channels) for a in found.values()][1::2] == [
        (7, 4, 4096, 1), (0, 2, 4096, 1)
    ]  # fmt: skip
    assert (found[65537].slot_size, found[65537].channels) == (8192, 3)
    # What an algorithm states itself holds for all protocols; ccl.yaml may replace one.
    assert replace(ring, n_slots=5, channels=2).on(machine, 4097).n_slots == 5
    ours = resolve_algorithm_config("ring_allreduce_tcm", {"defaults": {"ll": {"up_to_bytes": 8192, "start_ns": 9}}})
    assert (ours.on(machine, 8192).sends_by.start_ns, ours.on(machine, 8193).protocol) == (9, "ll128")


def test_ranks_follow_the_order_of_the_devices(six_sips):
    found = plan(algorithm(kernel), six_sips, [4, 1, 2], [(0, 0)])
    assert found.sips == (4, 1, 2)
    assert found.programs[4, 0, 0].neighbours["E"] == ((1, 0, 0), "W")


@pytest.mark.parametrize(
    ("mapper", "places", "world", "subgroups"),
    [("leader_only", ALL, 2, 1), ("by_shard", ALL, 2, 128), ("by_cube", ALL, 32, 8), ("by_cube", CUBES, 32, 1),
     ("all_pes", ALL, 256, 1)],
)  # fmt: skip
def test_what_mappers_count(two_sips, mapper, places, world, subgroups):
    found = plan(algorithm(kernel, topology="none", mapper=mapper), two_sips, [0, 1], places)
    assert (found.world_size, len(found.subgroups), len(found.programs)) == (world, subgroups, world * subgroups)
    for number, subgroup in enumerate(found.subgroups):
        assert [found.programs[place].rank for place in subgroup.places] == list(range(world))
        assert {found.programs[place].subgroup for place in subgroup.places} == {number}


def test_the_machine_file_gives_the_rings_that_an_algorithm_leaves_to_it(two_sips):
    rings = [
        (p.algorithm.n_slots, p.algorithm.slot_size, p.algorithm.credit_bytes)
        for p in (plan(algorithm(kernel, **own), two_sips, [0, 1], [(0, 0)]) for own in ({}, {"n_slots": 9}))
    ]
    assert rings == [(4, 4096, 16), (9, 4096, 16)]


def refusal(*args, **settings) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(algorithm(kernel, **settings), *args)
    return str(caught.value)


def test_more_participants_than_the_machine_has_are_refused(two_sips):
    assert "world_size = 7, but 2 take part" in refusal(two_sips, [0, 1], [(0, 0)], world_size=7)
    assert "the machine has 2 SIPs, 0 to 1" in refusal(two_sips, range(7), [(0, 0)], world_size=7)


def test_an_algorithm_runs_on_the_first_devices_that_make_up_its_world(six_sips):
    mine = algorithm(kernel, topology="none", mapper="by_cube", world_size=48)
    assert devices(mine, six_sips, CUBES) == range(3)
    assert devices(algorithm(kernel), six_sips, CUBES) == range(6)
    for wrong in (40, 112):
        with pytest.raises(
            ConfigError, match=f"world_size = {wrong} is not available: the machine has 6 SIPs, with 16"
        ):
            devices(replace(mine, world_size=wrong), six_sips, CUBES)


def test_places_that_the_machine_does_not_have_are_refused(two_sips):
    assert "has no PE 8 of cube 0" in refusal(two_sips, [0, 1], [(0, 8)])
    assert "devices [0, 0] are not a group" in refusal(two_sips, [0, 0], [(0, 0)])


def test_single_shard_per_rank(two_sips):
    one = {"validator": "single_shard_per_rank", "mapper": "leader_only"}
    assert "SIP 0 has 16" in refusal(two_sips, [0, 1], CUBES, **one)
    assert "the tensor is empty" in refusal(two_sips, [0, 1], [], **one)
    # Each device may hold it where it likes.
    found = plan(algorithm(kernel, **one), two_sips, [0, 1], {0: [(0, 0)], 1: [(5, 3)]})
    assert found.programs[0, 0, 0].neighbours["E"] == ((1, 5, 3), "W")


def test_multi_pe_sip_local(two_sips):
    said = refusal(two_sips, [0, 1], {0: [(0, 0)], 1: [(5, 3)]})
    assert "algorithm 'kernel': it takes shards on the same PEs of each device, and SIP 1" in said
    assert "use the same DPPolicy" in said


def test_a_graph_with_one_ended_queues_is_refused(two_sips):
    def broken(subgroup):
        return [{"E": (1, "W")}, {"W": (0, "N")}]

    assert "'E' of PE (0, 0, 0) leads to 'W' of (1, 0, 0)" in refusal(two_sips, [0, 1], [(0, 0)], topology=broken)


def test_kernel_args_get_what_they_name():
    def kernel_args(*, n_elem, world_size, cube_w, root_cube, op="sum", twist=0):
        return n_elem, world_size, cube_w, root_cube, op, twist

    settings = {"topology": "intercube", "mapper": "by_cube", "root_cube": "centre", "options": {"twist": 2}}
    mine = algorithm(kernel, kernel_args, **settings)
    found = plan_group(mine, Group.line(2, [(cube, 0) for cube in range(6)], 3))
    assert found.args((1, 2, 0), 77, op="max") == (77, 12, 3, 4, "max", 2)
    with pytest.raises(ConfigError, match=r"takes no option 'twits'; did you mean twist\? known: op, twist"):
        found.args((1, 2, 0), 77, twits=1)
    with pytest.raises(ConfigError, match="takes no option 'cube_w'"):
        found.args((1, 2, 0), 77, cube_w=2)


def test_an_option_that_nobody_gives_is_missing():
    def kernel_args(*, n_elem, world_size, depth):
        return n_elem, depth

    found = plan_group(algorithm(kernel, kernel_args), Group.line(2))
    assert found.args((0, 0, 0), 5, depth=3) == (5, 3)
    with pytest.raises(ConfigError, match="'kernel': its kernel_args asks for 'depth', which is not given"):
        found.args((0, 0, 0), 5)


def test_kernel_args_may_take_every_option():
    mine = algorithm(kernel, lambda *, n_elem, world_size, **options: (n_elem, options), options={"a": 1})
    assert plan_group(mine, Group.line(3)).args((0, 0, 0), 5, op="max") == (5, {"a": 1, "op": "max"})


def test_a_plan_says_what_it_is(two_sips):
    assert repr(plan(algorithm(kernel), two_sips, [0, 1], CUBES)) == (
        "<Plan of kernel: all_reduce, 2 participants in each of 16 subgroups, SIPs [0, 1]>"
    )
