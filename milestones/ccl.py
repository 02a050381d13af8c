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
# # Milestone: collectives
#
# Which all-reduce wins on which machine at which size, how far from what is possible, and what decides it?
#
# An algorithm is a kernel that runs on every participant; participants talk through queues. Each algorithm says what it
# sums, its *contribution*:
#
# - by *rank*: each SIP's tensor is one term of the sum, as in torch. Here it lies on PE 0 of cube 0;
# - by *cube*: each cube's shard is one (PE 0 of every cube);
# - by *PE*: each PE's shard is one.
#
# Latency runs from the first program's start to the last one's end, queues being installed. Shards lie in HBM before
# and after. Every row comes with two numbers to judge it by:
#
# - the *lower bound*: the largest of what latency, a cut of the machine, all traffic together, the vector engines and
#   the memories allow. No algorithm between the same PEs can be faster;
# - the *closed form* of the algorithm: its steps and sizes, over the machine's own latencies, bandwidths, windows of
#   slots, vector engines and memories. No time in it is fitted.
#
# **Slots.** A row names its slots. Unless a slice says otherwise, there are 4 of 4 KiB, as the machine has them: the
# tuner would choose more for long vectors, so these are no best times. All-reduces of 1 MiB by cube, and those of the
# lists, have slots of a chunk, 32 or 64 KiB.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME; the SIPs are changed to those of each system
overrides: list = []  # changes to it, path and value joined by an equals sign
ccl_file: str = ""  # ccl.yaml; empty: the packaged one. Its algorithms are compared
own: str = ""  # Python file with algorithms of your own, which are compared with them
by_rank: list = [{"systems": [[2, "ring_1d"], [4, "torus_2d", 2, 2]], "sizes": [16, 4096, 65536]}]  # one PE a SIP
by_cube: list = [{"systems": [[2, "ring_1d"]], "sizes": [64, 2048]}]  # number and shape of SIPs, bytes of a PE
by_pe: list = [{"systems": [[2, "ring_1d"]], "sizes": [64, 2048]}]  # for all-reduces over every PE
others: dict = {"systems": [[4, "ring_1d"]], "sizes": [64, 4096]}  # for collectives that are no all-reduce
kinds: list = [256, 4096]  # sizes with rings in TCM, SRAM and HBM
root_bytes: int = 2048  # size with each cube as root
more_sips: dict = {"counts": [2, 4, 8], "topology": "ring_1d", "sizes": [4096]}  # ever more SIPs
more_slots: dict = {"counts": [2, 4, 8], "nbytes": 65536}  # ever more slots
halved: list = [4096]  # sizes with one thing halved after the other
real: dict = {"lists": ["llama3-70b"], "system": [4, "ring_1d"], "max_bytes": 262144}  # all-reduces of real programs
marks: list = [2048]  # sizes of published figures
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image, Markdown, display

import kernbench as kb
from kernbench.ccl.install import load_ccl_config
from kernbench.config import default_ccl_path
from kernbench.studies import ccl, ccl_cases, ccl_findings, ccl_own, ccl_report

machine = kb.load(topology, overrides)
config = load_ccl_config(ccl_file or default_ccl_path())
mine = ccl_own.algorithms(own) if own else []
folder = Path(output or mkdtemp())
machine

# %% [markdown]
# ## The slices
#
# | slice | question |
# |---|---|
# | sizes | every all-reduce on every system that admits it, by size; your own too: `--param own=my_algorithms.py` |
# | other collectives | broadcast, reduce, reduce-scatter, all-gather, all-to-all, barrier |
# | buffer kinds | rings of slots in TCM, in the cube's SRAM, in HBM |
# | roots | which cube stands for its SIP |
# | scaling | ever more SIPs |
# | slots | ever more slots: the window of a queue is slots x slot / round trip |
# | limits | each thing that might limit halved, one at a time |
# | lists | the all-reduces of DeepBench and of Llama-3 70B under tensor parallelism, on PE 0 of all cubes |
# | published | the all-reduces that the reference design published |

# %%
cases = ccl_cases.study(
    config, machine.config, by_rank=by_rank, by_cube=by_cube, by_pe=by_pe, others=others, kinds=kinds,
    root_bytes=root_bytes, more_sips=more_sips, more_slots=more_slots, halved=halved, programs=real, marks=marks,
    own=mine,
)  # fmt: skip
if rerender:
    content = ccl.read(folder)
    rows, refused = content["rows"], content["refused"]
else:
    kept = folder if output else None
    rows, refused = ccl.sweep(machine, cases, config=config, own=mine, workers=workers, folder=kept)
    ccl.write(rows, refused, folder)
print(f"{len(rows)} rows, {len(ccl_findings.broken(rows))} below bound")

# %%
ccl_report.draw(rows, machine, folder)
ccl_report.draw_topologies(cases, machine, folder)
heatmaps = ccl_report.draw_links(rows, cases, machine, folder)


def show(name: str) -> None:
    if (folder / name).is_file():
        display(Image(folder / name))
    else:
        print("not asked for")


# %%
ccl_report.table(rows)

# %% [markdown]
# ## What does not run where
#
# An algorithm refuses a system that its topology does not admit, with its reason.

# %%
for name, why in refused.items():
    print(f"{name}: {why}")

# %%
show("topology.png")

# %% [markdown]
# ## All-reduce by size

# %%
show("latency_rank.png")
show("busbw_rank.png")

# %% [markdown]
# ### By cube and by PE
#
# More is summed here: every cube, or every PE, has a vector of its own.

# %%
show("latency_cube_pe.png")
show("busbw_cube_pe.png")

# %% [markdown]
# ## Other collectives

# %%
show("latency_other_collectives.png")

# %% [markdown]
# ## Where the rings lie

# %%
show("buffer_kinds.png")

# %% [markdown]
# ## Which cube stands for its SIP

# %%
show("root_placement.png")

# %% [markdown]
# ## Scaling

# %%
show("scaling.png")

# %% [markdown]
# ## Slots, and what limits

# %%
show("slots.png")
show("limits.png")

# %% [markdown]
# ## All-reduces of real programs

# %%
show("lists.png")

# %% [markdown]
# ## Beside the published figures
#
# They are for orientation: nothing is fitted to them.

# %%
show("published_marks.png")

# %% [markdown]
# ## The links of one run

# %%
for path in heatmaps:
    display(Image(path))

# %% [markdown]
# ## Findings
#
# Each sentence is computed from the table.

# %%
found = ccl_findings.findings(rows)
ccl_report.write_findings(found, rows, refused, folder)
Markdown("\n".join(f"- {sentence}" for sentence in found))
