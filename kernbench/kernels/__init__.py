"""Kernels that come with kernbench: each a small function of pointers, sizes and `tl`."""
