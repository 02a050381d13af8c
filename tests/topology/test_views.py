from __future__ import annotations

import pytest
from hypothesis import given, settings

from kernbench.errors import KernbenchError
from tests.topology.machines import default, machines


def text(view):
    labels = [line for box in view.boxes for line in (box.label, *box.detail)]
    return " | ".join([view.title, *labels, *(line.label for line in view.lines), *view.notes])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("system", ["2 SIPs, ring_1d", "16 cubes", "128 PEs", "64 GB/s, 100 ns", "128 GB/s, 50 ns", "switch | 5 ns"]),
        ("sip", ["4 x 4 cubes", "4 x 128 GB/s", "8 ns a port", "16 ns a crossing", "48 GiB HBM", "cube 15"]),
        (
            "cube",
            ["6 x 6 routers, 8 PEs", "256 GB/s", "128 GB/s", "1 ns a router", "HBM slice 6 GiB", "M_CPU", "32 MiB"],
        ),
        ("pe", ["4096 MAC/cycle f16", "tile 32 x 64 x 32", "512 / 512 GB/s", "16 MiB", "PE_IPCQ", "2 ns a command"]),
    ],
)
def test_labels_name_bandwidths_latencies_and_sizes(name, words):
    shown = text(default().views[name])
    for word in words:
        assert word in shown


def test_a_system_of_rows_shows_its_columns_and_rows():
    grid = {"count": 6, "topology": "torus_2d", "w": 3, "h": 2}
    assert text(default(system__sips=grid).views["system"]).startswith("System: 6 SIPs, torus_2d 3 x 2 |")


def test_labels_follow_the_file():
    machine = default(system__sip_link__bw_gbs=100, cube__pe__pe_gemm__tile__k=128)
    assert "100 GB/s, 50 ns" in text(machine.views["system"])
    assert "tile 32 x 128 x 32" in text(machine.views["pe"])


@settings(max_examples=25)
@given(machines())
def test_every_view_of_every_machine_holds_together(machine):
    for view in machine.views:
        boxes = {box.id: box for box in view.boxes}
        assert len(boxes) == len(view.boxes), "no box twice"
        for box in view.boxes:
            assert box.w > 0
            assert box.h > 0
            assert 0 <= box.x <= box.x + box.w <= view.width + 1e-9, (view.name, box)
            assert 0 <= box.y <= box.y + box.h <= view.height + 1e-9, (view.name, box)
        for line in view.lines:
            assert {line.src, line.dst} <= set(boxes)
            for (x, y), end in ((line.points[0], line.src), (line.points[-1], line.dst)):
                box = boxes[end]
                assert box.x - 1e-9 <= x <= box.x + box.w + 1e-9, (view.name, line)
                assert box.y - 1e-9 <= y <= box.y + box.h + 1e-9, (view.name, line)


def test_an_unknown_view_is_named_with_the_known_ones():
    with pytest.raises(
        KernbenchError, match=r"no view is called 'cubes'; did you mean cube.*known: system, sip, cube, pe"
    ):
        default().views["cubes"]
