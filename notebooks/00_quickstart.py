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
# In ten minutes, you load a machine, run a matrix product on one of its processing elements, see where the time goes,
# change the machine, and see the limit change.

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
# A machine is a YAML file. This one ships with kernbench. It has packages ("SIPs") of HBM cubes. Each cube has eight
# processing elements (PEs), connected by a mesh of routers; UCIe links connect the cubes.

# %%
machine = kb.load("preset:default")
machine

# %% [markdown]
# ## A first run
#
# `kb.session` returns a namespace with torch's names. A tensor is stored where its `DPPolicy` places it: here, in the
# HBM slice of one PE. `launch` runs a kernel on every PE that holds a part of a tensor; reading the result waits for
# the launch.

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
# The values are correct. Data moves only when the simulated transfers move it, so an error in the program would produce
# wrong values. Now the times. The result displays itself: the simulated latency, the critical path that sums to it, how
# long each stage was busy, and the busiest components.

# %%
result

# %% [markdown]
# ## Why is it slow?
#
# `why` follows the critical path back from the end of the run: a chain of work and waits, each of which begins when its
# cause ends, so the numbers sum to the latency. It also names the field of the machine file that sets the speed of each
# resource.

# %%
result.why()

# %% [markdown]
# The device comes first, then the host's copies and launches, which spend their time on the PCIe link. To analyze only
# the launch, pass its name:

# %%
result.why("gemm")

# %% [markdown]
# The HBM slice accounts for most of the time. The timeline of the PE shows why: each row is an engine, each box a tile.

# %%
tiles = timeline(result.records, (0, 0, 0))
for stage in ("dma_in", "fetch", "gemm", "dma_out"):
    boxes = [box for box in tiles if box["stage"] == stage]
    print(f"{stage:>8}: {len(boxes):4d} boxes, {sum(box['end_ns'] - box['start_ns'] for box in boxes):9.1f} ns in all")
tile_timeline(tiles, machine=machine.hash, title="128x256x128, both operands streamed", zoom_ns=250)

# %% [markdown]
# The matrix engine works every other 16 ns. A tile needs 4 KiB of A and 4 KiB of B; the HBM slice of the PE delivers
# 256 GB/s, so a tile's operands take 32 ns, twice as long as its product. *DMA in* is always busy: the HBM slice is the
# limit.
#
# Does it help to load A first, so that only B has to be streamed?


# %%
def product_ns(result):
    start, end = composite_window(result.records)
    return (end - start) / 1000


for staging in ("ref_ref", "load_ref", "load_load"):
    print(f"{staging:>9}: {product_ns(run(machine, staging)[0]):8.1f} ns for the product itself")

# %% [markdown]
# ## Predict, then drag
#
# The picture shows the same run on the machine. Press play, and zoom into cube 0 of SIP 0 with the wheel: the HBM
# slice of PE 0 and the DMA are busy all the time, the matrix engine half of it. **Predict**: how long does the run take
# if the HBM delivers half as much, 16 GB/s per channel instead of 32? And if the matrix engine is half as fast? Then
# select the HBM slice or the matrix engine, and drag that field: the picture runs the program on the changed machine.

# %%
kb.picture(result, lambda changed: run(changed)[0])

# %%
for changes in ({"cube.hbm.channel_bw_gbs": 16}, {"cube.pe.pe_gemm.macs_per_cycle.f16": 2048}):
    changed, _ = run(machine.with_(changes))
    print(changes)
    for name, of in (("run", lambda x: x.latency_ns), ("product itself", product_ns)):
        ratio = of(changed) / of(result)
        print(f"{name:>16}: {of(changed):,.1f} ns instead of {of(result):,.1f} ns, {ratio:.2f} times as long")

# %% [markdown]
# With half the bandwidth, the product itself takes about twice as long: each tile takes the time of its bytes. Most of
# the run is host copies, which take as long as before. The matrix engine was idle half of the time, so at half its rate
# only the last tile takes longer, by 16 ns.
#
# ## Change the machine
#
# If the HBM slice limits `ref_ref`, then doubling its bandwidth must help, and doubling the rate of the matrix engine
# must not.

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
    print(f"{name:>28}: {product_ns(run(machine.with_(changes))[0]):8.1f} ns")

# %% [markdown]
# An invalid value raises an error that states its name, the value and the remedy:

# %%
try:
    machine.with_({"cube.hbm.channels": 6, "cube.noc.rowz": 5})
except KernbenchError as error:
    print(error)

# %% [markdown]
# ## Where to go from here
#
# - `kernbench list` names benches, milestones, presets and components; `kernbench run gemm-single-pe` runs a
#   bench.
# - `kernbench show --view cube` draws a machine; `kernbench new DIR` creates a folder to start from.
# - The GEMM milestone (`milestones/gemm.ipynb`; full report in `milestones/output/gemm`) asks the same question for
#   eight shapes.
