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

from IPython.display import Image, Markdown

import kernbench as kb
from kernbench.studies import validation, validation_report

machine = kb.load(topology, overrides)
folder = Path(output or mkdtemp())
if rerender:
    rows = validation.read(folder)["rows"]
else:
    rows = validation.sweep(machine, checks=checks, repeats=repeats, workers=workers, folder=folder if output else None)
    validation.write(rows, folder)
figures = validation_report.draw(rows, folder)
print(f"{len(rows)} rows, {sum(row['n'] for row in rows):,} points, machine {rows[0]['machine'][:12]}")

# %% [markdown]
# ## The rows
#
# *exact*: no point differs, not by a picosecond. *within*: the rule is approximate, and says how far. *reported*: no
# formula claims the number; the row says how far it is from what it is compared with.

# %%
validation_report.table(rows)

# %% [markdown]
# ## The largest error of each row

# %%
Image(folder / "validation_errors.png")

# %% [markdown]
# ## Where no formula is exact
#
# Flits that reach a link in the same picosecond are served by fixed ranks (M4.4). Permuting the ranks shows how much of
# a result rests on that choice: single transfers change places, the last end hardly moves. Fair shares and the ideal
# product are what one would compute without a simulator.

# %%
Image(folder / "validation_spread.png")

# %% [markdown]
# ## Findings
#
# Each sentence is computed from the rows above.

# %%
validation_report.write_report(rows, folder)
Markdown("\n".join(f"- {sentence}" for sentence in validation_report.findings(rows)))
