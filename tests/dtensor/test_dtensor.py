"""DTensor on the machine against the whole array in numpy: every move, uneven parts, rules, placements on PEs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import kernbench as kb
from kernbench import dtensor as dt
from kernbench._dtypes import float32
from kernbench.dtensor import Partial, Replicate, Shard
from kernbench.dtensor._placements import local_part
from kernbench.dtensor._redistribute import allocate, relaid
from kernbench.errors import KernbenchError, PlacementError
from tests.slow import slow_after
from tests.tp.test_layers import machine

WHOLE = np.arange(7 * 5, dtype=np.float32).reshape(7, 5)
ROWS = kb.DPPolicy("row_wise", "row_wise")
COLUMNS = kb.DPPolicy("column_wise", "column_wise")


def spawned(fn, ranks, shape=None, config=None):
    """Run `fn(torch, mesh)` on the ranks of a mesh; return what each returns, and the session's result."""
    found = {}

    def program(rank, torch):
        mesh = dt.init_device_mesh("ahbm", shape or (ranks,), torch=torch)
        found[rank] = fn(torch, mesh)

    with kb.session(config or machine(ranks), data=True) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)
    return [found[rank] for rank in range(ranks)], torch.result


def spread(torch, mesh, placements, dp=COLUMNS, whole=WHOLE):
    """The part that a rank holds of `whole`; a summand is the whole over the ranks of its axis."""
    part, first = local_part(whole.shape, mesh.shape, mesh.get_coordinate(), placements)
    values = whole[tuple(slice(a, a + n) for a, n in zip(first, part, strict=True))]
    for ranks, placement in zip(mesh.shape, placements, strict=True):
        values = values / ranks if isinstance(placement, Partial) else values
    local = torch.tensor(values, dtype=float32, device="ahbm", dp=dp)
    return dt.DTensor.from_local(local, mesh, placements, shape=whole.shape)


MOVES = [
    (Shard(0), Replicate(), "all_gather"), (Shard(1), Replicate(), "all_gather"), (Replicate(), Shard(1), None),
    (Shard(0), Shard(1), "all_to_all"), (Shard(1), Shard(0), "all_to_all"), (Partial(), Replicate(), "all_reduce"),
    (Partial(), Shard(0), "reduce_scatter"), (Partial(), Shard(1), "reduce_scatter"), (Replicate(), Partial(), None),
]  # fmt: skip


@pytest.mark.parametrize("dp", slow_after(1, [ROWS, COLUMNS, kb.DPPolicy(num_cubes=1, num_pes=1)]))
@pytest.mark.parametrize(("source", "target", "collective"), MOVES)
@pytest.mark.parametrize("rows", [7, 6])  # uneven parts are padded on their way
def test_every_move(source, target, collective, dp, rows):
    given = WHOLE[:rows]

    def program(torch, mesh):
        moved = spread(torch, mesh, [source], dp, given).redistribute(placements=[target])
        want = spread(torch, mesh, [target], whole=given).to_local().numpy()
        assert moved.to_local().layout.dp == dp
        return moved.to_local().numpy(), want, moved.full_tensor().numpy()

    got, result = spawned(program, 2)
    for local, want, whole in got:
        np.testing.assert_array_equal(whole, given)
        if target != Partial():
            np.testing.assert_array_equal(local, want)
    launches = " ".join(launch.name for launch in result.launches)
    assert collective is None or collective in launches


