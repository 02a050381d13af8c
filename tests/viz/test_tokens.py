"""Loads and outlines of the picture are visible on every background that it draws, in both themes."""

from __future__ import annotations

import pytest

from kernbench.viz import _palette as palette

# The backgrounds of pages: a plain one, JupyterLab's, and that of editors in VS Code.
BACKGROUNDS = {"light": ("#ffffff",), "dark": ("#14171c", "#111111", "#1e1e1e")}
DEPTHS = (0, 0.13)  # how much of the text's colour machine_drawing.js mixes into the background of the innermost boxes


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def luminance(channels):
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in (c / 255 for c in channels)]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_every_load_has_a_contrast_of_three_to_one(theme):
    found = palette.THEMES[theme]
    for page in BACKGROUNDS[theme]:
        for depth in DEPTHS:
            behind = [a + (b - a) * depth for a, b in zip(rgb(page), rgb(found["text"]), strict=True)]
            for name in ("load-0", "load-1", "load-2", "load-3", "outline", "path", "accent"):
                assert contrast(rgb(found[name]), behind) >= 3, (name, page, depth)
            for name in ("text", "muted"):
                assert contrast(rgb(found[name]), behind) >= 4.5, (name, page, depth)


@pytest.mark.parametrize(("theme", "sign"), [("light", -1), ("dark", 1)])
def test_lightness_alone_tells_a_load(theme, sign):
    """So that it can be read without telling colours apart."""
    found = palette.THEMES[theme]
    steps = [sign * luminance(rgb(found[f"load-{i}"])) for i in range(4)]
    assert steps == sorted(steps)
    assert contrast(rgb(found["load-0"]), rgb(found["load-3"])) > 2.5
