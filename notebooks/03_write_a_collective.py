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
# # Write a collective: check its values, measure its time, find the limit, improve it
#
# After an all-reduce, every participant holds the sum of all participants' tensors. This notebook implements it twice:
# the first version passes whole tiles, and the second is three times as fast. Both are then compared with the shipped
# algorithms.

# %%
import contextlib
import inspect
import io
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import kernbench as kb
from kernbench import DPPolicy
from kernbench.analysis.utilization import pe_window
from kernbench.ccl import AlphaBeta, Bounds, run_kernel_in_mock, simulator
from kernbench.ccl.algorithm import algorithm
from kernbench.studies import CclStudy, milestone

# %% [markdown]
# ## 1. Hello: each PE passes its tile east
#
# A collective is a kernel that runs on every *participant*. The kernel receives a pointer to the participant's shard;
# `program_id(2)` is the participant's number, and `num_programs(2)` is the number of participants. Queues to neighbours
# have names: in a ring, `E` leads to the next participant and `W` to the previous one. `send` never blocks; `recv`
# waits until the bytes have arrived.


# %%
def hello_send(t_ptr, n, world, *, tl):
    tl.send("E", t_ptr, shape=n)
    tl.store(t_ptr, tl.recv("W", shape=n))


# %% [markdown]
# **Values.** The mock runs any number of participants on numpy arrays in milliseconds, without a machine.

# %%
tiles = [np.full(4, rank, np.float16) for rank in range(5)]
run_kernel_in_mock(hello_send, tiles)
[tile.tolist() for tile in tiles]

# %% [markdown]
# Participant 0 now has the tile of participant 4. A receive without a matching send is detected immediately, with an
# error that names every waiter:


# %%
def forgetful(t_ptr, n, world, *, tl):
    tl.store(t_ptr, tl.recv("W", shape=n))


try:
    run_kernel_in_mock(forgetful, [np.zeros(4, np.float16) for _ in range(3)])
except kb.errors.IpcqDeadlock as error:
    print(error)

# %% [markdown]
# ## 2. An all-reduce: pass and add
#
# After n - 1 rounds, every participant has received every tile.


# %%
def passing(t_ptr, n, world, *, tl):
    total = tile = tl.load(t_ptr, shape=n)
    for _ in range(world - 1):
        tl.send("E", tile)
        tile = tl.recv("W", shape=n)
        total = total + tile
    tl.store(t_ptr, total)


# %%
def check(kernel, world, n):
    rng = np.random.default_rng(0)
    tensors = [rng.integers(-8, 9, n).astype(np.float16) for _ in range(world)]
    expected = sum(tensor.copy() for tensor in tensors)
    run_kernel_in_mock(kernel, tensors)
    return all(np.array_equal(tensor, expected) for tensor in tensors)


[check(passing, world, 840) for world in (1, 2, 3, 6, 8, 24)]

# %% [markdown]
# **Time.** The machine has six SIPs in a 3 x 2 torus, with a tensor of 60 KiB on one PE of each. `torch.collective`
# takes one tensor per device and the algorithm: a kernel and the queues that it uses.

# %%
machine = kb.load("preset:six_sip_torus")
N = 30_720  # elements of f16: 60 KiB


def run(kernel, on=machine, **settings):
    one_pe = DPPolicy(num_cubes=1, num_pes=1)
    values = [np.random.default_rng(sip).integers(-8, 9, N).astype(np.float16) for sip in range(6)]
    with kb.session(on, data=True) as torch:
        tensors = [torch.tensor(v, dp=one_pe, device=f"ahbm:{sip}") for sip, v in enumerate(values)]
        torch.ahbm.synchronize()
        torch.collective(tensors, algorithm(kernel, **settings))
        right = all(np.array_equal(tensor.numpy(), sum(values)) for tensor in tensors)
    start, end = pe_window(torch.result.records)
    print(f"{kernel.__name__} {settings or ''}: {(end - start) / 1000:,.0f} ns, {'right' if right else 'WRONG'}")
    return torch.result


result = run(passing)

