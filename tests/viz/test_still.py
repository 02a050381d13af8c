"""The still says in a drawing what the log says in numbers."""

from __future__ import annotations

import re
from itertools import combinations
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._records import LinkTable
from kernbench.analysis.utilization import hottest, pe_window, shares
from kernbench.viz import _palette as palette
from kernbench.viz import still
from kernbench.viz._scene import scene
from kernbench.viz.still import still_svg

NEAR = kb.DPPolicy(num_cubes=1, num_pes=1)
EVERYWHERE = kb.DPPolicy(cube="row_wise", pe="row_wise")


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:default")


def copied(machine, where):
    def copy(a, b, *, tl):
        tl.store(b, tl.load(a, shape=(2048,), dtype="f16"))

    with kb.session(machine, log="tile") as torch:
        a, b = (torch.empty(2048 * 8, dtype=torch.float16, device="ahbm", dp=where) for _ in range(2))
        torch.launch("copy", copy, a, b)
        b.numpy()
    return torch.result


@pytest.fixture(scope="module")
def run(machine):
    result = copied(machine, NEAR)
    return result, scene(machine, result.records, "copy")


def texts(svg):
    return [x.text for x in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_equal_scenes_have_equal_stills(machine, run):
    again = copied(machine, NEAR)
    assert still_svg(scene(machine, again.records, "copy")) == still_svg(run[1])


def test_it_asks_the_net_for_nothing_and_runs_nothing(run):
    assert re.findall(r"https?:[^\"]*", still_svg(run[1])) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in still_svg(run[1])


def test_loads_are_busy_time_over_the_time_in_which_pes_worked(run):
    result, (header, buffers) = run
    said = next(text for text in texts(still_svg((header, buffers))) if text.startswith("Load"))
    start, end = (float(x.replace(",", "")) for x in re.search(r"from ([\d,.]+) to ([\d,.]+) ns", said).groups())
    first, last = pe_window(result.records)
    width = header["run"]["end_ns"] / header["run"]["bins"]
    assert abs(start - first / 1000) <= 2 * width
    assert abs(end - last / 1000) <= 2 * width
    busy_ns = result.records.busy_by_component()["sip0.cube0.pe0.pe_dma"] / 1000
    assert f"DMA {busy_ns / (end - start):.0%}" in texts(still_svg((header, buffers)))


@pytest.mark.parametrize(
    ("where", "seen", "unseen"),
    [(NEAR, "Vector", "PE 7"), (kb.DPPolicy(num_cubes=1, cube="row_wise", pe="row_wise"), "PE 7", "Cube 2")],
    ids=["one PE", "one cube"],
)
def test_it_shows_the_smallest_part_with_all_pes_that_worked(machine, where, seen, unseen):
    svg = texts(still_svg(scene(machine, copied(machine, where).records, "copy")))
    assert any(text.startswith(seen) for text in svg)
    assert unseen not in svg


def test_a_machine_is_drawn_without_loads(machine):
    svg = still_svg(scene(machine))
    assert {"Host", "SIP 0", "SIP 1", "15"} <= set(texts(svg))
    assert 'class="f0"' not in svg.split("</style>")[1]
    assert not any("%" in text for text in texts(svg))


def test_the_critical_path_is_drawn_where_the_scene_has_one(run):
    header, buffers = run[1]
    assert "critical path" not in texts(still_svg((header, buffers)))
    assert '<path class="c"' not in still_svg((header, buffers))
    port, host = "sip0.cube0.r0c0->sip0.cube0.pe0.pe_dma", "host->switch"
    end_ps = 1000 * header["run"]["end_ns"]
    steps = [[end_ps / 2, end_ps, 0, 0, "", "", [[0, "", 1]]], [0, 1, 0, 0, "", "", [[1, "", 1]]]]
    path = {"resources": [port, host], "steps": steps}
    svg = still_svg(({**header, "path": path}, buffers))
    assert "critical path" in texts(svg)
    # The thread has one line, that of the step while PEs worked; then comes its key.
    thread, _ = re.findall(r'<path class="c" d="([^"]+)"', svg)
    assert thread.count("M") == 1


def luminance(colour):
    colour = colour if len(colour) == 7 else "#" + "".join(2 * x for x in colour[1:])
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", palette.THEMES)
def test_every_colour_is_seen(name):
    theme, part = palette.THEMES[name], still._PARTS[name]
    background, text, muted, path = (theme[of] for of in ("bg", "text", "muted", "path"))
    assert min(contrast(text, x) for x in (background, part)) >= 7
    assert contrast(muted, background) >= 4.5
    shown = [*still._ramp(theme), path]
    assert min(contrast(x, y) for x in shown for y in (background, part)) >= 3


def test_no_text_is_smaller_than_11_px(run):
    sizes = re.findall(r"font:(?:\d+ )?(\d+)px", still_svg(run[1]))
    assert min(map(int, sizes)) >= 11


def written_over(drawn):
    """The words of a still, and the pairs of them that overlap."""
    svg, boxes = "{http://www.w3.org/2000/svg}", []
    for text in ET.fromstring(drawn).find(f"{svg}svg").iter(f"{svg}text"):
        x, y, w = float(text.get("x")), float(text.get("y")), still._length(text.text)
        left = x - {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "start")] * w
        boxes.append((text.text, left, left + w, y - 0.7 * still._TEXT, y))
    over = [(a, b) for a, b in combinations(boxes, 2) if a[1] < b[2] and b[1] < a[2] and a[3] < b[4] and b[3] < a[4]]
    return {name for name, *_ in boxes}, over