@pytest.mark.parametrize("source", [[Shard(0), Shard(0)], [Shard(1), Partial()], [Partial(), Shard(0)]])
@pytest.mark.parametrize(
    "target", slow_after(1, [[Replicate(), Shard(0)], [Shard(0), Shard(1)], [Replicate(), Replicate()]])
)
def test_two_axes(source, target):
    def program(torch, mesh):
        moved = spread(torch, mesh, source).redistribute(placements=target)
        return moved.to_local().numpy(), spread(torch, mesh, target).to_local().numpy()

    for got, want in spawned(program, 4, (2, 2))[0]:
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_parts_may_be_empty():
    def program(torch, mesh):
        three = np.arange(6, dtype=np.float32).reshape(2, 3)
        parts = spread(torch, mesh, [Shard(0)], whole=three)
        return (
            parts.to_local().numpy(),
            parts.full_tensor().numpy(),
            parts.redistribute(placements=[Shard(1)]).full_tensor().numpy(),
        )

    got, _ = spawned(program, 3)
    assert [local.shape for local, _, _ in got] == [(1, 3), (1, 3), (0, 3)]
    for _, whole, other in got:
        np.testing.assert_array_equal(whole, np.arange(6).reshape(2, 3))
        np.testing.assert_array_equal(other, np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(("rows", "ranks", "preset"), [(1, 2, "small"), (8, 6, "six_sip_torus")])
@pytest.mark.parametrize("src_data_rank", [0, None])
def test_an_empty_part_of_a_device_tensor_lies_as_the_others(rows, ranks, preset, src_data_rank):
    x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)

    def program(torch, mesh):
        parts = dt.distribute_tensor(torch.tensor(x, device="ahbm"), mesh, [Shard(0)], src_data_rank=src_data_rank)
        wholes = [y.full_tensor() for y in (parts, parts.redistribute(placements=[Shard(1)]), parts + parts, parts * 2)]
        return parts.to_local().shape[0], [(len(y.pes), y.numpy()) for y in wholes]

    config = machine(ranks) if preset == "small" else kb.load(f"preset:{preset}")
    got, _ = spawned(program, ranks, config=config)
    assert 0 in [n for n, _ in got]
    assert sum(n for n, _ in got) == rows
    for _, wholes in got:
        for (pes, values), factor in zip(wholes, (1, 1, 2, 2), strict=True):
            assert pes == 1  # where the tensor lay
            np.testing.assert_array_equal(values, factor * x)


def test_parts_of_one_row_lie_as_larger_ones():
    def program(torch, mesh):
        x = torch.tensor(WHOLE[:3], device="ahbm", dp=ROWS)
        return dt.distribute_tensor(x, mesh, [Shard(0)]).full_tensor().numpy()

    for whole in spawned(program, 2)[0]:
        np.testing.assert_array_equal(whole, WHOLE[:3])


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()])
@pytest.mark.parametrize("src_data_rank", [0, None])
def test_distribute(placement, src_data_rank):
    def program(torch, mesh):
        rank = mesh.get_local_rank()
        own = torch.from_numpy(WHOLE + rank) if src_data_rank == 0 else torch.from_numpy(WHOLE)
        spread_out = dt.distribute_tensor(own, mesh, [placement], src_data_rank=src_data_rank)
        return spread_out.full_tensor().numpy()

    got, result = spawned(program, 2)
    for whole in got:
        np.testing.assert_array_equal(whole, WHOLE)
    launches = " ".join(launch.name for launch in result.launches)
    wanted = "broadcast" if placement == Replicate() else "exchange"
    assert (wanted in launches) == (src_data_rank == 0)


@pytest.mark.parametrize(("a", "b"), slow_after(4, product([Replicate(), Shard(0), Shard(1)], repeat=2)))
def test_matmul(a, b):
    x, y = np.random.default_rng(1).standard_normal((2, 6, 6)).astype(np.float32)

    def program(torch, mesh):
        left, right = spread(torch, mesh, [a], whole=x), spread(torch, mesh, [b], ROWS, y)
        out = left @ right
        return out.placements, out.full_tensor().numpy()

    for placements, got in spawned(program, 2)[0]:
        np.testing.assert_allclose(got, x @ y, rtol=1e-4, atol=1e-4)
        known = {(Replicate(), Shard(1)): Shard(1), (Shard(0), Replicate()): Shard(0), (Shard(1), Shard(0)): Partial()}
        assert placements[0] == known.get((a, b), placements[0])


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [(Shard(0), Replicate(), Shard(0)), (Shard(1), Replicate(), Shard(1)), (Shard(2), Shard(0), Partial()),
     (Replicate(), Shard(1), Shard(2))],
)  # fmt: skip
@pytest.mark.parametrize("dp", [ROWS, COLUMNS])
def test_a_product_of_more_dims_with_a_matrix(a, b, result, dp):
    x, y = (np.random.default_rng(2).integers(-4, 5, n).astype(np.float32) for n in ((3, 2, 5), (5, 7)))

    def program(torch, mesh):
        out = spread(torch, mesh, [a], dp, x) @ spread(torch, mesh, [b], dp, y)
        assert (out.placements, out.to_local().layout.dp) == ((result,), ROWS)
        with pytest.raises(PlacementError, match=r"shapes \(3, 2, 5\) and \(3, 2, 5\) do not fit; b is a matrix"):
            spread(torch, mesh, [a], dp, x) @ spread(torch, mesh, [a], dp, x)
        return out.full_tensor().numpy()

    for got in spawned(program, 2)[0]:
        np.testing.assert_array_equal(got, x @ y)


