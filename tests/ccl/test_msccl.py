"""MSCCL programs: read, checked, run on the machine, and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl import from_msccl, to_msccl
from kernbench.ccl._group import Grid, Group
from kernbench.ccl._msccl_program import read_program
from kernbench.ccl.algorithm import plan, plan_group
from kernbench.ccl.algorithms import all_reduce
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.stages import Ring
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.config import default_ccl_path
from kernbench.config._files import load_yaml
from kernbench.errors import ConfigError, IpcqDeadlock, RaceError
from kernbench.runtime_api.collective import run_collective
from tests.slow import slow_after

MACHINE = ("system.sips.topology=ring_1d",)


def step(i: int, type: str, src: str = "i0", dst: str = "i0", cnt: int = 1, dep: str = "-1.-1", has: int = 0) -> str:
    after, at = dep.split(".")
    return (
        f'<step s="{i}" type="{type}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{cnt}" depid="{after}" deps="{at}" hasdep="{has}"/>'
    )


def block(i: int, steps: list[str], send: int = -1, recv: int = -1, chan: int = 0) -> str:
    return "\n".join([f'<tb id="{i}" send="{send}" recv="{recv}" chan="{chan}">', *steps, "</tb>"])


def program(gpus: list[list[str]], coll: str = "allreduce", chunks: str = "2 0 0", inplace: int = 1) -> str:
    i, o, s = chunks.split()
    lines = [f'<algo name="mine" ngpus="{len(gpus)}" coll="{coll}" inplace="{inplace}" nchunksperloop="{max(i, o)}">']
    for g, blocks in enumerate(gpus):
        lines += [f'<gpu id="{g}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">', *blocks, "</gpu>"]
    return "\n".join([*lines, "</algo>"])


def exchange() -> str:
    """An all-reduce of two: each sends the other a chunk to reduce, and gets it back; by two thread blocks."""
    return program(
        [
            [
                block(0, [step(0, "s", f"i{1 - g}"), step(1, "rrcs", f"i{g}", f"i{g}"), step(2, "r", dst=f"i{1 - g}")],
                      send=1 - g, recv=1 - g)
            ]
            for g in range(2)
        ]
    )  # fmt: skip


def by_scratch() -> str:
    """An all-reduce of two whose thread blocks wait for each other: one receives into scratch, another adds it."""
    return program(
        [
            [
                block(0, [step(0, "s", "i0", cnt=2, has=1)], send=1 - g),
                block(1, [step(0, "r", dst="s0", cnt=2, has=1)], recv=1 - g),
                block(2, [step(0, "nop", "i-1", "o-1", 0, "0.0"), step(1, "re", "s0", "i0", 2, "1.0")]),
            ]
            for g in range(2)
        ],
        chunks="2 0 2",
    )


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.xml"
    file.write_text(text, encoding="utf-8")
    return file


def entry(module: str, **keys: object) -> dict:
    content = load_yaml(default_ccl_path())
    content["algorithms"]["mine"] = {"module": module, **keys}
    return content


def reduced(algorithm: object, config: object = None, n: int = 2, n_elem: int = 96) -> float:
    """All-reduce over `n` devices, hold the values to numpy's, and return the simulated time."""
    given = [np.random.default_rng(rank).integers(-9, 9, n_elem).astype(np.float32) for rank in range(n)]
    with kb.session(kb.load(overrides=[*MACHINE, f"system.sips.count={n}"]), data=True) as torch:
        tensors = [torch.tensor(values, device=f"ahbm:{rank}") for rank, values in enumerate(given)]
        for rank in range(n):
            torch.accelerator.synchronize(rank)
        start = torch.engine.now_ns
        torch.collective(tensors, algorithm, config=config)
        for rank in range(n):
            torch.accelerator.synchronize(rank)
        end = torch.engine.now_ns
        assert all(np.array_equal(tensor.numpy(), sum(given)) for tensor in tensors)
    return end - start


@pytest.mark.parametrize("text", [exchange(), by_scratch()], ids=["exchange", "by_scratch"])
@pytest.mark.parametrize("n_elem", [2, 96, 40_000])
def test_values_are_those_of_numpy(tmp_path, text, n_elem):
    assert reduced(from_msccl(written(tmp_path, text)), n_elem=n_elem) > 0


def test_a_vector_that_takes_several_loops(tmp_path):
    reduced(from_msccl(written(tmp_path, by_scratch())), n_elem=150_000)


