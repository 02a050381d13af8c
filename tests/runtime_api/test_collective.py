"""Collectives of a program that drives every device: queues at first use, and algorithms of one's own."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.install import names, resolve_algorithm_config
from kernbench.ccl.tuner import Tuner
from kernbench.config import default_ccl_path, load_yaml, read_ccl
from kernbench.errors import (
    CollectiveMismatchError,
    ConfigError,
    IpcqDeadlock,
    IpcqInvalidDirection,
    KernelError,
    OutOfMemoryError,
)
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective import run_collective, simulator
from kernbench.runtime_api.context import session
from kernbench.sim_engine._observer import Observer
from kernbench.topology.builder import resolve_topology
from tests.runtime_api.machines import CUBES, PES, small

CCL = read_ccl(default_ccl_path())
OVER_ALL = DPPolicy(cube="row_wise", pe="row_wise")
OVER_CUBES = DPPolicy(cube="row_wise", pe="row_wise", num_pes=1)


@cache
def one_cube(sips: int, topology: str = "ring_1d", reduce: str = "none"):
    """Return SIPs of one cube of one PE."""
    return resolve_topology("preset:default", {
        "system.sips.count": sips, "system.sips.topology": topology, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1,
        "system.sip_switch.reduce": reduce,
    })  # fmt: skip


def pass_east(t_ptr, n_elem, world_size, *, tl):
    """Replace this participant's elements by those of the one before."""
    tl.send("E", t_ptr, shape=n_elem)
    tl.store(t_ptr, tl.recv("W", shape=n_elem))


def of_each_device(torch, shape, dp=None, dtype=None):
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-8, 8, shape).astype(np.float16) for _ in range(torch.ahbm.device_count())]
    return arrays, [torch.tensor(a, device=f"ahbm:{r}", dp=dp) for r, a in enumerate(arrays)]


def installs(torch) -> list[str]:
    return [c.name for c in torch.engine.log.commands if c.name.startswith("install")]


@pytest.mark.parametrize("name", names(CCL, "all_reduce", "rank"))
def test_each_all_reduce_of_ccl_yaml_sums_on_the_machine(name):
    chosen = resolve_algorithm_config(name, CCL)
    network = ("switch", "sum") if name == "switch_allreduce" else ("ring_1d", "none")
    with session(one_cube(chosen.world_size or 4, *network), data=True) as torch:
        arrays, tensors = of_each_device(torch, 37)
        torch.collective(tensors, chosen)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), sum(arrays))


@pytest.mark.parametrize("name", names(CCL, "all_reduce", "cube"))
def test_a_cube_s_shard_is_a_contribution(name):
    with session(small(), data=True) as torch:
        arrays, tensors = of_each_device(torch, (CUBES, 9), OVER_CUBES)
        found = torch.collective(tensors, name, config=CCL)
        assert (found.world_size, len(found.subgroups)) == (2 * CUBES, 1)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), np.tile(sum(a.sum(0) for a in arrays), (CUBES, 1)))
    assert f"all_reduce by {name} over each cube's shard" in repr(torch.result)


def test_a_pe_s_shard_is_a_contribution():
    with session(small(), data=True) as torch:
        arrays, tensors = of_each_device(torch, (CUBES * PES, 5), OVER_ALL)
        torch.collective(tensors, "hierarchical_allreduce", config=CCL)
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), np.tile(sum(a.sum(0) for a in arrays), (CUBES * PES, 1)))


@pytest.mark.parametrize(("name", "dp", "rows"), [
    ("hierarchical_allreduce", OVER_ALL, 2 * CUBES * PES - 1), ("intercube_allreduce", OVER_CUBES, 2 * CUBES - 1),
])  # fmt: skip
def test_shards_of_different_sizes_are_no_terms_of_a_sum(name, dp, rows):
    with session(small()) as torch:
        _, tensors = of_each_device(torch, (rows, 5), dp)
        with pytest.raises(ConfigError, match="have 5 to 10 elements; give the tensor a shape that its DPPolicy"):
            torch.collective(tensors, name, config=CCL)