def test_a_rank_without_inner_elements_has_a_summand_of_zeros():
    x, y = WHOLE[:, :2], WHOLE[:2]

    def program(torch, mesh):
        left, right = spread(torch, mesh, [Shard(1)], whole=x), spread(torch, mesh, [Shard(0)], whole=y)
        used = torch.full((64, 64), 7.0, device="ahbm", dp=COLUMNS)
        used.numpy()
        del used  # whatever it left in memory
        return (left @ right).full_tensor().numpy()

    for got in spawned(program, 3)[0]:
        np.testing.assert_array_equal(got, x @ y)


def test_elementwise():
    def program(torch, mesh):
        a, b = spread(torch, mesh, [Shard(0)]), spread(torch, mesh, [Replicate()], ROWS)
        summand = spread(torch, mesh, [Partial()])
        kinds = [
            (a + b).placements,
            (summand + summand).placements,
            (summand * b).placements,
            summand.relu().placements,
        ]
        values = [
            x.full_tensor().numpy()
            for x in (a + b, a * b, summand + summand, summand * b, a.relu(), a.silu(), a.gelu())
        ]
        return kinds, values

    x = WHOLE.astype(np.float64)
    gelu = x / (1 + np.exp(-1.5957691216057308 * (x + 0.044715 * x**3)))
    wanted = [2 * x, x * x, 2 * x, x * x, x, x / (1 + np.exp(-x)), gelu]
    for kinds, values in spawned(program, 2)[0]:
        assert kinds == [(Shard(0),), (Partial(),), (Partial(),), (Shard(0),)]
        for got, want in zip(values, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("dp", [ROWS, COLUMNS])
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate(), Partial()])
def test_numbers(placement, dp):
    def program(torch, mesh):
        d = spread(torch, mesh, [placement], dp)
        made = [d + 1, 1 + d, d * 2, 2 * d, d * np.float32(0.5), d + True]
        return [y.placements[0] for y in made], [y.full_tensor().numpy() for y in made]

    wanted = [WHOLE + 1, WHOLE + 1, WHOLE * 2, WHOLE * 2, WHOLE / 2, WHOLE + 1]
    added = Replicate() if placement == Partial() else placement
    for kinds, values in spawned(program, 2)[0]:
        assert kinds == [added, added, placement, placement, placement, added]
        for got, want in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_operands_that_are_no_dtensor_are_refused():
    def program(torch, mesh):
        d, plain = spread(torch, mesh, [Shard(0)]), torch.zeros(7, 5, device="ahbm")
        for mixed in (lambda: d + plain, lambda: plain * d, lambda: d @ plain, lambda: d + plain.cpu()):
            with pytest.raises(TypeError, match=r"a plain tensor of shape \(7, 5\): distribute it first"):
                mixed()
        with pytest.raises(TypeError, match=r"DTensor @ 2: expected a DTensor$"):
            d @ 2
        with pytest.raises(TypeError, match="expected a DTensor or a number"):
            d + "1"
        whole = dt.ones(2, 2, device_mesh=mesh, dtype=torch.int32)
        with pytest.raises(TypeError, match=r"mul: 0.5 with a DTensor of torch.int32; expected an int"):
            whole * 0.5
        assert (whole * 3).full_tensor().tolist() == [[3, 3], [3, 3]]

    spawned(program, 2)


