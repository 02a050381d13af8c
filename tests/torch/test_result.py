"""What a reader sees of a call: the tables in words and units, as text and as HTML."""

from __future__ import annotations

import gc
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import kernbench as kb  # noqa: E402
from kernbench.sim_engine._observer import Observer  # noqa: E402
from kernbench.torch._result import quantity  # noqa: E402
from tests.torch.models import Mlp  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def result(machine, **options):
    torch._dynamo.reset()
    compiled = kb.torch.compile(Mlp().half(), machine, data=False, **options)
    with torch.no_grad():
        compiled(torch.randn(8, 64).half())
    return compiled.result


@pytest.fixture(scope="module")
def alone():
    return result("preset:small")


@pytest.mark.parametrize(
    ("x", "text"),
    [(0, ""), (999, "999 B"), (1000, "1.00 kB"), (12_345, "12.3 kB"), (123_456, "123 kB"), (5.678e12, "5.68 TB")],
)
def test_quantities_have_three_digits_and_the_unit_that_suits_them(x, text):
    assert quantity(x, "B") == text


def test_the_table_in_words_has_what_the_table_has(alone):
    for words, row in zip(alone._shown(), alone.table.to_dict("records"), strict=True):
        assert words["module"] == row["module"]
        assert float(words["time [ns]"].replace(",", "")) == pytest.approx(row["ns"], abs=0.05)
        assert words["moved"] == quantity(row["bytes"], "B")
        assert words["computed"] == quantity(row["flops"], "FLOP")
    assert "gate" in repr(alone)
    assert " kFLOP" in repr(alone)


def test_the_page_shows_modules_launches_and_a_bar_of_the_whole_time(alone):
    page = alone._repr_html_()
    assert page.count("<table") == 2
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", page)
    assert heads[:5] == ["module", "launches", "time [ns]", "share", "limit"]
    assert page.count("<tr>") == 2 + len(alone.table) + len(alone.launches)
    widths = [float(x) for x in re.findall(r'<rect x="[\d.]+" width="([\d.]+)"', page)]
    assert sum(widths) == pytest.approx(640, abs=0.1)
    assert page.count("overflow-x:auto") == 2  # a wide table scrolls, not the page


def test_names_of_modules_are_text_on_the_page():
    torch._dynamo.reset()
    model = torch.nn.Sequential()
    model.add_module("a<b", torch.nn.Linear(8, 8))
    compiled = kb.torch.compile(model, "preset:small")
    with torch.no_grad():
        compiled(torch.randn(2, 8))
    assert "a&lt;b" in compiled.result._repr_html_()
    assert "a<b" not in compiled.result._repr_html_()


def test_waiting_is_shown_where_a_rank_waits_and_only_there(alone):
    two = kb.load("preset:small", {"system.sips": {"count": 2, "topology": "ring_1d"}})
    plan = {"gate": "columns", "up": "columns", "down": "rows"}
    both = result(two, tp=2, plan=plan)
    assert "waiting [ns]" not in repr(alone)
    assert ("waiting [ns]" in repr(both)) == (both.table["wait_ns"] > 0).any()


def test_the_records_of_a_call_are_collected_once():
    torch._dynamo.reset()
    compiled, x = kb.torch.compile(Mlp().half(), "preset:small", data=False), torch.randn(8, 64).half()
    with torch.no_grad():
        compiled(x)
        first = compiled.result.records
        assert compiled.result.records is first
        compiled(x)
    assert len(compiled.result.records.launches) == 2 * len(first.launches)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_cycle_collector_pauses_during_a_call_and_is_then_as_before(enabled):
    torch._dynamo.reset()
    compiled, seen = kb.torch.compile(Mlp().half(), "preset:small", data=False), set()

    class Look(Observer):
        def launch_sent(self, launch):
            seen.add(gc.isenabled())

    compiled._device.session.engine.observers.append(Look())
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with torch.no_grad():
            compiled(torch.randn(8, 64).half())
        assert compiled.result.latency_ns > 0
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == {False}


def test_what_if_and_tornado_are_about_the_call(alone):
    slower = "cube.hbm.channel_bw_gbs=16"
    found = alone.what_if(slower)
    assert found.simulated_ns == alone.latency_ns
    table = alone.placements
    same = dict(zip(table["launch"].str.rpartition("/")[0], table["placement"], strict=True))
    again = result(kb.load("preset:small", [slower]), placement=same)
    assert found.predicted_ns == pytest.approx(again.latency_ns, rel=0.1)
    assert alone.what_if([]).predicted_ns == pytest.approx(alone.latency_ns)
    field, (half, _) = alone.tornado().rows[0]
    assert half.ratio == alone.what_if({field: half.changes[0].new}).ratio


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_share_of_the_roofline_is_that_of_the_type_and_of_the_cache(dtype):
    """On an A100 a product reads operands from its cache, many times; its rate in f32 is a sixteenth."""
    torch._dynamo.reset()
    compiled = kb.torch.compile(torch.nn.Linear(512, 512, bias=False).to(dtype), "preset:a100_sxm", data=False)
    with torch.no_grad():
        compiled(torch.randn(2048, 512, dtype=dtype))
    assert 0.3 < compiled.result.table["of_roofline"].max() < 1
