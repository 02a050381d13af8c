"""Colours that colour-blind readers can distinguish (after Okabe and Ito, 2008), and their meaning."""

from __future__ import annotations

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE = "#56B4E9", "#CC79A7"
GREY, LIGHT_GREY, DARK_GREY = "#8C8C8C", "#DADADA", "#4D4D4D"

# At least 3:1 on white and on JupyterLab's dark grey, so that one colour serves both themes; readers who do not tell
# red from green can distinguish the engines.
STAGES = {
    "gemm": BLUE, "math": "#C77CB2", "fetch": "#2F93E0", "store_tcm": GREEN, "dma_in": "#81693D", "dma_out": VERMILION,
    "recv": "#8144FF", "send": "#9D9649", "composite": "#6B6B6B", "host": "#5C8A99", "launch": GREY, "wait": LIGHT_GREY,
}  # fmt: skip

SERIES = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, DARK_GREY)