def test_creation_does_not_depend_on_placements():
    def program(torch, mesh):
        made = [f(3, 4, device_mesh=mesh, placements=[Shard(1)]) for f in (dt.zeros, dt.ones, dt.rand, dt.randn)]
        again = dt.full((3, 4), 2.5, device_mesh=mesh, placements=[Replicate()])
        return [x.full_tensor().numpy() for x in (*made, again, dt.empty(3, 4, device_mesh=mesh))]

    (one, _), (two, _) = spawned(program, 1), spawned(program, 2)
    for values in two:
        np.testing.assert_array_equal(values[0], np.zeros((3, 4)))
        np.testing.assert_array_equal(values[1], np.ones((3, 4)))
        np.testing.assert_array_equal(values[4], np.full((3, 4), 2.5))
        np.testing.assert_array_equal(values[2], two[0][2])
    assert len(one) == 1


POLICIES = [
    ROWS, COLUMNS, kb.DPPolicy("row_wise", "column_wise", num_pes=1), kb.DPPolicy("replicate", "row_wise"),
    kb.DPPolicy(num_cubes=1, num_pes=1), kb.DPPolicy("row_wise", "tiled_row_major", tile=(1, 2)),
]  # fmt: skip


# Of 3 ranks the last has nothing: of rows, or of columns.
@pytest.mark.parametrize("dp", slow_after(2, POLICIES), ids=lambda dp: f"{dp.cube}-{dp.pe}")
@pytest.mark.parametrize("shape", slow_after(1, [((2, 5),), ((4, 1),)]))
def test_a_local_part_keeps_its_policy_through_every_move(shape, dp):
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1

    def program(torch, mesh):
        found = []
        for source, target, _ in MOVES:
            d = spread(torch, mesh, [source], dp, whole)
            want = spread(torch, mesh, [target], dp, whole).to_local()
            moved = d.redistribute(placements=[target])
            made = [moved, moved + moved, moved * 2, moved.relu(), dt.distribute_tensor(d.full_tensor(), mesh, [target])
                    ] if target != Partial() else [moved]  # fmt: skip
            found += [(t.to_local(), want) for t in made]
            np.testing.assert_allclose(moved.full_tensor().numpy(), whole, rtol=1e-6)
            assert moved.full_tensor().layout.dp == dp
        return [(got.layout.dp, got._has_layout_of(want)) for got, want in found]

    for found in spawned(program, 3)[0]:
        assert len(found) == 8 * 5 + 1
        assert {policy for policy, _ in found} == {dp}
        assert all(alike for _, alike in found)


def test_what_is_made_of_a_part_of_a_tensor_is_placed_by_rows():
    def program(torch, mesh):
        x = torch.tensor(np.arange(12, dtype=np.float32).reshape(4, 3), device="ahbm", dp=COLUMNS)
        for whole in (x[0:0], x[:], x.to(torch.float16)):
            assert allocate(whole, (4, 3)).layout.dp == COLUMNS
        part = torch.tensor(x.numpy(), device="ahbm", dp=ROWS)[1:]
        moved = dt.DTensor.from_local(part, mesh, [Shard(0)]).redistribute(placements=[Shard(1)])
        assert moved.to_local().layout.dp == ROWS
        return moved.full_tensor().numpy()

    for whole in spawned(program, 2)[0]:
        np.testing.assert_array_equal(whole, np.tile(np.arange(3, 12).reshape(3, 3), (2, 1)))


def test_a_square_part_is_not_taken_for_its_transposed():
    def program(torch, mesh):
        x = torch.tensor(np.arange(4, dtype=np.float32).reshape(2, 2), device="ahbm")
        with pytest.raises(PlacementError, match=r"transposed to shape \(2, 2\), placed as \(2, 2\)"):
            dt.DTensor.from_local(x.t(), mesh, [Replicate()])
        with pytest.raises(PlacementError, match="on the host"):
            dt.DTensor.from_local(x.cpu(), mesh, [Replicate()])
        same = dt.DTensor.from_local(x.t().contiguous(), mesh, [Replicate()]) @ dt.ones(2, 2, device_mesh=mesh)
        np.testing.assert_array_equal(same.to_local().numpy(), [[2, 2], [4, 4]])

    spawned(program, 1)


