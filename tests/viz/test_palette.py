from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from kernbench.analysis._stages import PE_KINDS, STAGE_KINDS
from kernbench.viz import _palette as palette
from kernbench.viz._picture import style_css
from kernbench.viz._timeline import _LABELS

BACKGROUNDS = ("#FFFFFF", "#111111", "#212121")  # pages and panels of JupyterLab, light and dark
ENGINES = [stage for stage, kinds in STAGE_KINDS.items() if set(kinds) <= set(PE_KINDS)]
# Machado, Oliveira and Fernandes (2009), severity 1: protanopia and deuteranopia, of linear RGB.
BLINDNESS = (
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = XYZ.sum(axis=1)


def _linear(colour):
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _contrast(a, b):
    """WCAG 2.2: (L1 + 0.05) / (L2 + 0.05)."""
    high, low = sorted((XYZ[1] @ _linear(colour) for colour in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _lab(linear):
    x, y, z = np.cbrt(XYZ @ np.clip(linear, 1e-3, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("stage", [stage for stage in palette.STAGE_COLOURS if stage != "wait"])
def test_every_stage_is_visible_in_both_themes(stage):
    assert all(_contrast(palette.STAGE_COLOURS[stage], background) >= 3 for background in BACKGROUNDS)


@pytest.mark.parametrize(("a", "b"), list(combinations(ENGINES, 2)))
def test_engines_stay_apart_for_colour_blind_readers(a, b):
    for matrix in BLINDNESS:
        seen = [_lab(np.array(matrix) @ _linear(palette.STAGE_COLOURS[stage])) for stage in (a, b)]
        assert np.linalg.norm(seen[0] - seen[1]) > 10  # CIE76; 2.3 is a just noticeable difference


def test_the_style_sheet_has_a_colour_for_each_row_of_the_timeline():
    sheet = dict(re.findall(r"--kbp-stage-([\w-]+): (#\w{6});", style_css()))
    assert {stage.replace("_", "-") for stage in (*palette.STAGE_COLOURS, *_LABELS)} <= sheet.keys()
    assert sheet["dma-in"] == palette.STAGE_COLOURS["dma_in"].lower()
