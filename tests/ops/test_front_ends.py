"""The same product takes about the same time by every front end, wherever its operands are."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench import DPPolicy, dtensor, tp
from kernbench.errors import ArgumentError
from kernbench.ops._routes import host_ns
from kernbench.ops._stored import Stored
from kernbench.ops.matmul import PLACEMENTS, Product, choose_placement
from kernbench.runtime_api import _products

MACHINE = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
ROWS, COLUMNS = (DPPolicy(cube=name, pe=name) for name in ("row_wise", "column_wise"))
SHAPES = [(128, 128, 256), (1, 256, 512)]  # m, n, k


@pytest.fixture(scope="module")
def fastest():
    """What `kb.gemm` finds for each shape."""
    return {shape: kb.gemm(*shape, machine=MACHINE).simulated_ns for shape in SHAPES}


def front_end_of(name, torch, shape, dp_x, dp_w):
    """A function that computes x w by a front end; `dp_w` places the weight, (k, n), or of `F.linear` (n, k)."""
    m, n, k = shape
    made = {"dtype": torch.float16, "device": "ahbm"}
    x = torch.empty(m, k, dp=dp_x, **made)
    if name.startswith("tp"):
        layer = tp.ColumnParallelLinear(k, n, bias="bias" in name, torch=torch, dp=dp_w)
        return lambda: layer(x)
    if name == "F.linear":
        w = torch.empty(n, k, dp=dp_w, **made)
        return lambda: torch.nn.functional.linear(x, w)
    w = torch.empty(k, n, dp=dp_w, **made)
    if name == "x @ w":
        return lambda: x @ w
    torch.distributed.init_process_group("ahbm", world_size=1)
    mesh = dtensor.DeviceMesh("ahbm", [0], torch=torch)
    a, b = (dtensor.DTensor.from_local(local, mesh, [dtensor.Replicate()]) for local in (x, w))

    def product():
        return (a @ b).to_local()

    return product


def warm_ns(front_end, shape, dp_x, dp_w):
    """The time of the launches of a second call [ns], and its choice."""
    with kb.session(MACHINE) as torch:
        call = front_end_of(front_end, torch, shape, dp_x, dp_w)
        for _ in range(2):
            torch.ahbm.synchronize()
            before = len(torch.result.launches)
            y = call()
    launches = torch.result.launches[before:]
    return sum(launch.end_ps - launch.start_ps for launch in launches) / 1000, y.choice


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("front_end", "dp_w"),
    [("x @ w", COLUMNS), ("F.linear", ROWS), ("tp", COLUMNS), ("tp with a bias", COLUMNS), ("DTensor", COLUMNS)],
)
def test_operands_that_are_where_they_should_be_take_as_long_as_the_fastest(fastest, front_end, dp_w, shape):
    assert warm_ns(front_end, shape, ROWS, dp_w)[0] <= 1.3 * fastest[shape]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dp", [None, ROWS, COLUMNS])
@pytest.mark.parametrize("front_end", ["x @ w", "DTensor"])
def test_operands_elsewhere_take_twice_as_long_at_most(fastest, front_end, dp, shape):
    assert warm_ns(front_end, shape, dp, dp)[0] <= 2 * fastest[shape]


def test_operands_are_moved_as_the_result_says():
    with kb.session(MACHINE) as torch:
        x, w = (torch.empty(*size, dtype=torch.float16, device="ahbm") for size in ((512, 512), (512, 256)))
        moves = [(x @ w).choice for _ in range(2)]
    names = [launch.name for launch in torch.result.launches]
    assert moves[0].a
    assert moves[0].b
    assert names.count("matmul move a") == len(moves[0].a) + len(moves[1].a)
    assert names.count("matmul move b") == len(moves[0].b)  # it stays there


def test_the_result_says_which_placement_was_used_and_why():
    _, choice = warm_ns("x @ w", SHAPES[0], ROWS, ROWS)
    assert choice.placement in PLACEMENTS
    assert choice.why.startswith("least estimate, ")
    assert set(choice.estimates_ns) == set(PLACEMENTS)


def values(torch, shape, dp_w=ROWS):
    """Two matrices, placed by rows unless the second one is elsewhere, and their product by numpy."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, size).astype(np.float16) for size in ((m, k), (k, n)))
    return torch.from_numpy(x).to("ahbm", dp=ROWS), torch.from_numpy(w).to("ahbm", dp=dp_w), x @ w


@pytest.mark.parametrize("dp_x", [ROWS, COLUMNS, None])
@pytest.mark.parametrize("placement", [None, *PLACEMENTS])
def test_a_bias_is_added_in_every_placement(placement, dp_x):
    rng = np.random.default_rng(1)
    x, w, bias = (rng.integers(-3, 4, size).astype(np.float16) for size in ((5, 4, 40), (30, 40), 30))
    with kb.session(MACHINE, data=True) as torch:
        made = [torch.from_numpy(a).to("ahbm", dp=dp) for a, dp in ((x, dp_x), (w, ROWS), (bias, DPPolicy()))]
        y = torch.nn.functional.linear(*made, placement=placement)
        np.testing.assert_array_equal(y.numpy(), x @ w.T + bias)
        assert "add" not in [launch.name for launch in torch.result.launches]


