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
# Which all-reduce is fastest on which machine at which size, how close is it to the lower bound, and what limits it?
#
# An algorithm is a kernel that runs on every participant; participants communicate through queues. Each algorithm
# declares its *contribution*, which is one term of the sum:
#
# - by *rank*: each SIP's tensor, as in torch. Here it is on PE 0 of cube 0;
# - by *cube*: each cube's shard (on PE 0 of every cube);
# - by *PE*: each PE's shard.
#
# The time is measured from the start of the first program to the end of the last. Queues are installed beforehand, and
# shards are in HBM before and after. Each row compares its time with two numbers:
#
# - the *lower bound*: the largest of the bounds set by latency, by a cut of the machine, by the total traffic, by the
#   vector engines and by the memories. No algorithm between the same PEs can be faster;
# - the *model estimate* of the algorithm: its messages and bytes, each at the time that a few simulated messages take
#   on this machine (an alpha-beta model), with shared links. No time in it is fitted.
#
# **Slots.** Each row states its slots. Unless a slice of the study says otherwise, they are those of the machine file.
# The tuner would choose more for long vectors, so these times are not the best possible. All-reduces of 1 MiB by cube,
# and those of the lists, have slots of the size of a chunk.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME; the SIPs are changed to those of each system
overrides: list = []  # changes to it, path and value joined by an equals sign
ccl_file: str = ""  # ccl.yaml whose algorithms are compared; empty: the packaged one
own: str = ""  # Python file with user-defined algorithms, which are compared with them
by_rank: list = [{"systems": [[2, "ring_1d"], [4, "torus_2d", 2, 2]], "sizes": [16, 4096, 65536]}]  # one PE a SIP
by_cube: list = [{"systems": [[2, "ring_1d"]], "sizes": [64, 2048]}]  # number and shape of SIPs, bytes of a PE
by_pe: list = [{"systems": [[2, "ring_1d"]], "sizes": [64, 2048]}]  # for all-reduces over every PE
others: dict = {"systems": [[4, "ring_1d"]], "sizes": [64, 4096]}  # for collectives other than all-reduce
kinds: list = [256, 4096]  # sizes with queues in TCM, SRAM and HBM
root_bytes: int = 2048  # size with each cube as root
more_sips: dict = {"counts": [2, 4, 8], "topology": "ring_1d", "sizes": [4096]}  # growing numbers of SIPs
more_slots: dict = {"counts": [2, 4, 8], "nbytes": 65536}  # growing numbers of slots
halved: list = [4096]  # sizes with each resource halved
real: dict = {"lists": ["llama3-70b"], "system": [4, "ring_1d"], "max_bytes": 262144}  # all-reduces of real programs
marks: list = [2048]  # sizes of published figures
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import CclStudy

machine = kb.load(topology, overrides)
machine

# %% [markdown]
# ## The slices
#
# | slice | question |
# |---|---|
# | sizes | every all-reduce on every system that supports it, by size; also your own: `--param own=my_algorithms.py` |
# | other collectives | broadcast, reduce, reduce-scatter, all-gather, all-to-all, barrier |
# | buffer kinds | queues in TCM, in the cube's SRAM, in HBM |
# | roots | which cube is the root of its SIP |
# | scaling | growing numbers of SIPs |
# | slots | growing numbers of slots: the window of a queue is slots x slot / round trip |
# | limits | each resource halved, one at a time |
# | lists | the all-reduces of DeepBench and of Llama-3 70B under tensor parallelism, on PE 0 of all cubes |
# | published | the all-reduces that the reference design published |

# %%
report = CclStudy().report(
    machine, folder=Path(output or mkdtemp()), workers=workers, rerender=rerender, ccl_file=ccl_file, own=own,
    by_rank=by_rank, by_cube=by_cube, by_pe=by_pe, others=others, kinds=kinds, root_bytes=root_bytes,
    more_sips=more_sips, more_slots=more_slots, halved=halved, real=real, marks=marks,
)  # fmt: skip
report

# %% [markdown]
# ## Unsupported systems
#
# Each algorithm that does not support a system's topology, with the reason.

# %%
for name, why in report.study.refused(machine, **report.parameters).items():
    print(f"{name}: {why}")

# %% [markdown]
# ## All-reduce by size
#
# One PE of each SIP:

# %%
report.figure("ccl_rank")

# %%
tables = report.study.tables(report.rows)
tables.get("Fastest all-reduce of one PE of each SIP (time, over lower bound)")

# %% [markdown]
# ### By cube and by PE
#
# These all-reduces sum more vectors: one for every cube, or one for every PE.

# %%
report.figure("ccl_cube_pe")

# %% [markdown]
# ## Other collectives

# %%
tables.get("Other collectives (time, over lower bound)")

# %% [markdown]
# ## Queues in TCM, SRAM and HBM

# %%
report.figure("buffer_kinds")

# %% [markdown]
# ## Which cube is the root of its SIP

# %%
report.figure("ccl_roots")

# %% [markdown]
# ## Scaling

# %%
report.figure("ccl_scaling")

# %% [markdown]
# ## Slots, and what limits

# %%
report.figure("ccl_slots")

# %%
report.figure("ccl_limits")

# %% [markdown]
# ## All-reduces of real programs

# %%
report.figure("ccl_lists")

# %% [markdown]
# ## The links of one run

# %%
report.figure("ccl_links")