def test_shards_are_summed_each_with_its_likes():
    with session(small(), data=True) as torch:
        arrays, tensors = of_each_device(torch, (19, 6), DPPolicy(cube="row_wise", pe="column_wise"))
        torch.collective(tensors, "ring_allreduce_sram", config=CCL, op="max")
        for tensor in tensors:
            np.testing.assert_array_equal(tensor.numpy(), np.maximum(*arrays))


def test_a_kernel_of_ones_own():
    with session(one_cube(3), data=True) as torch:
        arrays, tensors = of_each_device(torch, 300)
        assert repr(torch.collective(tensors, pass_east)).startswith("<Plan of pass_east: all_reduce, 3 participants")
        for rank, tensor in enumerate(tensors):
            np.testing.assert_array_equal(tensor.numpy(), arrays[rank - 1])


def test_a_kernel_with_several_tensors_and_arguments_of_ones_own():
    def scaled_copy(src, dst, n, scale, *, tl):
        tl.send("parent" if tl.program_id(2) else "child_left", src, shape=n)
        tl.store(dst, tl.recv(shape=n) * scale)

    def kernel_args(*, n_elem, world_size, scale=1.0):
        return n_elem, scale

    mine = algorithm(scaled_copy, kernel_args, topology="tree_binary", options={"scale": 2.0})
    with session(one_cube(2), data=True) as torch:
        arrays, tensors = of_each_device(torch, 8)
        outs = [torch.zeros(8, dtype=torch.float16, device=f"ahbm:{r}") for r in range(2)]
        pairs = list(zip(tensors, outs, strict=True))
        torch.collective(pairs, mine)
        np.testing.assert_array_equal(outs[0].numpy(), 2 * arrays[1])
        torch.collective(pairs, mine, scale=-1.0)
        np.testing.assert_array_equal(outs[1].numpy(), -arrays[0])


def test_the_devices_may_be_some_in_any_order():
    with session(one_cube(4), data=True) as torch:
        arrays, tensors = of_each_device(torch, 4)
        torch.collective([tensors[3], tensors[1], tensors[2]], pass_east)
        for rank, before in ((1, 3), (2, 1), (3, 2), (0, 0)):
            np.testing.assert_array_equal(tensors[rank].numpy(), arrays[before])


def test_queues_are_installed_once_for_the_same_use_and_apart_for_others():
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        for kind in ("tcm", "tcm", "hbm"):
            torch.collective(tensors, f"ring_allreduce_{kind}", config=CCL)
        torch.collective(tensors, algorithm(pass_east, n_slots=2))
        torch.ahbm.synchronize()
        found = installs(torch)
    assert len(found) == 2 * 3
    assert found[0] == found[1] == "install direct: ring_allreduce_tcm, 4 x 4096 B in tcm (0)"


def test_installing_takes_simulated_time_and_launches_wait_for_it():
    times = []
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        torch.ahbm.synchronize(0)
        torch.ahbm.synchronize(1)
        for _ in range(2):
            before = torch.engine.now_ns
            torch.collective(tensors, "ring_allreduce_tcm", config=CCL)
            torch.ahbm.synchronize(0)
            torch.ahbm.synchronize(1)
            times.append(torch.engine.now_ns - before)
    # A message to a PE and its answer, before the same as the second time.
    assert times[0] - times[1] > 2 * 100


def test_a_full_memory_is_an_error_that_holds_nothing():
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        free = torch.engine.allocators.pe(0, 0, 0).tcm.free_bytes
        large = algorithm(pass_east, n_slots=3, slot_size=2 << 20)
        with pytest.raises(
            OutOfMemoryError, match=r"no room for the ring of 'W' of sip0.cube0.pe0, 3 slots of 2097152 B"
        ):
            torch.collective(tensors, large)
        assert torch.engine.allocators.pe(0, 0, 0).tcm.free_bytes == free
        torch.collective(tensors, pass_east)


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_rings_lie_where_the_algorithm_says(kind):
    with session(small()) as torch:
        _, tensors = of_each_device(torch, 8)
        allocators = torch.engine.allocators
        memories = {
            "tcm": allocators.pe(1, 0, 0).tcm, "sram": allocators.sram(1, 0).sram, "hbm": allocators.pe(1, 0, 0).hbm,
        }  # fmt: skip
        before = {name: memory.free_bytes for name, memory in memories.items()}
        torch.collective(tensors, algorithm(pass_east, buffer_kind=kind, n_slots=3, slot_size=512))
        used = {name: before[name] - memory.free_bytes for name, memory in memories.items()}
    assert used == {"tcm": 0, "sram": 0, "hbm": 0} | {kind: 2 * 3 * 512}