def test_every_thread_block_has_a_pe(tmp_path):
    machine = kb.load(overrides=["system.sips.count=2", *MACHINE])
    with kb.session(machine) as torch:
        tensors = [torch.empty(8, device=f"ahbm:{rank}") for rank in range(2)]
        plan = torch.collective(tensors, from_msccl(written(tmp_path, by_scratch())))
    assert list(plan.programs) == [(sip, 0, pe) for sip in range(2) for pe in range(3)]
    assert plan.shards == [((0, 0, 0), (1, 0, 0))]


def test_an_entry_of_ccl_yaml(tmp_path):
    written(tmp_path, exchange())
    file = tmp_path / "ccl.yaml"
    file.write_text(default_ccl_path().read_text() + "  mine:\n    module: mine.xml\n")
    assert reduced("mine", file) == reduced(from_msccl(tmp_path / "mine.xml"))


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"topology": "ring_1d"}, "algorithms.mine.topology = 'ring_1d' is the MSCCL program's to state; leave it out"),
        ({"collective": "broadcast"}, "algorithms.mine.collective = 'broadcast', but the program does all_reduce"),
        ({"options": {"chunk": 3}}, "chunk = 3 is unknown; did you mean chunk_bytes?"),
        ({"world_size": 3}, "algorithms.mine.world_size = 3, but the program is for 2 ranks; leave it out"),
    ],
)
def test_faults_of_an_entry(tmp_path, keys, fault):
    file = written(tmp_path, exchange())
    with pytest.raises(ConfigError) as error:
        load_ccl_config(entry(str(file), **keys))
    assert fault in str(error.value)


def test_an_entry_works_in_place_as_torch_does(tmp_path):
    file = written(tmp_path, exchange().replace('inplace="1"', 'inplace="0"'))
    with pytest.raises(ConfigError, match=r"all_reduce works in place in torch, and the program does not; generate it"):
        load_ccl_config(entry(str(file)))


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(ConfigError, match=r"algorithms.mine.module = .*none.xml.*cannot be read"):
        load_ccl_config(entry(str(tmp_path / "none.xml")))


def test_other_numbers_of_elements_and_devices(tmp_path):
    algorithm = from_msccl(written(tmp_path, exchange()))
    with pytest.raises(ConfigError, match=r"97 elements do not make the 2 equal chunks.*multiple of 2"):
        reduced(algorithm, n_elem=97)
    with pytest.raises(ConfigError, match=r"is a program for 2 ranks, and the group has 3"):
        reduced(algorithm, n=3)


def test_reading_keeps_the_lines(tmp_path):
    found = read_program(written(tmp_path, exchange()))
    assert [s.line for s in found.gpus[0].blocks[0].steps] == [4, 5, 6]


def test_ranks_may_each_read_the_program(tmp_path):
    file = written(tmp_path, exchange())

    def ranks(rank, torch):
        torch.distributed.init_process_group(pg_options={"all_reduce": from_msccl(file)})
        x = torch.full((64,), rank + 1, device="ahbm")
        torch.distributed.all_reduce(x)
        assert (x.numpy() == 1 + 2).all()

    with kb.session(kb.load(overrides=["system.sips.count=2", *MACHINE]), data=True) as torch:
        torch.multiprocessing.spawn(ranks, args=(torch,), nprocs=2)


def test_a_deadlock_names_thread_block_and_step(tmp_path):
    stuck = program([[block(0, [step(0, "r"), step(1, "s")], send=1 - g, recv=1 - g)] for g in range(2)])
    file = written(tmp_path, stuck)
    with pytest.raises(IpcqDeadlock) as error:
        reduced(from_msccl(file))
    text = str(error.value)
    for g in range(2):
        where = f"sip{g}.cube0.pe0, kernel 'all_reduce by mine' at gpu {g}, tb 0, step 0 (r) in {file}:"
        assert where in text
        assert f"recv of 192 B from gpu{1 - g}.tb0.chan0 (sip{1 - g}.cube0.pe0) since" in text
    assert f"{file}:{stuck.splitlines().index(step(0, 'r')) + 1}, waits for 'recv' since" in text


@pytest.mark.parametrize("text", [exchange(), by_scratch()], ids=["exchange", "by_scratch"])
def test_the_mock_runs_programs(tmp_path, text):
    given = [np.arange(6, dtype=np.float32) * (rank + 1) for rank in range(2)]
    tensors = [values.copy() for values in given]
    run_kernel_in_mock(from_msccl(written(tmp_path, text)), tensors)
    assert all(np.array_equal(tensor, sum(given)) for tensor in tensors)