@pytest.mark.parametrize("placement", [*PLACEMENTS, DPPolicy(cube="row_wise", pe="replicate"), COLUMNS])
def test_a_placement_that_is_asked_for_is_used(placement):
    with kb.session(MACHINE, data=True) as torch:
        x, w, expected = values(torch, (20, 40, 30))
        y = torch.matmul(x, w, placement=placement)
        assert y.choice.placement == placement
        assert y.choice.why == "as asked for"
        np.testing.assert_array_equal(y.numpy(), expected)
        with pytest.raises(ArgumentError, match="placement 'diagonal' is unknown; known: rows, columns, 2-D"):
            torch.matmul(x, w, placement="diagonal")


@pytest.mark.parametrize(("dp", "size"), [(ROWS, (64, 64, 512)), (COLUMNS, (8, 256, 128)), (None, (32, 32, 32))])
def test_the_best_placement_is_found_by_trial_and_kept_on_disk(monkeypatch, tmp_path, dp, size):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    _products._best.cache_clear()
    m, n, k = size
    with kb.session(MACHINE) as torch:
        x, w = (torch.empty(*size, dtype=torch.float16, device="ahbm", dp=dp) for size in ((m, k), (k, n)))
        before, choice = 0, torch.matmul(x, w, placement="best").choice
        torch.ahbm.synchronize()
        if choice.b:  # it stays there: the trial counts a part of the move
            before = len(torch.result.launches)
            torch.matmul(x, w, placement="best")
    times = choice.simulated_ns
    assert times[choice.words] == min(times.values())
    assert choice.why.startswith("least simulated time of those with the least estimates: ")
    ran = torch.result.launches[before:]
    took = sum((x.end_ps - x.start_ps) / 1000 + host_ns(MACHINE.config) for x in ran)
    assert times[choice.words] >= took if choice.b else times[choice.words] == pytest.approx(took, rel=1e-9)
    _products._best.cache_clear()
    monkeypatch.setattr(_products, "_simulated_ns", None)
    with kb.session(MACHINE) as torch:
        x, w = (torch.empty(*size, dtype=torch.float16, device="ahbm", dp=dp) for size in ((m, k), (k, n)))
        assert torch.matmul(x, w, placement="best").choice == choice


def test_times_of_a_user_s_components_are_not_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(_products, "only_ours", lambda machine: False)
    _products._best.cache_clear()
    with kb.session(MACHINE) as torch:
        x, w = (torch.empty(32, 32, dtype=torch.float16, device="ahbm") for _ in range(2))
        assert torch.matmul(x, w, placement="best").choice.simulated_ns
    assert not any(tmp_path.iterdir())


def test_a_sum_of_nothing_is_not_split():
    nothing = Stored.strided((4, 0), (1, 1), [])
    product = Product(4, 4, 0, "float16", nothing, Stored.strided((0, 4), (4, 1), []))
    with pytest.raises(ArgumentError, match="'split-K': k = 0, so there is no sum to split"):
        choose_placement(MACHINE, product, "split-K")


def overwrite(w, *, tl):
    tl.store(w, tl.full((4,), 2, w.dtype.element_ty))


def overwrite_at(x, offset, *, tl):
    if tl.program_id(0) == tl.program_id(1) == 0:
        tl.store(x + offset, tl.full((4,), 2, x.dtype.element_ty))


@pytest.mark.parametrize("change", ["copy_", "launch", "address", "poke", "in place", "replay"])
def test_a_weight_that_has_changed_is_moved_again(change):
    with kb.session(MACHINE, data=True) as torch:
        x, w, expected = values(torch, (128, 128, 256), dp_w=None)
        np.testing.assert_array_equal(torch.matmul(x, w, placement="2-D").numpy(), expected)
        assert w._handle.moved
        with torch.ahbm.graph() as graph:
            torch.launch("overwrite", overwrite, w)
        new = w.numpy()
        if change == "copy_":
            new += 1
            w.copy_(torch.from_numpy(new))
        elif change == "poke":
            new += 1
            w.poke(new)
        elif change == "in place":
            new += 1
            w += 1
        else:
            new[0, :4] = 2
            if change == "launch":
                torch.launch("overwrite", overwrite, w)
            elif change == "address":  # of another tensor, and of memory beyond it
                torch.launch("overwrite", overwrite_at, x, (w.data_ptr() - x.data_ptr()) // 2)
            else:
                graph.replay()
        np.testing.assert_array_equal(torch.matmul(x, w, placement="2-D").numpy(), x.numpy() @ new)


TABLE = [(256, 256, 256), (512, 512, 512), (1, 8192, 8192), (16, 1280, 8192), (128, 3584, 8192), (2048, 4096, 1024)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", TABLE, ids=lambda shape: " x ".join(map(str, shape)))
def test_the_table_of_front_ends_on_the_default_machine(monkeypatch, shape):
    """At most 1.65x of `kb.gemm`, which places all as it likes; 2.5x with both operands elsewhere, moves included."""
    monkeypatch.setitem(globals(), "MACHINE", kb.load("preset:default"))
    least = kb.gemm(*shape, machine=MACHINE, progress=False).simulated_ns
    placed = [warm_ns(name, shape, ROWS, w)[0] for name, w in (("x @ w", COLUMNS), ("F.linear", ROWS), ("tp", COLUMNS))]
    elsewhere = [warm_ns("x @ w", shape, dp, dp)[0] for dp in (ROWS, COLUMNS, None)]
    assert max(placed) <= 1.65 * least
    assert max(placed) <= 1.3 * min(placed)
    assert max(elsewhere) <= 2.5 * least
