"""MSCCL programs: read, checked, run on the machine, and written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl import from_msccl
from kernbench.ccl.install import load_ccl_config
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.config import default_ccl_path
from kernbench.config._files import load_yaml
from kernbench.config._msccl import read_program
from kernbench.errors import ConfigError, IpcqDeadlock

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