def test_what_does_not_fit_is_refused_before_anything_is_asked():
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        asked = torch.requests
        with pytest.raises(ConfigError, match="2 participants form no grid of at least 2 x 2"):
            torch.collective(tensors, "torus_allreduce", config=CCL)
        with pytest.raises(ConfigError, match="takes no option 'opp'; did you mean op"):
            torch.collective(tensors, "ring_allreduce_tcm", config=CCL, opp="max")
        other = torch.zeros(9, dtype=torch.float16, device="ahbm:1")
        with pytest.raises(CollectiveMismatchError, match=r"ahbm:0: \(8,\).*\n.*ahbm:1: \(9,\)"):
            torch.collective([tensors[0], other], "ring_allreduce_tcm", config=CCL)
        with pytest.raises(CollectiveMismatchError, match="one tensor of one shape"):
            torch.collective([tensors[0], tensors[0]], "ring_allreduce_tcm", config=CCL)
        with pytest.raises(TypeError, match="expected one on a device"):
            torch.collective([tensors[0], torch.zeros(8)], "ring_allreduce_tcm", config=CCL)
        assert torch.requests == asked
        assert not installs(torch)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda x: [], ValueError, "no tensors; give a list with one for each device"),
        (lambda x: None, TypeError, "None is not a sequence; give a list with one tensor for each device"),
        (lambda x: x, TypeError, "shape=(8,), dtype=torch.float16, device='ahbm:0', 1 shard on 1 PE of 1 cube) is no"),
        (lambda x: [x, None], TypeError, "tensor 1 is None; expected one on a device"),
        (lambda x: [[]], TypeError, "tensor 0 is []; expected one on a device"),
        (lambda x: [np.zeros(3)], TypeError, "tensor 0 is array([0., 0., 0.]); expected one on a device"),
        (lambda x: [x[:0]], ValueError, "tensor 0 is (0,), which is empty; leave the call out"),
    ],
)
def test_what_is_no_list_of_tensors_is_refused(make, error, said):
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        for algorithm_ in ("auto", "ring_allreduce_tcm"):
            with pytest.raises(error, match=re.escape(said)):
                torch.collective(make(tensors[0]), algorithm_, config=CCL)
        assert not installs(torch)


def test_devices_that_cut_their_tensors_in_other_ways_are_refused():
    """Shards of equal sizes would be summed with others than their likes."""
    with session(small(2)) as torch:
        x = torch.zeros(8, 8, dtype=torch.float16, device="ahbm:0", dp=DPPolicy(pe="row_wise", num_cubes=1))
        where = {"dtype": torch.float16, "device": "ahbm:1"}
        others = [torch.zeros(8, 8, **where, dp=DPPolicy(pe="column_wise", num_cubes=1)), torch.zeros(8, 8, **where)]
        for y in others:
            with pytest.raises(CollectiveMismatchError, match="ahbm:1 is sharded differently from that of ahbm:0"):
                torch.collective([x, y], config=CCL)
        x, y = torch.zeros(4, 4, device="ahbm:0"), torch.zeros(4, 4, device="ahbm:1")
        with pytest.raises(CollectiveMismatchError, match="sharded differently"):
            torch.collective([x, y.T], config=CCL)
        torch.collective([x.T, y.T], config=CCL)


