"""Parallel groups, mappings and linear layers on the machine, on 1 to 8 ranks, against numpy in f32."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench import tp
from kernbench._dtypes import float32
from kernbench.errors import KernbenchError, PlacementError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.tp import parallel_state as ps
from tests.slow import slow_after

F32 = tp.ModelParallelConfig(params_dtype=float32)
ONE_PE = kb.DPPolicy(num_cubes=1, num_pes=1)
rng = np.random.default_rng(4)


def machine(sips):
    """SIPs of two cubes with two PEs each."""
    pes = {"cube.pe_layout.corners": ["NW", "SE"], "cube.pe_layout.pe_per_corner": 1}
    return kb.load("preset:small", {"system.sips.count": sips, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, **pes})


def spawned(fn, ranks, tensor=None, **sizes):
    """Run `fn(torch, rank)` on ranks that have their groups; return what each returns."""
    found = {}

    def program(rank, torch):
        torch.distributed.init_process_group("ahbm")
        ps.initialize_model_parallel(tensor or ranks, torch=torch, **sizes)
        found[rank] = fn(torch, rank)
        ps.destroy_model_parallel()

    with kb.session(machine(ranks), data=True) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)
    return [found[rank] for rank in range(ranks)]


def on(torch, values, dp=None):
    return torch.tensor(values, device="ahbm", dp=dp)


@pytest.mark.parametrize("ranks", slow_after(2, [1, 4, 2, 8]))
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_two_layer_mlp(ranks, sequence_parallel):
    config = tp.ModelParallelConfig(F32.params_dtype, sequence_parallel)
    x, w1, b1, w2, b2 = (rng.standard_normal(n).astype(np.float32) for n in [(8, 2, 24), (64, 24), 64, (24, 64), 24])

    def program(torch, rank):
        first = tp.ColumnParallelLinear(24, 64, config=config)
        second = tp.RowParallelLinear(64, 24, config=config)
        first.load(w1, b1)
        second.load(w2, b2)
        part = x[rank * 8 // ranks :][: 8 // ranks] if sequence_parallel else x
        hidden, none = first(on(torch, part))
        assert none is None
        return second(hidden)[0].numpy()

    got = spawned(program, ranks)
    want = (x @ w1.T + b1) @ w2.T + b2
    if sequence_parallel:
        np.testing.assert_allclose(np.concatenate(got), want, rtol=1e-4, atol=1e-4)
        return
    for each in got:
        np.testing.assert_allclose(each, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(each, got[0])


@pytest.mark.parametrize("dp", [None, ONE_PE])
def test_gathered_outputs_and_scattered_inputs(dp):
    x, w, b = (rng.standard_normal(n).astype(np.float32) for n in [(3, 1, 16), (12, 16), 12])
    place = {} if dp is None else {"dp": dp}

    def program(torch, rank):
        column = tp.ColumnParallelLinear(16, 12, config=F32, gather_output=True, skip_bias_add=True, **place)
        row = tp.RowParallelLinear(16, 12, config=F32, input_is_parallel=False, skip_bias_add=True, **place)
        column.load(w, b)
        row.load(w, b)
        assert (tuple(column.weight.shape), tuple(row.weight.shape)) == ((6, 16), (12, 8))
        np.testing.assert_array_equal(row.weight.numpy(), w[:, rank * 8 : rank * 8 + 8])
        (y, own), (z, whole) = column(on(torch, x)), row(on(torch, x))
        return y.numpy(), own.numpy(), z.numpy(), whole.numpy()

    for rank, (y, own, z, whole) in enumerate(spawned(program, 2)):
        np.testing.assert_allclose(y, x @ w.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(z, x @ w.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(own, b[rank * 6 : rank * 6 + 6])
        np.testing.assert_array_equal(whole, b)


def test_the_weights_are_on_all_pes_unless_told_otherwise():
    with kb.session(machine(1), data=True) as torch:
        spread = tp.ColumnParallelLinear(32, 64, torch=torch)
        single = tp.ColumnParallelLinear(32, 64, torch=torch, dp=ONE_PE)
        x = torch.randn(2, 1, 32, dtype=torch.float16, device="ahbm")
        a, b = spread(x), single.forward(x)
        assert len(spread.weight.pes) == torch.engine.machine.config.pes_per_sip
        assert len(single.weight.pes) == 1
        np.testing.assert_array_equal(a.numpy(), b.numpy())  # a light layer returns the tensor, the same weights


def test_results_do_not_depend_on_the_number_of_ranks():
    x = rng.standard_normal((2, 1, 16)).astype(np.float32)

    def program(torch, rank):
        return tp.ColumnParallelLinear(16, 8, config=F32, gather_output=True)(on(torch, x))[0].numpy()

    one, two = spawned(program, 1), spawned(program, 2)
    np.testing.assert_allclose(one[0], two[0], rtol=1e-5)


def test_init_method_gets_the_part_of_the_rank():
    def program(torch, rank):
        layer = tp.RowParallelLinear(8, 6, config=F32, init_method=lambda w: w.copy_(torch.full(w.shape, rank + 1.0)))
        return layer.weight.numpy()

    for rank, weight in enumerate(spawned(program, 2)):
        np.testing.assert_array_equal(weight, np.full((6, 4), rank + 1.0))


MAPPINGS = {
    "scatter_to_tensor_model_parallel_region": lambda xs, r: np.split(xs[r], len(xs), -1)[r],
    "gather_from_tensor_model_parallel_region": lambda xs, r: np.concatenate(xs, -1),
    "reduce_from_tensor_model_parallel_region": lambda xs, r: sum(xs),
    "copy_to_tensor_model_parallel_region": lambda xs, r: xs[r],
    "scatter_to_sequence_parallel_region": lambda xs, r: np.split(xs[r], len(xs), 0)[r],
    "gather_from_sequence_parallel_region": lambda xs, r: np.concatenate(xs, 0),
    "reduce_scatter_to_sequence_parallel_region": lambda xs, r: np.split(sum(xs), len(xs), 0)[r],
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dp", [ONE_PE, kb.DPPolicy("column_wise", "column_wise")])
def test_mappings(ranks, dp):
    xs = rng.integers(-9, 9, (ranks, 4, 1, 16)).astype(np.float32)

    def program(torch, rank):
        return {name: getattr(tp, name)(on(torch, xs[rank], dp)).numpy() for name in MAPPINGS}

    for rank, got in enumerate(spawned(program, ranks)):
        for name, function in MAPPINGS.items():
            np.testing.assert_array_equal(got[name], function(list(xs), rank), err_msg=name)


def test_groups_of_ranks():
    def program(torch, rank):
        return (
            ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size(),
            ps.get_data_parallel_rank(), ps.get_data_parallel_world_size(),
            ps.get_context_parallel_world_size(), ps.get_pipeline_model_parallel_rank(),
            torch.distributed.get_process_group_ranks(ps.get_data_parallel_group()),
        )  # fmt: skip

    got = spawned(program, 4, tensor=2)
    assert got == [
        (0, 2, 0, 2, 1, 0, [0, 2]),
        (1, 2, 0, 2, 1, 0, [1, 3]),
        (0, 2, 1, 2, 1, 0, [0, 2]),
        (1, 2, 1, 2, 1, 0, [1, 3]),
    ]


def fails(program, ranks=2):
    with kb.session(machine(ranks), data=True) as torch, pytest.raises(ProcessRaisedException) as caught:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)
    return str(caught.value.__cause__)


def test_groups_are_refused_before_they_are_made():
    with pytest.raises(KernbenchError, match="not initialized on this rank"):
        ps.get_tensor_model_parallel_rank()
    assert not ps.model_parallel_is_initialized()
    with pytest.raises(KernbenchError, match="not initialized on this rank"):
        tp.ColumnParallelLinear(4, 4, config=F32)

    def early(rank, torch):
        ps.initialize_model_parallel(2, torch=torch)

    def wrong(rank, torch):
        torch.distributed.init_process_group("ahbm")
        ps.initialize_model_parallel(3, torch=torch)

    def twice(rank, torch):
        torch.distributed.init_process_group("ahbm")
        ps.initialize_model_parallel(2, torch=torch)
        ps.initialize_model_parallel(2, torch=torch)

    assert "init_process_group() has to come first" in fails(early)
    assert "world of 2 ranks is not divisible by 3 (tensor model 3 x" in fails(wrong)
    assert "has its groups already" in fails(twice)


def test_sizes_that_do_not_divide_are_refused():
    def column(torch, rank):
        with pytest.raises(KernbenchError, match="ColumnParallelLinear: output_size = 7 is not divisible by"):
            tp.ColumnParallelLinear(4, 7, config=F32)
        with pytest.raises(KernbenchError, match="RowParallelLinear: input_size = 5"):
            tp.RowParallelLinear(5, 4, config=F32)
        with pytest.raises(KernbenchError, match="x has 3 columns, the weight takes 4"):
            tp.ColumnParallelLinear(4, 4, config=F32)(torch.zeros(2, 1, 3, device="ahbm"))
        with pytest.raises(KernbenchError, match=r"RowParallelLinear: weight of shape \(4, 6\); expected \(6, 4\)"):
            tp.RowParallelLinear(4, 6, config=F32).load(np.zeros((4, 6)))
        with pytest.raises(KernbenchError, match=r"ColumnParallelLinear: bias of shape \(2,\); expected \(6,\)"):
            tp.ColumnParallelLinear(4, 6, config=F32).load(np.zeros((6, 4)), np.zeros(2))
        with pytest.raises(PlacementError, match="on the host"):
            tp.ColumnParallelLinear(4, 4, config=F32)(torch.zeros(2, 1, 4))

    spawned(column, 2)
