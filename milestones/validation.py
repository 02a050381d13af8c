# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Milestone: how right are the numbers?
#
# Every rule of `docs/model.md` that states a number, put against the simulation: closed forms of transfers, memory,
# launches and tile stages; a second simulator, written as a process for each hop of each flit; shares of streams that
# meet; bytes and busy time that must add up; and how much the order of simultaneous arrivals decides.
#
# A row is one rule. Its error is the largest difference over all its points: sizes, routes, random machines.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
checks: list = []  # rows to make; all if none is named
repeats: int = 1  # random machines, or permutations of ranks, in each row
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import ValidationStudy

machine = kb.load(topology, overrides)
report = ValidationStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    checks=checks,
    repeats=repeats,
)
report

# %% [markdown]
# ## The rows
#
# *exact*: no point differs, not by a picosecond. *within*: the rule is approximate, and says how far. *reported*: no
# formula claims the number; the row says how far it is from what it is compared with.

# %%
tables = report.study.tables(report.rows)
tables["Rules"]

# %% [markdown]
# ## The largest error of each row that is not exact

# %%
tables["Largest errors"]

# %% [markdown]
# ## Where no formula is exact
#
# Flits that reach a link in the same picosecond are served by fixed ranks (M4.4). Permuting the ranks shows how much of
# a result rests on that choice: single transfers change places, the last end hardly moves. Fair shares and the ideal
# product are what one would compute without a simulator.

# %%
report.figure("validation_spread")