# %% [markdown]
# ## 3. Why is it slow?
#
# First, how fast could it be? No algorithm between these six PEs can be faster than the lower bound, and the bound also
# names its cause.

# %%
leaders = [(sip, 0, 0) for sip in range(6)]
bound = Bounds(machine, leaders).of("all_reduce", 2 * N)
print(f"{bound.ns:,.0f} ns, by {bound.by}")

# %% [markdown]
# *Traffic*: on average, each PE has to send every byte 2 (n - 1) / n times, over the single UCIe connection that PE 0
# of cube 0 uses to leave its cube. `passing` sends every byte n - 1 times: three times as often. It also does not reach
# the link's rate:

# %%
connection = AlphaBeta(machine, simulator(machine)).connection((0, 0, 0), (1, 0, 0), algorithm(passing))
print(f"slowest link   {1 / connection.beta_ns:.0f} GB/s")
print(f"round trip     {connection.round_trip_ns:.0f} ns, from one message to the next if there is a single slot")
print(f"window         {4 * 4096 / connection.round_trip_ns:.0f} GB/s: 4 slots of 4 KiB in a round trip")

# %% [markdown]
# A queue has four slots, so a fifth part waits for a credit. `passing` therefore has two problems: it sends too many
# bytes, and it keeps too few of them in flight.
#
# Does the run confirm this? `why()` covers the whole run: the device first, then the host's copies over PCIe. With the
# name of a launch, as the result lists it, `why` covers that launch alone, from its first message to its last
# completion. To analyze one SIP's share, pass one of `result.launches`.

# %%
first = result.why()[0]
print(f"whole run: {first.what}, {first.share:.0%} of the device's time")
print(*(f"{x.name} on sip{x.sip}: {(x.end_ps - x.start_ps) / 1000:,.0f} ns" for x in result.launches), sep="\n")
result.why("all_reduce by passing")

# %% [markdown]
# After every few parts, the sender stalls until a credit has come back over the wire. The run therefore pays the
# latency of the wire once for every few parts, where a pipelined transfer would pay it once.
#
# ## 4. Better: each participant sums one block
#
# Divide the tile into n blocks. In n - 1 steps, each block travels once around the ring, and every participant adds its
# part (reduce-scatter); then the complete blocks travel around once more (all-gather). Each step moves one n-th of the
# tile.


# %%
def blocks(t_ptr, n, world, *, tl):
    rank, size = tl.program_id(2), n // world
    part = tl.load(t_ptr + rank * size, shape=size)
    for step in range(1, world):
        tl.send("E", part)
        own = tl.load(t_ptr + (rank - step) % world * size, shape=size)
        part = own + tl.recv("W", shape=size)
    tl.store(t_ptr + (rank + 1) % world * size, part)
    for step in range(world - 1):
        tl.send("E", part)
        part = tl.recv("W", shape=size)
        tl.store(t_ptr + (rank - step) % world * size, part)


[check(blocks, world, 840) for world in (2, 3, 6, 8, 24)]

# %%
result = run(blocks)

# %% [markdown]
# Now the window: with twice as many slots, the parts of a block leave back to back.

# %%
result = run(blocks, n_slots=8)

# %% [markdown]
# What limits it now? Nothing waits for credits any more:

# %%
result.why("all_reduce by blocks")

# %% [markdown]
# Two costs remain: the latency of ten sequential steps, each a hop between SIPs, and the serialization of the bytes
# over UCIe and the SIP links.
#
# **Predict, then drag.** The picture shows this run on the torus: press play, and watch the blocks circulate. Which
# change costs more: half the bandwidth of the links between SIPs, or twice their latency? Then select a link between
# two SIPs and drag its fields.

# %%
print(f"10 hops of one element: {10 * connection.copied_ns[0]:,.0f} ns")

# %%
kb.picture(result, lambda changed: run(blocks, changed, n_slots=8))

# %%
link = machine.config.system.sip_link
for changes in ({"system.sip_link.bw_gbs": link.bw_gbs / 2}, {"system.sip_link.latency_ns": 2 * link.latency_ns}):
    print(changes, end=": ")
    run(blocks, machine.with_(changes), n_slots=8)

