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
# # Quickstart: from nothing to "why is it slow"
#
# Ten minutes: load a machine, run a matrix product on one of its processing elements, read where the time went, change
# the machine, and see the limit move.

# %%
import numpy as np

import kernbench as kb
from kernbench import DPPolicy
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import composite_window
from kernbench.errors import KernbenchError
from kernbench.kernels.gemm import gemm
from kernbench.viz.figures import tile_timeline

# %% [markdown]
# ## A machine
#
# A machine is a YAML file. This one ships with kernbench: packages ("SIPs") of HBM cubes, eight processing elements
# (PEs) on each cube, joined by a router mesh, and UCIe links between the cubes.

# %%
machine = kb.load("preset:default")
machine

# %% [markdown]
# ## A first run
#
# `kb.session` gives a namespace with torch's names. Tensors live where their `DPPolicy` puts them: here, all in the HBM
# slice of one PE. `launch` runs a kernel on every PE that holds a part of a tensor; reading the result waits for it.

# %%
M, K, N = 128, 256, 128
here = DPPolicy(num_cubes=1, num_pes=1)
rng = np.random.default_rng(0)
a_host = rng.standard_normal((M, K)).astype(np.float16)
b_host = rng.standard_normal((K, N)).astype(np.float16)


def run(machine, staging="ref_ref", log="tile"):
    with kb.session(machine, data=True, log=log) as torch:
        a = torch.from_numpy(a_host).to("ahbm", dp=here)
        b = torch.from_numpy(b_host).to("ahbm", dp=here)
        c = torch.empty(M, N, dtype=torch.float16, device="ahbm", dp=here)
        torch.launch("gemm", gemm, a, b, c, M, K, N, staging)
        product = c.numpy()
    return torch.result, product


result, product = run(machine)
error = np.abs(product - a_host.astype(np.float32) @ b_host.astype(np.float32)).max()
print(f"largest difference from numpy: {error:.4f}")

# %% [markdown]
# The values are right: data move when the simulated transfers move them, so a wrong number would show a wrong program.
# Now the times. The result shows itself: simulated latency, exclusive time that sums to it, and the busiest parts.

# %%
result

# %% [markdown]
# ## Why is it slow?
#
# Ask the run. `why` walks the critical path back from the end: a chain of work and waits, each beginning where its
# cause ended, so that the numbers sum to the latency. It names the field of the machine file that each resource obeys.

# %%
result.why()

# %% [markdown]
# The host's copies count, too: they spend their time on the PCIe link. Of the launch alone, by the name that it was
# given:

# %%
result.why("gemm")

# %% [markdown]
# The HBM slice takes most. See it happen on the PE: each row is an engine, each box a tile.

# %%
tiles = timeline(result.records, (0, 0, 0))
for stage in ("dma_in", "fetch", "gemm", "dma_out"):
    boxes = [box for box in tiles if box["stage"] == stage]
    print(f"{stage:>8}: {len(boxes):4d} boxes, {sum(box['end_ns'] - box['start_ns'] for box in boxes):9.1f} ns in all")
tile_timeline(tiles, machine=machine.hash, title="128x256x128, both operands streamed", zoom_ns=250)

# %% [markdown]
# The matrix engine works every other 16 ns. A tile needs 4 KiB of A and 4 KiB of B; the HBM slice of the PE delivers
# 256 GB/s, so a tile's operands take 32 ns, twice as long as the product. *DMA in* is always busy: the HBM slice is
# the limit.
#
# Does loading A first help? Then only B has to be streamed.


# %%
def composite_ns(machine, staging="ref_ref"):
    result, _ = run(machine, staging)
    start, end = composite_window(result.records)
    return (end - start) / 1000


for staging in ("ref_ref", "load_ref", "load_load"):
    print(f"{staging:>9}: {composite_ns(machine, staging):8.1f} ns for the product itself")

# %% [markdown]
# ## Change the machine
#
# If the HBM slice is the limit for `ref_ref`, doubling it must help, and doubling the matrix engine must not.

# %%
variants = {
    "as it is": {},
    "HBM channels twice as fast": {
        "cube.hbm.channel_bw_gbs": 64,
        "cube.hbm.bw_gbs": 512,
        "cube.pe.pe_dma.bw_gbs": 512,
    },
    "matrix engine twice as fast": {"cube.pe.pe_gemm.macs_per_cycle.f16": 8192},
}
for name, changes in variants.items():
    print(f"{name:>28}: {composite_ns(machine.with_(changes)):8.1f} ns")

# %% [markdown]
# A wrong value is refused with its name, its value and what to do:

# %%
try:
    machine.with_({"cube.hbm.channels": 6, "cube.noc.rowz": 5})
except KernbenchError as error:
    print(error)

# %% [markdown]
# ## Where to go from here
#
# - `kernbench list` names benches, milestones, presets and components; `kernbench run --bench gemm-single-pe` runs one.
# - `kernbench show --view cube` draws a machine; `kernbench new DIR` starts a folder of your own.
# - The GEMM milestone (`milestones/gemm.ipynb`, its full report in `milestones/output/gemm`) asks the question above
#   for eight shapes.
