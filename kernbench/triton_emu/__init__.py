"""The kernel language: what a kernel calls `tl`, and the handles that it returns."""
