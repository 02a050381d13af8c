"""Operators: each module owns one, with its kernels, its placements over a SIP, their estimates, and the choice."""
