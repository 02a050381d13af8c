"""What can be chosen: collectives by every algorithm, and the user's kernels, modules and programs."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import kernbench as kb
from kernbench import tp
from kernbench.ccl.install import load_ccl_config, names
from kernbench.errors import ArgumentError, ConfigError, MissingModuleError, VerificationError
from kernbench.notebook import _collectives as collectives
from kernbench.notebook._export import code
from kernbench.notebook._model import DONE, Explorer
from kernbench.notebook._workloads import workloads
from kernbench.serving._attention import attention_row
from kernbench.serving._parts import lognormal_contexts

LONG_S = 600


def double(x, y, n: int = 64, *, tl):
    """Double a tile."""
    tl.store(y, tl.load(x, shape=(n, n), dtype="f16") * 2)


class Linear:
    """One column-parallel layer."""

    def __init__(self, *, inputs: int = 64, outputs: int = 128):
        self.layer = tp.ColumnParallelLinear(inputs, outputs, config=tp.ModelParallelConfig(), bias=False)

    def forward(self, x):
        """Apply it."""
        return self.layer(x)


@pytest.fixture
def explorer():
    machine = kb.load("preset:small", overrides=["system.sips.count=2"])
    made = Explorer(machine, [double, Linear])
    yield made
    made.cancel()
    assert made.wait(LONG_S)


def run(explorer):
    assert explorer.run(), explorer.obstacle
    assert explorer.wait(LONG_S)
    assert explorer.state.status == DONE, explorer.state.message
    return explorer.state.finished


def test_every_entry_of_ccl_yaml_can_be_chosen_under_its_collective():
    found = workloads()
    offered = {
        name: set(work.parameters[0].options(kb.load("preset:small"))) - {"auto"}
        for title, work in found.items()
        if (name := title.removeprefix("collective ")) != title
    }
    config = load_ccl_config()
    assert offered == {name: set(names(config, name)) for name in {x.collective for x in config.algorithms.values()}}


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("all_reduce", "tree_allreduce"),
        ("all_reduce", "intercube_allreduce"),
        ("all_reduce", "hierarchical_allreduce"),
        ("broadcast", "ring_broadcast"),
        ("reduce", "tree_reduce"),
        ("reduce_scatter", "ring_reduce_scatter"),
        ("all_gather", "ring_all_gather"),
        ("all_to_all", "direct_all_to_all"),
        ("barrier", "tree_barrier"),
    ],
)
def test_a_collective_runs_and_its_values_are_checked(explorer, name, algorithm):
    explorer.choose(f"collective {name}")
    assert explorer.set("algorithm", algorithm)
    assert explorer.set("nbytes", 1024)
    finished = run(explorer)
    ranks = {"barrier": 0, "reduce": 1}.get(name, 2)
    assert finished.outcome.checks == ranks
    assert any(name in launch.name or algorithm in launch.name for launch in finished.result.launches)


def test_wrong_values_of_a_collective_are_noticed(monkeypatch):
    monkeypatch.setattr(collectives, "_expected", lambda _, given, rank: given[rank] + 1)
    with pytest.raises(Exception, match="other values than numpy") as raised:
        kb.run(
            lambda torch: collectives.collective(torch, collective="broadcast", nbytes=256),
            kb.load("preset:small", overrides=["system.sips.count=2"]), data=True,
        )  # fmt: skip
    assert isinstance(raised.value.__cause__, VerificationError)


def test_a_collective_on_other_sips_runs_on_a_machine_that_has_them(explorer):
    explorer.choose("collective all_reduce")
    for name, value in (("algorithm", "torus_allreduce"), ("sips", "2x2"), ("topology", "torus_2d"), ("nbytes", 1024)):
        assert explorer.set(name, value)
    finished = run(explorer)
    sips = finished.entry.machine.config.system.sips
    assert (sips.count, sips.w, sips.h, sips.topology) == (4, 2, 2, "torus_2d")
    assert explorer.form.machine.config.n_sips == 2
    assert explorer.current
    assert "system.sips.count=4" in code(finished.entry)
    assert "sips='2x2'" not in code(finished.entry)
    explorer.set("sips", "2")
    assert not explorer.current


def test_attention_of_a_decode_step_is_that_of_the_table_of_steps(explorer):
    explorer.choose("step of a served model")
    for name, value in (("tp", 2), ("requests", 4), ("context", 100)):
        assert explorer.set(name, value)
    found = run(explorer).result.launches
    sizes = {"heads": 16, "kv_heads": 4, "head_dim": 128}
    same = attention_row(explorer.form.machine, tokens=1, contexts=lognormal_contexts(4, 100), **sizes)
    assert sum(x.end_ps - x.start_ps for x in found) / 1000 == same["ns"]
    explorer.set("tp", 3)
    assert "tp = 3 must divide num_key_value_heads = 8" in explorer.wrong["tp"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sips": "1"}, {"sips": "must be at least 2"}),
        ({"sips": "four"}, {"sips": "must be a number of SIPs, or a grid"}),
        ({"algorithm": "mesh_allreduce_4"}, {"algorithm": "does not run here"}),
        ({"nbytes": 3}, {"nbytes": "must be a multiple of 2"}),
        ({"nbytes": 10**12}, {"nbytes": "must be at most"}),
        ({"nbytes": 3, "sips": "1"}, {"nbytes": "multiple", "sips": "at least 2"}),
    ],
)
def test_what_does_not_fit_is_refused_beside_its_field(explorer, values, said):
    explorer.choose("collective all_reduce")
    for name, value in values.items():
        assert explorer.set(name, value)
    assert explorer.obstacle == "a parameter is wrong"
    assert set(explorer.wrong) == set(said)
    assert all(text in explorer.wrong[name] for name, text in said.items())


def test_a_kernel_gets_tensors_of_the_shapes_in_its_form(explorer):
    assert explorer.workload.name == "double"
    assert explorer.workload.title == "Double a tile."
    parameters = {x.name: x.default for x in explorer.workload.parameters}
    assert parameters == {"dtype": "f16", "cubes": 1, "pes": 1, "x": "64x64", "y": "64x64", "n": 64}
    assert not explorer.set("x", "64 by 64")
    assert explorer.wrong["x"] == "x = '64 by 64' must be a shape such as 64x64"
    for name in "xy":
        assert explorer.set(name, "32x32")
    assert explorer.set("n", 32)
    finished = run(explorer)
    assert [launch.name for launch in finished.result.launches] == ["double"]
    loads = finished.result.records.of_kind("load")
    assert int(loads.nbytes.sum()) == 32 * 32 * 2
    assert "program_of(double)" in code(finished.entry)


def test_a_kernel_runs_on_as_many_pes_as_its_form_says(explorer):
    for name, value in {"x": "128x16", "y": "128x16", "n": 16, "pes": 2, "cubes": 2}.items():
        assert explorer.set(name, value)
    assert len(run(explorer).result.records.pes()) == 4
    assert not explorer.set("pes", 9)
    assert "pes = '9' is unknown" in explorer.wrong["pes"]


def test_a_module_runs_on_ranks(explorer):
    explorer.choose("Linear")
    parameters = {x.name: x.default for x in explorer.workload.parameters}
    assert parameters == {"dtype": "f16", "ranks": 1, "x": "64x64", "inputs": 64, "outputs": 128}
    for name, value in {"ranks": 2, "x": "16x1x64"}.items():
        assert explorer.set(name, value)
    assert {sip for sip, _, _ in run(explorer).result.records.pes()} == {0, 1}


def test_what_is_neither_a_kernel_nor_a_module_is_refused():
    from kernbench.notebook import program_of

    with pytest.raises(ConfigError, match="neither a kernel"):
        program_of(np.zeros)


def test_a_pytorch_model_without_inputs_is_refused():
    kind = type("Mlp", (), {"__module__": "torch.nn.modules.mlp", "forward": lambda self, x: x, "__call__": id})
    for given in (kind, kind()):
        with pytest.raises(ArgumentError, match=r"Mlp is a PyTorch model .* pass kb.torch.program\(model, x\)"):
            workloads([given])


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_a_missing_pytorch_is_said():
    with pytest.raises(MissingModuleError, match=r"kb.torch.program needs PyTorch: pip install 'kernbench\[torch\]'"):
        kb.torch.program(lambda x: x, 1)
