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
# # Which machine? Sweeps over a design space
#
# A single run shows how fast one machine is. To decide which machine to build, this notebook runs a study over many
# machines, on all cores, and collects the results in one table. The question is that of the milestone
# [design_space](../milestones/design_space.ipynb), at a size that takes seconds:
#
# *How much do the mesh of cubes, UCIe and HBM contribute to the speed of the layers of GPT-2?*

# %%
import kernbench as kb
from kernbench.sweeps.pareto import pareto
from kernbench.sweeps.sensitivity import effects, sensitivity
from kernbench.viz import figures as draw

# By default, a sweep uses all cores and shows a progress bar; these sweeps are short, so both are off.
quiet = {"progress": False, "workers": 1}

# %% [markdown]
# ## A first sweep
#
# An axis is a field of the machine file (its name contains a dot) or a parameter of the study. A study is a function;
# the studies that ship with kernbench are selected by name (`kernbench list studies`).

# %%
machine = kb.load("preset:small", ["sip.cube_mesh.w=1"])
first = kb.sweep(machine, "gemm", {"cube.hbm.channel_bw_gbs": [8, 16, 32, 64], "k": [64, 512]}, **quiet)
first

# %% [markdown]
# Two points are missing: invalid machines are rejected before anything runs, with the reason.

# %%
first.invalid

# %% [markdown]
# Every row contains the varied values, the study's measurements, counts of operations and of bytes moved, and the costs
# that follow from them. Units are part of the column names. `table` is a pandas DataFrame.

# %%
first.table[["k", "latency_ns", "macs_f16", "hbm_bytes", "energy_uj", "energy_hbm_uj", "area_mm2"]].round(2)

# %% [markdown]
# Costs are proxies, declared in the machine file with their sources (`cost:` in topology.yaml). They do not affect
# times, so the machine's hash excludes them. To apply other costs, recompute them from the table's counts.

# %%
cheap = kb.load(machine, ["cost.energy.hbm_pj_per_bit=2"])
print(cheap.hash == machine.hash)

# %% [markdown]
# ## Your own study
#
# A study can be any function that takes a machine and returns a row, or any program that uses the torch-like namespace;
# a program is measured automatically. A function defined in a notebook is sent to the worker processes together with
# the values that it uses.


# %%
def copy(torch, *, kib: int):
    """Copy a tensor within the HBM slice of one PE."""

    def kernel(a, b, *, tl):
        tl.store(b, tl.load(a, shape=(kib * 512,), dtype="f16"))

    near = kb.DPPolicy(num_cubes=1, num_pes=1)
    a, b = (torch.empty(kib * 512, dtype=torch.float16, device="ahbm", dp=near) for _ in range(2))
    torch.launch("copy", kernel, a, b)


kb.sweep(machine, copy, {"kib": [1, 16, 256]}, workers=2, progress=False).table[["kib", "latency_ns", "hbm_bytes"]]

# %% [markdown]
# ## The question
#
# An axis may set several fields under one name. The workload is a matrix product of the attention of GPT-2, spread over
# all PEs of a SIP.

# %%
axes = {
    "cube mesh": {"1x2": {"sip.cube_mesh": {"w": 1, "h": 2}}, "2x2": {"sip.cube_mesh": {"w": 2, "h": 2}}},
    "UCIe [GB/s]": {str(bw): {"cube.ucie.bw_gbs": bw} for bw in (64, 128)},
    "HBM": {
        "x1": {},
        "x2": {"cube.hbm.channel_bw_gbs": 64, "cube.hbm.bw_gbs": 512, "cube.pe.pe_dma.bw_gbs": 512},
    },
}
size = {"layer_list": "gpt2 QKT"}
gpt2 = kb.sweep(machine, "design-space", axes, parameters=size, where="area_mm2 < 1500", **quiet)
print(f"{len(gpt2.ok)} machines, {len(gpt2.invalid)} left out")
effects(gpt2.ok, gpt2.axes, "latency_ns").round(3)

# %% [markdown]
# `factor` is the effect of the axis alone: the largest latency divided by the smallest, with the other axes fixed.
#
# ## Which machines are worth their silicon

# %%
front = pareto(gpt2.ok, ["area_mm2", "latency_ns"])
front[[*gpt2.axes, "area_mm2", "latency_ns", "energy_uj"]].round(1)

# %%
draw.pareto_front(
    gpt2.ok, front, ("area_mm2", "latency_ns"), machine=machine.hash, label=["cube mesh", "UCIe [GB/s]", "HBM"]
)

# %%
draw.heat_map(gpt2.ok, ("UCIe [GB/s]", "cube mesh"), "latency_ns", machine=machine.hash)

# %% [markdown]
# ## What would you change first?
#
# Each factor is changed alone, 20 % down and up; fields whose bandwidths have to match are changed together.

# %%
factors = {
    "HBM bandwidth": ["cube.hbm.channel_bw_gbs", "cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs"],
    "UCIe bandwidth": ["cube.ucie.bw_gbs"],
    "UCIe latency": ["cube.ucie.port_ns"],
    "router latency": ["cube.noc.router.overhead_ns"],
    "matrix rate": ["cube.pe.pe_gemm.macs_per_cycle.f16"],
}
moved = sensitivity(machine, "design-space", factors, parameters=size, **quiet)
moved.ranked("latency_ns").round(2)

# %%
draw.tornado(moved.ranked("latency_ns"), "latency_ns", machine=machine.hash)

# %% [markdown]
# For a served model, the milestone [serving](../milestones/serving.ipynb) asks the same in requests that meet limits of
# latency.
#
# ## Predict, then drag
#
# A sweep changes many machines at once; the picture changes one. It shows the copy of 256 KiB on the machine of the
# sweeps. **Predict**: how much longer does it take with half the HBM bandwidth per channel, and with half the UCIe
# bandwidth? Then select an HBM slice or a UCIe link, and drag its field.


# %%
def copy_256(torch):
    copy(torch, kib=256)


def run_copy(machine):
    return kb.run(copy_256, machine).result


copied = run_copy(machine)
kb.picture(copied, run_copy)

# %%
for path, value in (("cube.hbm.channel_bw_gbs", 16), ("cube.ucie.bw_gbs", 64)):
    changed = run_copy(machine.with_({path: value}))
    print(f"{path} = {value}: {changed.latency_ns / copied.latency_ns:.3f} x the time")

# %% [markdown]
# The copy stays in the HBM slice of one PE: UCIe carries only the messages that launch it and complete it.
#
# ## When a grid has too many points
#
# A Latin hypercube spreads points evenly over ranges: twelve here, independent of the number of axes.

# %%
spread = kb.sweep(
    machine,
    "gemm",
    {"k": {"low": 64, "high": 4096, "log": True, "step": 64}, "cube.hbm.channel_bw_gbs": {"low": 8, "high": 32}},
    samples=12,
    **quiet,
)
spread.table[["k", "cube.hbm.channel_bw_gbs", "latency_ns"]].round(2)

# %% [markdown]
# ## Long sweeps
#
# - `folder="my_sweep"`: each finished point is written there at once, with the table as CSV (and Parquet where pyarrow
#   is installed). After an interrupt, the same call resumes.
# - `time_limit_s=60`, `memory_limit_mib=4096`: a point that exceeds a limit is stopped and recorded; a point that
#   raises an error is recorded, too.
# - `scheduler="tcp://host:8786"`, or a Dask `Client`: the same call on a cluster (`pip install 'kernbench[cluster]'`).
# - Rows are stored in a cache that milestones share; `kernbench cache` shows and prunes it.
# - `kernbench sweep plan.yaml` does all of this from the command line.