def test_a_call_is_checked_before_the_run():
    with session(one_cube(2)) as torch:
        _, (x, y) = of_each_device(torch, 8)
        for name, call, said in [
            ("tree_broadcast", {"root": 2}, "root = 2 must be a whole number, 0 to 1"),
            ("tree_broadcast", {"root": "0"}, "root = '0' must be a whole number"),
            ("ring_allreduce_tcm", {"chunk_bytes": 0}, "chunk_bytes = 0 must be a whole number, >= 1"),
            ("ring_allreduce_tcm", {"n_elem": 4}, "takes no option 'n_elem'"),
            ("ring_allreduce_tcm", {"grid_w": 4}, "takes no option 'grid_w'"),
            (":mine", {}, "':mine' is not a path"),
        ]:
            with pytest.raises(ConfigError, match=re.escape(said)):
                torch.collective([x, y], name, config=CCL, **call)
        for name, tensors in (
            ("ring_allreduce_tcm", [(x, x), (y, y)]),
            ("ring_all_gather", [x, y]),
            ("ring_all_gather", [(x, x), y]),
        ):
            with pytest.raises(ConfigError, match=rf"'{name}': its kernel\(t_ptr, .*, tl\) does not take what it"):
                torch.collective(tensors, name, config=CCL)

        def deaf(t_ptr, n, world):
            raise AssertionError("never run")

        with pytest.raises(ConfigError, match=r"takes no tl, .*; write kernel\(t_ptr, n, world, \*, tl\)"):
            torch.collective([x, y], deaf)
        assert not installs(torch)


def test_one_participant_needs_no_queues():
    with session(one_cube(1), data=True) as torch:
        arrays, tensors = of_each_device(torch, 8)
        torch.collective(tensors, "ring_allreduce_tcm", config=CCL)
        np.testing.assert_array_equal(tensors[0].numpy(), arrays[0])
        assert not installs(torch)
        torch.collective(tensors, pass_east)
        with pytest.raises(IpcqInvalidDirection, match="it has none: its launch has no queues, or no other program"):
            tensors[0].numpy()


def talkative(t_ptr, n_elem, world_size, *, tl):
    """Send E twice, and read W once."""
    for _ in range(2):
        tl.send("E", t_ptr, shape=n_elem)
    tl.recv("W", shape=n_elem)


@pytest.mark.parametrize("kind", ["tcm", "hbm"])
def test_a_message_that_nobody_reads_is_an_error_at_the_end(kind):
    def run():
        with session(one_cube(3)) as torch:
            _, tensors = of_each_device(torch, 100)
            torch.collective(tensors, algorithm(talkative, buffer_kind=kind))

    with pytest.raises(KernelError) as caught:
        run()
    assert str(caught.value) == (
        "all_reduce by talkative: sip1.cube0.pe0 ended without reading what sip0.cube0.pe0 sent it over 'E' ('W' where "
        "it arrives): 200 B; receive every message that is sent, or the next collective gets it"
    )


def test_a_receive_into_memory_that_its_own_send_still_reads_says_what_it_waits_for():
    def in_place(t_ptr, n_elem, world_size, *, tl):
        tl.send("E", t_ptr, shape=n_elem)
        tl.recv("W", shape=n_elem, dst=t_ptr)

    def run(n):
        with session(one_cube(3), data=True) as torch:
            arrays, tensors = of_each_device(torch, n)
            torch.collective(tensors, in_place, n_slots=1)
            np.testing.assert_array_equal(tensors[1].numpy(), arrays[0])

    run(2048)  # fits into the slot
    with pytest.raises(
        IpcqDeadlock, match=r"recv of 4098 B from W .* ns, behind earlier commands that use its memory\n"
    ):
        run(2049)


def test_messages_of_the_next_collective_are_not_unread():
    """A sender is done with the second collective while the receiver is still in the first."""

    def to_the_next(t_ptr, n_elem, world_size, *, tl):
        if tl.program_id(2) == 0:
            tl.send("E", t_ptr, shape=n_elem)
        elif tl.program_id(2) == 1:
            tile = tl.recv("W", shape=n_elem)
            for _ in range(40):
                tl.store(t_ptr, tile + 1.0)

    class Ends(Observer):
        def __init__(self):
            self.sips = []

        def launch_done(self, launch):
            self.sips.append(launch.sip)

    with session(one_cube(3), data=True) as torch:
        ends = Ends()
        torch.engine.observers.append(ends)
        arrays, tensors = of_each_device(torch, 100)
        for _ in range(3):
            torch.collective(tensors, to_the_next)
        np.testing.assert_array_equal(tensors[1].numpy(), arrays[0] + 1)
    assert ends.sips.index(1) > [i for i, sip in enumerate(ends.sips) if sip == 0][1]