def line_of(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


S, R = step(0, "s"), step(0, "r")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("</algo>", "", "invalid XML: no element found"),
        ("<tb ", "<!-- -- --><tb ", "invalid XML: not well-formed"),
        ("<algo ", "<!DOCTYPE a><algo ", "a document type; an MSCCL program has none: delete it"),
        ('ngpus="2" ', "", "<algo> has no ngpus; add it, a whole number, 1 or more"),
        ('ngpus="2"', 'ngpus="3"', "<algo> ngpus = '3' but GPU 2 is missing; add it, or change ngpus"),
        ('ngpus="2"', 'ngpus="two"', "<algo> ngpus = 'two' must be a whole number, 1 or more"),
        ('coll="allreduce"', 'coll="allreduced"', "<algo> coll = 'allreduced' is unknown; did you mean allreduce?"),
        ('<gpu id="1"', '<gpu id="0"', "<gpu> id = '0' is there twice; number the GPUs 0 to 1, each once"),
        ('nchunksperloop="2"', 'nchunksperloop="1"', "nchunksperloop = '1' but a GPU uses 2 chunks"),
        ('type="r" ', 'type="rx" ', "<step> type = 'rx' is unknown; did you mean"),
        ('s="1" type="rrcs"', 's="7" type="rrcs"', "<step> s = '7' but it is the step 1 of its thread block"),
        ('type="rrcs" srcbuf="i"', 'type="rrcs" srcbuf="x"', "<step> srcbuf = 'x' is unknown; known: i, o, s"),
        ('"s" srcbuf="i" srcoff="1"', '"s" srcbuf="i" srcoff="2"', "ends at chunk 3, but i_chunks of its <gpu> is 2"),
        ('type="s" srcbuf="i" srcoff="1"', 'type="s" srcbuf="i" srcoff="-1"', "srcoff = '-1' must be a whole"),
        ('send="1" recv="1"', 'send="-1" recv="1"', "does send, but its <tb> has send = -1; state the peer"),
        ('send="1" recv="1"', 'send="5" recv="1"', "<tb> send = '5' must be a whole number, -1 to 1"),
        ('send="1" recv="1"', 'send="0" recv="1"', "<tb> send = '0' is GPU 0 itself; name a peer, or -1"),
        ('recv="1" chan="0"', 'recv="1" chan="1"', "send = 1 on chan = 1, but no <tb> of GPU 1 has recv = 0"),
        ('dstoff="1" cnt="1"', 'dstoff="0" cnt="2"', "make them equal"),
        ('depid="-1" deps="-1"', 'depid="4" deps="0"', "<step> depid = 4, but GPU 0 has the thread blocks 0 to 0"),
        ('depid="-1" deps="-1"', 'depid="0" deps="9"', "deps = 9, but thread block 0 of GPU 0 has the steps 0"),
        ('deps="-1" hasdep="0"', 'deps="-1" hasdep="2"', "<step> hasdep = '2' must be a whole number, 0 to 1"),
        ('depid="-1" deps="-1"', 'depid="0" deps="2"', "steps of GPU 0 wait for each other: thread block 0, step"),
    ],
)  # fmt: skip
def test_faults_of_a_program(tmp_path, old, new, said):
    text = exchange()
    assert old in text
    file = written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        from_msccl(file)
    assert said in str(error.value)
    assert str(error.value).startswith("mine.xml:")
    assert len(error.value.faults) == 1


def test_a_step_that_others_wait_for_says_so(tmp_path):
    text = by_scratch().replace('cnt="2" depid="-1" deps="-1" hasdep="1"', 'cnt="2" depid="-1" deps="-1" hasdep="0"', 1)
    with pytest.raises(ConfigError, match=r"<step> hasdep = 0, but step 0 of thread block 2 of GPU 0 waits for it"):
        from_msccl(written(tmp_path, text))


def test_ranks_have_equal_parts(tmp_path):
    text = exchange().replace("allreduce", "alltoall").replace('nchunksperloop="2"', 'nchunksperloop="3"')
    with pytest.raises(ConfigError, match=r"nchunksperloop = '3' must be a multiple of ngpus = 2"):
        from_msccl(written(tmp_path, text))


@pytest.mark.parametrize("tag", ["algo", "gpu", "tb"])
def test_unknown_elements(tmp_path, tag):
    text = exchange().replace(f"<{tag} ", "<x ").replace(f"</{tag}>", "</x>")
    with pytest.raises(ConfigError, match=rf"^mine.xml:\d+: <x> is unknown here; expected <{tag}>"):
        from_msccl(written(tmp_path, text))


