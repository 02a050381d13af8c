"""The launch of a kernel as a program: run, swept, and a workload of the explorer."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import ArgumentError
from kernbench.notebook._export import code
from kernbench.notebook._model import DONE, Explorer
from kernbench.notebook._workloads import workloads

N = 1000


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(N).astype(np.float32) for _ in range(3)]


@pytest.fixture
def call(kernels, arrays):
    return kb.triton.program(kernels.add, lambda meta: (-(-meta["n"] // meta["BLOCK"]),), *arrays, N, BLOCK=128)


def programs_of(result):
    return len(result.records.of_kind("store").command)


def test_a_launch_runs_on_any_machine(call, arrays, machine):
    x, y, out = arrays
    result = kb.run(call, machine, data=True).result
    assert [launch.name for launch in result.launches] == ["add"]
    assert programs_of(result) == 8
    assert np.array_equal(out, x + y)
    slower = kb.run(call, machine.with_({"cube.hbm.channel_bw_gbs": 4})).result
    assert slower.latency_ns > result.latency_ns


def test_its_constants_are_parameters(call, machine):
    parameters = list(inspect.signature(call).parameters.values())[1:]
    assert {x.name: x.default for x in parameters} == {"placement": "round-robin", "BLOCK": 128}
    times = {block: kb.run(partial(call, BLOCK=block), machine).result.latency_ns for block in (64, 128, 256)}
    assert len(set(times.values())) == 3


def test_it_is_refused_where_it_would_need_another_process(call, machine):
    with pytest.raises(ArgumentError, match=r"add: a Triton kernel cannot be given to another process; call kb.run"):
        kb.sweep(machine, call, {"BLOCK": [64, 128]})


def test_a_kernel_is_a_workload_of_the_explorer(call, machine):
    explorer = Explorer(machine, [call])
    assert explorer.workload.name == "add"
    for block, programs in (("128", 8), ("500", 2)):
        assert explorer.set("BLOCK", block)
        assert explorer.run(), explorer.obstacle
        assert explorer.wait(120)
        assert explorer.state.status == DONE, explorer.state.message
        assert programs_of(explorer.state.finished.result) == programs
    assert not explorer.set("placement", "nowhere")
    assert "placement = 'nowhere' is unknown" in explorer.wrong["placement"]


def test_a_cell_names_the_variable_of_a_program(call, machine, monkeypatch):
    for name, expected in (("my_call", "program = partial(my_call, "), (None, "add is not a variable here")):
        if name is not None:
            monkeypatch.setattr("__main__.my_call", call, raising=False)
        explorer = Explorer(machine, [call])
        assert explorer.run()
        assert explorer.wait(120)
        if name is not None:
            assert expected in code(explorer.state.finished.entry)
            monkeypatch.undo()
        else:
            with pytest.raises(ArgumentError, match=expected):
                code(explorer.state.finished.entry)


def test_a_kernel_without_arguments_is_refused(kernels):
    with pytest.raises(ArgumentError, match=r"add is a Triton kernel .* pass kb.triton.program\(kernel, grid, x\)"):
        workloads([kernels.add])


def test_arguments_that_do_not_fit_are_refused_at_once(kernels):
    with pytest.raises(TypeError, match="too many positional arguments"):
        kb.triton.program(kernels.add, (1,), *range(6))
