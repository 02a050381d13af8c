"""Benches: programs for the host, each a function `run(torch)`."""