def test_meshes():
    def program(torch, mesh):
        named = dt.init_device_mesh("ahbm", (2, 2), mesh_dim_names=("dp", "tp"), torch=torch)
        line = named["tp"]
        with pytest.raises(KernbenchError, match="axis 'pp' does not exist; known: dp, tp"):
            named.get_group("pp")
        return (
            named.get_coordinate(), named.size(), named.size(1), named.ndim, line.mesh.tolist(), line.get_local_rank(),
            torch.distributed.get_process_group_ranks(named.get_group("dp")),
        )  # fmt: skip

    got = spawned(program, 4, (4,))[0]
    assert got[2] == ([1, 0], 4, 2, 2, [2, 3], 0, [0, 2])


def test_ranks_of_a_mesh_have_the_order_that_it_says():
    def program(torch, mesh):
        turned = dt.DeviceMesh("ahbm", [1, 0], torch=torch)
        parts = dt.distribute_tensor(torch.from_numpy(WHOLE), turned, [Shard(0)])
        assert turned.get_local_rank() == turned.get_coordinate()[0] == 1 - mesh.get_local_rank()
        return parts.to_local().numpy(), parts.full_tensor().numpy()

    (last, whole), (first, _) = spawned(program, 2)[0]
    np.testing.assert_array_equal(first, WHOLE[:4])
    np.testing.assert_array_equal(last, WHOLE[4:])
    np.testing.assert_array_equal(whole, WHOLE)


def test_a_tensor_of_many_rows_is_cut_along_its_last_dim():
    def program(torch, mesh):
        x = torch.tensor(np.arange(10_000, dtype=np.float32).reshape(-1, 2), device="ahbm", dp=ROWS)
        part = dt.DTensor.from_local(x, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
        many = torch.empty(1 << 15, 8, device="ahbm", dp=COLUMNS)
        with pytest.raises(PlacementError, match=r"takes 131,072 runs of bytes of another, more than 32768; give both"):
            relaid(many, ROWS)
        return part.to_local().numpy()

    for rank, part in enumerate(spawned(program, 2)[0]):
        np.testing.assert_array_equal(part[:, 0], np.arange(rank, 10_000, 2))


def test_what_does_not_fit_is_refused():
    def program(torch, mesh):
        with pytest.raises(PlacementError, match="this rank holds"):
            dt.DTensor.from_local(torch.zeros(2, 2, device="ahbm"), mesh, [Shard(0)], shape=(7, 2))
        with pytest.raises(PlacementError, match="a part is not a summand"):
            spread(torch, mesh, [Shard(0)]).redistribute(placements=[Partial()])
        with pytest.raises(PlacementError, match=r"expected a list .* of the mesh: \[Shard\(dim=0\)\]"):
            dt.distribute_tensor(torch.zeros(2, 2), mesh, Shard(0))
        with pytest.raises(PlacementError, match="expected a list"):
            spread(torch, mesh, [Shard(0)]).redistribute(placements=Replicate())
        with pytest.raises(PlacementError, match="do not fit"):
            spread(torch, mesh, [Shard(0)]) @ spread(torch, mesh, [Shard(0)])
        with pytest.raises(KernbenchError, match="does not hold 2 ranks"):
            dt.init_device_mesh("ahbm", (3,), torch=torch)
        with pytest.raises(KernbenchError, match='expected "ahbm"'):
            dt.DeviceMesh("cuda", [0, 1], torch=torch)

    spawned(program, 2)


def test_in_place_every_name_of_the_tensor_has_the_values():
    def program(torch, mesh):
        x = spread(torch, mesh, [Shard(0)])
        same = x
        x += spread(torch, mesh, [Shard(0)])
        x *= 3
        assert x is same
        return same.full_tensor().numpy()

    for found in spawned(program, 2)[0]:
        np.testing.assert_array_equal(found, 6 * WHOLE)


def test_in_place_keeps_the_placements_or_is_refused():
    def program(torch, mesh):
        x = spread(torch, mesh, [Partial()])
        with pytest.raises(PlacementError, match="would change the placements"):
            x += 1

    spawned(program, 2)


def test_a_comparison_is_no_silent_false():
    def program(torch, mesh):
        x = spread(torch, mesh, [Shard(0)])
        for other in (spread(torch, mesh, [Shard(0)]), 1, x.to_local()):
            with pytest.raises(TypeError, match="compare their values"):
                bool(x == other)

    spawned(program, 2)
