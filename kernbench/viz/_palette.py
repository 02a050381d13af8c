"""Colours that stay apart for colour-blind readers (after Okabe and Ito, 2008), and what each one means."""

from __future__ import annotations

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
GREY, LIGHT_GREY, DARK_GREY = "#8C8C8C", "#DADADA", "#4D4D4D"

STAGES = {
    "gemm": BLUE, "math": PURPLE, "fetch": SKY, "store_tcm": GREEN, "dma_in": ORANGE, "dma_out": VERMILION,
    "recv": "#0A3D62", "send": "#B8E186", "composite": DARK_GREY, "host": YELLOW, "launch": GREY, "wait": LIGHT_GREY,
}  # fmt: skip

SERIES = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, DARK_GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