def test_a_fault_names_its_line(tmp_path):
    text = exchange().replace('type="rrcs"', 'type="rr"', 1)
    line = line_of(text, 'type="rr"')
    with pytest.raises(ConfigError, match=rf"^mine.xml:{line}: <step> type = 'rr' is unknown"):
        from_msccl(written(tmp_path, text))


def test_sends_and_receives_are_as_many(tmp_path):
    text = program([[block(0, [S, step(1, "s")], send=1)], [block(0, [R], recv=0)]])
    with pytest.raises(ConfigError, match=r"type = 's': 2 sends, but 1 receives from GPU 0, thread block 0, to GPU 1"):
        from_msccl(written(tmp_path, text))


def test_a_peer_has_one_thread_block_on_a_channel(tmp_path):
    text = program([[block(0, [S], send=1), block(1, [S], send=1)], [block(0, [R], recv=0)]])
    with pytest.raises(
        ConfigError, match=r"<tb> 1 of GPU 0: send = 1 on chan = 0, as thread block 0; give one of them"
    ):
        from_msccl(written(tmp_path, text))


def test_steps_that_wait_for_each_other_are_a_cycle(tmp_path):
    first = block(0, [step(0, "nop", cnt=0, dep="1.1"), step(1, "s", has=1)], send=1)
    second = block(1, [step(0, "nop", cnt=0, dep="0.1"), step(1, "nop", cnt=0, has=1)])
    text = program([[first, second], [block(0, [R], recv=0)]])
    with pytest.raises(ConfigError) as error:
        from_msccl(written(tmp_path, text))
    for name in ("thread block 0, step 0", "thread block 1, step 1", "remove one of these dependences"):
        assert name in str(error.value)


def test_more_thread_blocks_than_pes(tmp_path):
    blocks = [block(t, [step(0, "cpy", "i0", "i1")]) for t in range(5)]
    group = Group((((0, 0, 0),), ((1, 0, 0),)), Grid(2, 1), targets=tuple((0, pe) for pe in range(4)))
    with pytest.raises(ConfigError, match=r"has 5 thread blocks for each GPU, and a SIP has 4 PEs; give the machine"):
        plan_group(from_msccl(written(tmp_path, program([blocks, blocks]))), group)


def test_a_step_waits_until_the_other_thread_block_has_stored(tmp_path):
    # Without the dependence, the copy is early, and the races that data look for are found.
    text = by_scratch().replace('depid="1" deps="0"', 'depid="-1" deps="-1"')
    with pytest.raises(RaceError, match=r"gpu \d, tb 2, step 1 \(re\) in .*mine.xml"):
        reduced(from_msccl(written(tmp_path, text)), n_elem=40_000)


def test_two_thread_blocks_send_to_a_peer_on_two_channels(tmp_path):
    gpus = [
        [block(c, [step(0, "s", f"i{c}"), step(1, "r", dst=f"o{c}")], send=1 - g, recv=1 - g, chan=c) for c in range(2)]
        for g in range(2)
    ]
    algorithm = from_msccl(written(tmp_path, program(gpus, "custom", "2 2 0", inplace=0)))
    given = [np.arange(8.0, dtype=np.float32) + 10 * rank for rank in range(2)]
    with kb.session(kb.load(overrides=[*MACHINE, "system.sips.count=2"]), data=True) as torch:
        tensors = [
            [torch.tensor(x, device=f"ahbm:{r}"), torch.zeros(8, device=f"ahbm:{r}")] for r, x in enumerate(given)
        ]
        plan = torch.collective(tensors, algorithm)
        torch.accelerator.synchronize(0), torch.accelerator.synchronize(1)
        assert np.array_equal(tensors[0][1].numpy(), given[1])
    assert {way for role in plan.programs.values() for way in role.neighbours} == {
        f"gpu{g}.tb{c}.chan{c}" for g in range(2) for c in range(2)
    }


@pytest.mark.parametrize("inplace", [0, 1])
def test_all_gather_in_place_and_out_of_place(tmp_path, inplace):
    def gpu(g: int) -> list[str]:
        if inplace:  # the input is a part of the output
            return [block(0, [step(0, "s", f"o{g}"), step(1, "r", dst=f"o{1 - g}")], send=1 - g, recv=1 - g)]
        both = [step(0, "s", "i0"), step(1, "r", dst=f"o{1 - g}"), step(2, "cpy", "i0", f"o{g}")]
        return [block(0, both, send=1 - g, recv=1 - g)]

    text = program([gpu(0), gpu(1)], "allgather", "0 2 0" if inplace else "1 2 0", inplace)
    machine = kb.load(overrides=[*MACHINE, "system.sips.count=2"])
    planned = plan(from_msccl(written(tmp_path, text)), machine.config, range(2), [(0, 0)])
    assert run_collective(machine, planned, 4096, dtype="f32", data=True).latency_ns > 0  # compares values


