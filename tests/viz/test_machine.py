from __future__ import annotations

import re
from io import BytesIO
from xml.etree import ElementTree as ET

import pytest
from matplotlib.image import imread

from kernbench.topology._views import Box, Line, View, between
from kernbench.viz._machine import view_png, view_svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def view():
    house = Box("sip0.io", "io", 0.5, 0.5, 5, 4, "IO chiplet", holds=True)
    small = Box("a", "router", 1, 2, 0.1, 0.1, "r0c0", ("hidden",))
    large = Box("b", "pe", 7, 1, 2, 2, "pe0 <fast>", ("6 GiB",))
    link = Line("a", "b", "noc", between(small, large), 256.0, "256 GB/s")
    return View("cube", "Cube: 1 & 2", 10, 5, "mm", (house, small, large), (link,), ("a note", "another"))


def test_the_drawing_is_well_formed_and_labelled(view):
    root = ET.fromstring(view_svg(view))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"Cube: 1 & 2", "IO chiplet", "pe0 <fast>", "6 GiB", "256 GB/s", "a note", "another"} <= set(texts)
    assert len(list(root.iter(f"{SVG}rect"))) == len(view.boxes)


def test_a_label_that_does_not_fit_is_left_to_the_tip(view):
    root = ET.fromstring(view_svg(view))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    tips = [element.text for element in root.iter(f"{SVG}title")]
    assert "r0c0" not in texts
    assert "a; hidden" in tips
    assert "a - b, 256 GB/s each way" in tips


def test_text_stays_inside_its_box(view):
    svg = view_svg(view, width=700)
    size = float(re.search(r'font-size="([\d.]+)" font-weight="600">pe0', svg)[1])
    assert size * 0.5 * len("pe0 <fast>") <= 2 * 70


def test_colours_follow_the_page_and_a_file_brings_its_own(view):
    assert "currentColor" in view_svg(view)
    assert "prefers-color-scheme" not in view_svg(view)
    file = view_svg(view, machine="0123456789abcdef")
    assert "prefers-color-scheme:dark" in file
    assert "machine 0123456789ab<" in file


def test_a_picture_is_the_same_each_time_and_names_the_machine(view):
    one = view_png(view, "0123456789abcdef")
    assert one.startswith(b"\x89PNG")
    assert one == view_png(view, "0123456789abcdef")
    assert one != view_png(view, "another machine")


def test_a_picture_is_on_white(view):
    pixels = imread(BytesIO(view_png(view, "0123456789abcdef")), format="png")
    assert (pixels[0, -1] == 1).all()
