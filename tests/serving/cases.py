"""Requests and step times of tests."""

from __future__ import annotations

import pandas as pd

MS = 1e6


def requests(*rows, hashes=None):
    """A table from (arrival [ms], input_len, output_len) of each request."""
    table = pd.DataFrame(rows, columns=["arrival_s", "input_len", "output_len"])
    table["arrival_s"] /= 1000
    return table if hashes is None else table.assign(hash_ids=hashes)


def constant(prefill, contexts):
    return MS


def linear(prefill, contexts):
    """10 us, and 1 us for each token."""
    return 1e4 + 1e3 * (sum(tokens for tokens, _ in prefill) + len(contexts))
