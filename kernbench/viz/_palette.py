"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008), and their meaning."""

from __future__ import annotations

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE = "#56B4E9", "#CC79A7"
GREY, LIGHT_GREY, DARK_GREY = "#8C8C8C", "#DADADA", "#4D4D4D"

# At least 3:1 on white and on JupyterLab's dark grey, so that one colour serves both themes; readers who do not tell
# red from green can distinguish the engines.
STAGE_COLOURS = {
    "gemm": BLUE, "math": "#C77CB2", "fetch": "#2F93E0", "store_tcm": GREEN, "dma_in": "#81693D", "dma_out": VERMILION,
    "recv": "#8144FF", "send": "#9D9649", "composite": "#6B6B6B", "host": "#5C8A99", "launch": GREY, "wait": LIGHT_GREY,
}  # fmt: skip

# Of a pipeline's actions.
ACTION_COLOURS = {"F": BLUE, "B": VERMILION, "I": ORANGE, "W": GREEN}

SERIES = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, DARK_GREY)

# Of the picture and of stills: load from nearly idle to always busy, which is at least 3:1 on the background.
THEMES = {
    "light": {
        "bg": "#ffffff", "text": "#1b1f24", "muted": "#57606a", "border": "#d0d7de", "outline": "#767f88",
        "accent": "#0b5cad", "on-accent": "#ffffff", "path": "#b35900", "good": "#00724f", "warn": "#8a5a00",
        "bad": "#b13f00", "load-0": "#4a7db8", "load-1": "#7a5bb5", "load-2": "#b0286e", "load-3": "#7a0616",
    },
    "dark": {
        "bg": "#14171c", "text": "#e6e9ee", "muted": "#a3abb6", "border": "#3a414b", "outline": "#7d8793",
        "accent": "#6cb2f7", "on-accent": "#0b1016", "path": "#ffa657", "good": "#3fc79a", "warn": "#e6b04d",
        "bad": "#ff8a57", "load-0": "#5f87d8", "load-1": "#a884e8", "load-2": "#f0828c", "load-3": "#ffd84d",
    },
}  # fmt: skip