def test_values_do_not_change_times():
    ends = []
    for data in (False, True):
        with session(one_cube(3), data=data) as torch:
            _, tensors = of_each_device(torch, 5000)
            torch.collective(tensors, "ring_allreduce_tcm", config=CCL)
        ends.append(torch.result.records.digest())
    assert ends[0] == ends[1]


def test_auto_chooses_by_size_and_says_what():
    chosen = []
    with session(one_cube(6, "ring_1d"), data=True) as torch:
        for n in (8, 60_000):
            arrays, tensors = of_each_device(torch, n)
            chosen.append(torch.collective(tensors, config=CCL).algorithm)
            np.testing.assert_array_equal(tensors[5].numpy(), sum(arrays))
    assert chosen[0].name != chosen[1].name
    assert {a.contribution for a in chosen} == {"rank"}
    launched = {c.name for c in torch.engine.log.commands}
    assert {f"all_reduce by {a.name}" for a in chosen} <= launched


@pytest.mark.parametrize("where", ["entry", "defaults", "keyword"])
def test_auto_keeps_slots_that_are_stated(where):
    content = load_yaml(default_ccl_path())
    groups = {"entry": content["algorithms"].values(), "defaults": [content["defaults"]], "keyword": []}
    for group in groups[where]:
        group["n_slots"] = 3
    call = {"n_slots": 3} if where == "keyword" else {}
    with session(one_cube(3), data=True) as torch:
        arrays, tensors = of_each_device(torch, 60_000)
        chosen = torch.collective(tensors, config=content, **call).algorithm
        assert chosen.n_slots == 3
        np.testing.assert_array_equal(tensors[2].numpy(), sum(arrays))
        assert installs(torch)[0] == f"install direct: {chosen.name}, 3 x 4096 B in {chosen.buffer_kind} (0)"


def test_slots_of_one_call():
    with session(one_cube(2)) as torch:
        _, tensors = of_each_device(torch, 8)
        assert torch.collective(tensors, "ring_allreduce_hbm", config=CCL, n_slots=7).algorithm.n_slots == 7
        assert torch.collective(tensors, pass_east, n_slots=1).algorithm.n_slots == 1
        for wrong in (0, 2.0, True):
            with pytest.raises(ConfigError, match=f"n_slots = {wrong} must be a whole number >= 1"):
                torch.collective(tensors, pass_east, n_slots=wrong)


@pytest.mark.slow
def test_auto_simulates_its_short_list():
    machine = resolve_topology("preset:default", {"system.sips.count": 8})
    with session(machine) as torch:
        _, tensors = of_each_device(torch, 1 << 13)
        chosen = torch.collective(tensors, "auto", config=CCL)
    known = [resolve_algorithm_config(name, CCL) for name in names(CCL, contribution="rank")]
    tuner = Tuner(machine, known, simulate=simulator(machine), refine=0)
    by_model = tuner.plan(tuner.choose("all_reduce", 1 << 14), range(8))
    assert by_model.algorithm.name != chosen.algorithm.name
    assert run_collective(machine, chosen, 1 << 14).latency_ns < run_collective(machine, by_model, 1 << 14).latency_ns


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f32", "f64"])
def test_auto_takes_elements_of_every_size(dtype):
    with session(one_cube(2)) as torch:
        tensors = [torch.empty(3, dtype=dtype, device=f"ahbm:{sip}") for sip in range(2)]
        assert torch.collective(tensors, "auto", config=CCL).world_size == 2


@pytest.mark.slow
def test_auto_passes_over_what_does_not_take_every_shard():
    with session(small(4), data=True) as torch:
        arrays, tensors = of_each_device(torch, (CUBES * PES, 3), OVER_ALL)
        torch.collective(tensors, "auto", config=CCL)
        np.testing.assert_array_equal(tensors[0].numpy(), sum(arrays))
