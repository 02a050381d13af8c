"""Placements of products in compiled models: the one of the least estimate, or the one asked for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.errors import ArgumentError  # noqa: E402
from kernbench.ops.matmul import PLACEMENTS  # noqa: E402
from tests.slow import slow_after  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
MACHINE = "preset:small"


def call(function, *shapes, machine=MACHINE, **options):
    torch._dynamo.reset()
    compiled = kb.torch.compile(function, machine, data=False, **options)
    compiled(*(torch.randn(shape).half() for shape in shapes))
    return compiled.result


@pytest.mark.parametrize(
    "shapes",
    [[(128, 128), (128, 128)], [(1, 512), (512, 512)], [(100, 300), (300, 50)], [(12, 197, 64), (12, 64, 197)]],
    ids=["square", "decode", "ragged", "batch"],
)
@pytest.mark.slow
def test_no_placement_is_much_faster_than_the_one_chosen(shapes):
    chosen = call(torch.matmul, *shapes).latency_ns
    found = [call(torch.matmul, *shapes, placement={"": name}).latency_ns for name in PLACEMENTS]
    assert chosen <= 1.15 * min(found)
    assert max(found) > 1.2 * min(found)  # the choice matters


def test_the_report_says_which_placement_was_used_and_why():
    (row,) = call(torch.matmul, (1, 512), (512, 512)).placements.to_dict("records")
    assert row["placement"] in PLACEMENTS
    assert row["why"].startswith("least estimate, ")
    estimates = {name: row[f"{name}_ns"] for name in PLACEMENTS}
    assert estimates[row["placement"]] == min(estimates.values())


def test_the_placement_of_a_function_is_that_of_the_empty_name():
    row = call(torch.matmul, (64, 64), (64, 64), placement={"": "rows"}).placements.iloc[0]
    assert (row["placement"], row["why"]) == ("rows", "as asked for")


def test_a_module_that_a_model_does_not_have():
    with pytest.raises(Exception, match=r"no module 'a'; those with operators are '' \(the model itself\), 0") as error:
        call(torch.nn.Sequential(torch.nn.Linear(64, 64)).half(), (8, 64), placement={"a": "rows"})
    assert ArgumentError.__name__ in str(error.value) or isinstance(error.value, ArgumentError)


def test_the_best_placement_is_found_by_trial():
    (row,) = call(torch.matmul, (8, 512), (512, 64), placement={"": "best"}).placements.to_dict("records")
    assert row["placement"] in PLACEMENTS
    assert row["why"].startswith("least simulated time of those with the least estimates: ")
    assert f"{row['placement']} " in row["why"]


@pytest.mark.parametrize("rows", slow_after(1, [1, 64]))
def test_weights_are_placed_where_a_product_reads_them(rows):
    layer = torch.nn.Linear(4096, 768, bias=False).half()
    with torch.no_grad():
        placed = call(layer, (rows, 4096), machine="preset:default")
        given = call(torch.nn.functional.linear, (rows, 4096), (768, 4096), machine="preset:default")
    assert placed.latency_ns < 0.98 * given.latency_ns


@pytest.mark.parametrize("rows", [3, 70])
def test_placed_weights_follow_those_of_the_model(rows):
    layers = torch.nn.ModuleList(torch.nn.Linear(200, n, bias=False) for n in (96, 40)).half()

    def model(x):
        return layers[0](x), layers[1](x)

    torch._dynamo.reset()
    x = torch.randn(rows, 200).half()
    compiled = kb.torch.compile(model, MACHINE, fuse=True, placement={"": "split-K in cubes"})
    with torch.no_grad():
        for _ in range(2):
            for found, expected in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
            for layer in layers:
                layer.weight.mul_(-2)
    assert compiled._device.memories[0]._constants


@pytest.mark.slow  # 30 s
def test_what_ranks_add_up_is_near_the_io_chiplet():
    machine = kb.load("preset:default", {"system.sips": {"count": 8, "topology": "ring_1d"}})
    layer, spread = torch.nn.Linear(4096, 4096, bias=False).half(), {}
    for rows in (1, 64):
        torch._dynamo.reset()
        compiled = kb.torch.compile(torch.nn.Sequential(layer), machine, data=False, tp=8, plan={"0": "rows"})
        with torch.no_grad():
            compiled(torch.empty(rows, 512).half())  # the part of a rank
        (summed,) = [step.summed for step in compiled._device.calls[-1].steps if step.summed is not None]
        spread[rows] = sorted({cube for cube, _ in summed.buffer.pes})
    assert spread == {1: [0], 64: [0, 4, 8, 12]}


@pytest.mark.parametrize("name", ["rows", "columns", "2-D", "split-K"])
def test_bytes_of_streamed_weights_count(name):
    layer = torch.nn.Linear(1024, 4096, bias=False).half()
    with torch.no_grad():
        result = call(layer, (1, 1024), placement={"": name})
    assert result.table["bytes"].sum() >= 2 * 1024 * 4096