# %% [markdown]
# Half the bandwidth adds 1,081 ns: every step sends its block at half the rate. Twice the latency adds 587 ns, at least
# 50 ns for each of the ten steps.
#
# ## 5. Compared with the shipped algorithms
#
# The study behind the collectives report accepts a Python file with user-defined algorithms. It compares them with the
# lower bound and plots them in the same figure as the shipped ones. It compares their results with numpy.

# %%
source = "\n\n".join(
    [
        "from kernbench.ccl.algorithm import algorithm",
        inspect.getsource(passing),
        inspect.getsource(blocks),
        "mine = [algorithm(passing), algorithm(blocks, name='blocks, 8 slots', n_slots=8)]",
    ]
)
folder = Path(mkdtemp())
file = folder / "my_collectives.py"
file.write_text(source, encoding="utf-8")
sizes = [12 * 4**k for k in range(7)]
by_rank = [{"systems": [[6, "torus_2d", 3, 2]], "sizes": sizes}]
report = CclStudy().report(machine, folder=folder / "sizes", own=str(file), by_rank=by_rank)
rows = report.rows
report.figure("ccl_rank")

# %%
for name in dict.fromkeys(row["algorithm"] for row in rows):
    times = {row["bytes_per_pe"]: row["latency_ns"] for row in rows if row["algorithm"] == name}
    print(f"{name:28}" + "".join(f"{times[size]:>10,.0f}" for size in sizes))

# %% [markdown]
# Rings are not competitive at small sizes: trees and recursive doubling need fewer steps. On a torus, `torus_allreduce`
# uses both dimensions and both directions at the same time, which is hard to beat.
#
# ## 6. Let kernbench choose
#
# `kb.ccl.choose` ranks the algorithms that the machine supports by a model, simulates the best, and says what limits
# the fastest. `algorithm: auto` in ccl.yaml does the same for every collective of a program.

# %%
kb.ccl.choose(256, machine=machine, changes=False)

# %%
kb.ccl.choose(2 * N, machine=machine, changes=False)

# %% [markdown]
# ## 7. In the report
#
# `kernbench milestone ccl --param own=my_collectives.py` compares the algorithms of a file with the shipped ones on
# every system and at every size, in the table, the figures and the findings. The report lists wrong results, and
# kernels that do not fit in memory, under *Failed*. The next cell runs the same milestone on this machine, without the
# other slices of the study:

# %%
few = {
    "own": str(file),
    "by_rank": [{"systems": [[2, "ring_1d"], [6, "torus_2d", 3, 2]], "sizes": [48, 3072, 49152]}],
    "more_sips": {"counts": [], "topology": "ring_1d", "sizes": []},
    "more_slots": {"counts": [], "nbytes": 0},
    "others": {"systems": [], "sizes": []},
    "real": {"lists": [], "system": [2, "ring_1d"]},
    **{key: [] for key in ("by_cube", "by_pe", "kinds", "halved", "marks")},
}
with contextlib.redirect_stderr(io.StringIO()):  # the progress bar
    written = milestone.run("ccl", topology=machine, parameters=few, output=folder / "report").folder
sorted(path.name for path in written.iterdir() if path.suffix in {".csv", ".md", ".svg"})

# %%
for row in CclStudy().read(written):
    if row["algorithm"] in ("passing", "blocks, 8 slots", "torus_allreduce"):
        size, time = f"{row['bytes_per_pe']:,} B", f"{row['latency_ns']:,.0f} ns"
        print(f"{row['n_sips']} SIPs {row['algorithm']:20}{size:>10}{time:>12}, bound {row['bound_ns']:,.0f} ns")

# %% [markdown]
# To use your own algorithm by name, put its `kernel` and `kernel_args(*, n_elem, world_size, **options)`, which returns
# the kernel's arguments after its pointer, into a module and name the module in a ccl.yaml. The file may contain that
# entry alone: whatever it leaves out is as in the packaged one.
# Then `torch.distributed` can run it, and `kernbench milestone ccl --param ccl_file=...` compares it with the packaged
# algorithms.