# -- written programs


@pytest.mark.parametrize(
    ("name", "n", "topology"),
    [
        ("ring_allreduce_tcm", 4, "ring_1d"),
        ("ring_allreduce_hbm", 3, "ring_1d"),
        ("ring_mesh_allreduce", 4, "torus_2d"),
        ("ring_reduce_scatter", 4, "ring_1d"),
        ("ring_all_gather", 4, "ring_1d"),
        ("tree_allreduce", 2, "ring_1d"),
        ("direct_all_to_all", 2, "ring_1d"),
        ("tree_broadcast", 2, "ring_1d"),
    ],
)
@pytest.mark.parametrize("nbytes", slow_after(1, [1536, 98_304]))
def test_a_written_algorithm_takes_the_same_time(tmp_path, name, n, topology, nbytes):
    grid = ["system.sips.w=2", "system.sips.h=2"] if topology == "torus_2d" else []
    machine = kb.load(overrides=[f"system.sips.count={n}", f"system.sips.topology={topology}", *grid])
    own = resolve_algorithm_config(name, default_ccl_path())
    file = to_msccl(own, tmp_path / "own.xml", Group.of(machine.config, range(n), [(0, 0)]))
    again = from_msccl(file, buffer_kind=own.buffer_kind)
    assert again.collective == own.collective
    times = [
        run_collective(machine, planned, nbytes, dtype="f32", data=True).latency_ns
        for planned in (plan(each, machine.config, range(n), [(0, 0)]) for each in (own, again))
    ]
    assert times[0] == times[1]


def test_a_broadcast_has_its_root(tmp_path):
    file = to_msccl("tree_broadcast", tmp_path / "own.xml", 2, config=default_ccl_path(), root=1)
    given = [np.full(8, rank, np.float32) for rank in range(2)]
    with pytest.raises(ConfigError, match=r"own.xml: root = 0, but the root of the program is 1; leave it out"):
        run_kernel_in_mock(from_msccl(file), given, root=0)
    run_kernel_in_mock(from_msccl(file), given, root=1)
    assert (given[0] == 1).all()


def test_a_reduce_scatter_in_place_leaves_its_result_in_the_input(tmp_path):
    gpus = [
        [block(0, [step(0, "s", f"i{1 - g}"), step(1, "rrc", f"i{g}", "o0")], send=1 - g, recv=1 - g)] for g in range(2)
    ]
    given = [np.arange(8.0, dtype=np.float32) + rank for rank in range(2)]
    total = given[0] + given[1]
    run_kernel_in_mock(from_msccl(written(tmp_path, program(gpus, "reduce_scatter", "2 1 0"))), given)
    assert np.array_equal(given[0][:4], total[:4])
    assert np.array_equal(given[1][4:], total[4:])


def test_an_algorithm_of_ones_own_can_be_written(tmp_path):
    @all_reduce(both_ways=True)
    def mine(rank, n):
        return [[Ring(rank, n, "E", "W")]]

    file = to_msccl(mine, tmp_path / "mine.xml", 4, both_ways=False)
    assert [s.type for s in read_program(file).gpus[0].blocks[0].steps] == [
        "s",
        "rrs",
        "rrs",
        "rrcs",
        "rcs",
        "rcs",
        "r",
    ]
    assert reduced(from_msccl(file), n=4) > 0
    with pytest.raises(
        ConfigError, match=r"'mine' cannot be written .* it sends to E and W, and a thread block has one"
    ):
        to_msccl(mine, tmp_path / "both.xml", 4)
    assert not (tmp_path / "both.xml").exists()


@pytest.mark.parametrize(
    ("name", "call", "why"),
    [
        ("tree_allreduce", {}, "combines more than a message and its own elements"),
        ("tree_barrier", {}, "uses a constant"),
        ("ring_flat_allreduce", {}, "sends a message on as it came, and stores the sum"),
        ("ring_allreduce_tcm", {"op": "max"}, "uses maximum; a program receives, sums two tiles"),
    ],
)
def test_what_a_program_cannot_express_is_refused(tmp_path, name, call, why):
    with pytest.raises(ConfigError, match=f"{name}.* cannot be written as an MSCCL program: participant .*{why}"):
        to_msccl(name, tmp_path / "no.xml", 4, config=default_ccl_path(), **call)
