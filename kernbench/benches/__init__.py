"""Benches: host programs, each a function `run(torch)`."""
