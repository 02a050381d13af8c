"""Placements of products: which are tried, which is chosen, and what a product takes in addition to its kernel."""

from __future__ import annotations

from math import inf

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench._dtypes import as_dtype  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.policy.placement.dp import DPPolicy  # noqa: E402
from kernbench.torch import _kernels as kernels  # noqa: E402
from kernbench.torch import _placement as placement  # noqa: E402
from kernbench.torch import _steps as steps  # noqa: E402
from kernbench.torch._memory import Memory  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


@pytest.fixture
def asked(monkeypatch):
    """The products whose placement is asked for."""
    found = []

    def noted(machine, product, wanted):
        found.append(product)
        return placement.choose(machine, product, wanted)

    monkeypatch.setattr(steps, "choose", noted)
    return found


def call(function, *shapes, **options):
    compiled = kb.torch.compile(function, MACHINE, data=False, **options)
    compiled(*(torch.randn(shape).half() for shape in shapes))
    return compiled.result


def direct(product, shapes, shares) -> float:
    """Return the time of the native kernel, launched by hand on tensors of these shapes [ns]."""
    batch, m, k, n = (getattr(product, name) for name in ("batch", "m", "k", "n"))
    out = (*shapes[0][:-1], n)
    with kb.session(MACHINE) as machine:
        memory = Memory(machine, 0)
        strides = [torch.empty(shape, device="meta").stride() for shape in (*shapes, out)]
        tensors = [memory.allocate(*each, torch.float16) for each in zip((*shapes, out), strides, strict=True)]
        a, b, c = (memory.place(x) for x in tensors)
        machine.ahbm.synchronize()
        args = (a.matrix, b.matrix, None, c.matrix, k, 1.0, 1.0, shares)
        machine._host.launch(0, sorted(shares), kernels.matmul, args, "mm", [x.buffer._handle for x in (a, b, c)])
    assert batch * m * n == tensors[2].numel()
    (launch,) = machine.result.launches
    return (launch.end_ps - launch.start_ps) / 1000


@pytest.mark.parametrize(
    "shapes",
    [[(128, 128), (128, 128)], [(1, 512), (512, 512)], [(100, 300), (300, 50)], [(12, 197, 64), (12, 64, 197)]],
    ids=["square", "decode", "ragged", "batch"],
)
@pytest.mark.slow
def test_a_product_takes_the_time_of_the_best_direct_kernel(asked, shapes):
    (part,) = call(torch.matmul, *shapes).launches
    machine, (product,) = kb.load(MACHINE), asked
    found = [direct(product, shapes, shares) for shares in placement.candidates(machine.config, product).values()]
    assert part.ns == min(found)
    assert max(found) > 1.1 * min(found)  # the choice matters


def test_the_report_says_what_was_tried():
    table = call(torch.matmul, (1, 512), (512, 512)).placements
    (row,) = table.to_dict("records")
    assert (row["launch"], row["placement"], row["chosen_by"]) == ("mm", "columns", "trial")
    assert row["columns_tried_ns"] == row["simulated_ns"]
    tried = {name: row[f"{name}_tried_ns"] for name in placement.PLACEMENTS}
    assert all(tried[name] == inf or tried[name] >= tried["columns"] for name in tried if tried[name] == tried[name])
    assert set(tried.values()) - {tried["columns"]}  # others, too


def test_a_placement_that_is_slower_is_stopped_at_the_end_of_the_best_one(asked):
    call(torch.matmul, (128, 128), (128, 128))
    machine, (product,) = kb.load(MACHINE), asked
    shares = placement.candidates(machine.config, product)
    ns, end_ns = placement.simulate(machine, product, shares["replicated"])
    assert placement.simulate(machine, product, shares["replicated"], end_ns) == (ns, end_ns)
    assert placement.simulate(machine, product, shares["replicated"], end_ns - 1) == (inf, inf)


def test_a_large_product_goes_by_the_estimate(asked, monkeypatch):
    call(torch.matmul, (64, 64), (64, 64))
    machine, (product,) = kb.load(MACHINE), asked
    monkeypatch.setattr(placement, "MOST_MACS", 64**3)
    assert placement.choose(machine, product, None).tried_ns
    monkeypatch.setattr(placement, "MOST_MACS", 64**3 - 1)
    placement._trials.cache_clear()
    choice = placement.choose(machine, product, None)
    assert choice.tried_ns == {}
    assert choice.estimates_ns[choice.name] == min(choice.estimates_ns.values())


@pytest.mark.parametrize(
    ("m", "k", "n", "simulated"),
    [
        (512, 512, 512, {"rows": 15133, "2-D": 5626, "2-D turned": 5002}),
        (197, 768, 3072, {"rows": 103176, "columns": 12509, "2-D": 9787}),
        (2048, 1024, 1024, {"rows": 56951, "2-D": 34670, "2-D turned": 18681}),
        (2048, 8192, 1024, {"2-D": 249646, "2-D turned": 144373}),
        (2048, 8192, 128, {"rows": 56409, "2-D": 236941, "2-D turned": 41999}),
        (2048, 8192, 3584, {"2-D": 321936}),
        (2048, 3584, 8192, {"2-D": 238867}),
    ],
)
def test_estimates_are_near_simulated_times(m, k, n, simulated):
    """The times are those that the default machine took, once: some take the host ten seconds."""

    def operand(rows, columns, strides):
        policy = DPPolicy(cube="row_wise", pe="row_wise")
        return placement.Operand((rows, 2 * columns), policy, 0, as_dtype("f16"), strides)

    a, b, out = operand(m, k, (0, k, 1)), operand(n, k, (0, 1, k)), operand(m, n, (0, n, 1))
    product = placement.Product(1, m, k, n, a, b, None, out, 1.0, 1.0)
    config = kb.load("preset:default").config
    for name, shares in placement.candidates(config, product).items():
        if name in simulated:
            assert placement._estimate(config, name, shares, product) == pytest.approx(simulated[name], rel=0.4)


def test_a_product_is_tried_once_for_all_layers(asked, monkeypatch):
    runs = []
    simulate = placement.simulate

    def counted(*args):
        runs.append(args)
        return simulate(*args)

    monkeypatch.setattr(placement, "simulate", counted)
    placement._trials.cache_clear()
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3))).half()
    with torch.no_grad():
        call(layers, (32, 64))
    assert len(asked) == 3
    assert len(runs) <= len(placement.PLACEMENTS)


def test_the_placement_of_a_function_is_that_of_the_empty_name():
    row = call(torch.matmul, (64, 64), (64, 64), placement={"": "rows"}).placements.iloc[0]
    assert (row["placement"], row["chosen_by"]) == ("rows", "user")


def test_a_module_that_a_model_does_not_have():
    with pytest.raises(Exception, match=r"no module 'a'; those with operators are '' \(the model itself\), 0") as error:
        call(torch.nn.Sequential(torch.nn.Linear(64, 64)).half(), (8, 64), placement={"a": "rows"})
    assert ArgumentError.__name__ in str(error.value) or isinstance(error.value, ArgumentError)
