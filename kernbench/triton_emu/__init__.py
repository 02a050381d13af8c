"""The kernel language: what a kernel calls `tl`, and the handles it gets."""