def test_no_words_are_written_over_others():
    small = kb.load("preset:small")
    words, over = written_over(still_svg(scene(small, copied(small, EVERYWHERE).records, "copy")))
    assert {"IO chiplet", "Cube 3"} <= words
    assert not over


def test_boxes_too_low_for_words_have_none():
    sips = {"count": 16, "topology": "switch", "per_host": 8}
    cluster = kb.load("preset:default", {"system.sips": sips, "system.nic.wiring": "by_rail"})
    section = still.machine_section(cluster)
    assert sum(box["kind"] == "nic" for box in section["templates"]["system"]["boxes"]) == 16
    words, over = written_over(still.view_svg(section, "system"))
    assert "SIP 15" in words
    assert not over


@pytest.mark.parametrize(
    ("view", "seen", "said"),
    [
        ("system", {"Host", "SIP 0", "SIP 1"}, "SIP link: 128 GB/s, 50 ns"),
        ("sip", {"Cube 0", "Cube 15", "SIP 0"}, "UCIe link: 128 GB/s"),
        ("cube", {"PE 7", "HBM stack", "48 GiB"}, "Mesh link: 256 GB/s"),
        ("pe", {"Scheduler", "TCM", "2 ns a command"}, "machine"),
    ],
)
def test_each_section_of_a_machine_has_a_view(machine, view, seen, said):
    found = texts(still.view_svg(still.machine_section(machine), view))
    assert seen <= set(found)
    assert any(said in text for text in found)


def test_busy_links_are_drawn_where_they_are_and_the_busiest_is_named(machine):
    share = {"sip0.cube10.r0c0->sip0.cube10.r0c1": 0.5, "sip0.cube9.r0c0->sip0.cube9.r0c1": 0.5, "host->switch": 0.1}
    assert hottest(share) == "sip0.cube9.r0c0->sip0.cube9.r0c1"
    found = texts(still.link_heatmap(share, machine, title="a run", note="a note").svg)
    assert {"a run", "a note", "Host", "SIP 1"} <= set(found)
    del share["host->switch"]
    found = texts(still.link_heatmap(share, machine, title="a run").svg)
    assert "Host" not in found
    assert any(text.startswith("busiest: sip0.cube10.r0c0->sip0.cube10.r0c1 50%") for text in found)
    only = {"sip0.cube10.r0c0->sip0.cube10.r0c1": 0.5}
    drawing = ET.fromstring(still.link_heatmap(only, machine, title="a run").svg)
    (line,) = [x for x in drawing.iter("{http://www.w3.org/2000/svg}path") if x.get("class") == "w s3"]
    assert line.get("d").count("M") == 1


def test_shares_are_of_the_whole_time_and_idle_links_are_none(machine):
    table = LinkTable(("a->b", "b->a"), busy_ps=np.array([250, 0]))
    assert shares(table, 1000) == {"a->b": 0.25}
    assert shares(table, 0) == {}
    with pytest.raises(ValueError, match="nothing to draw"):
        still.link_heatmap({}, machine, title="t")


def test_a_still_is_a_picture_too(machine):
    drawn = still.Still(still.view_svg(still.machine_section(machine), "pe"))
    assert drawn.png().startswith(b"\x89PNG")
    assert drawn.png() == drawn.png()
