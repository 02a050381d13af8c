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
# # Write a collective: values first, then the machine, then why it is slow, then better
#
# An all-reduce leaves the sum of everybody's tensor with everybody. Here it is written twice: one that passes whole
# tiles, and one that beats it by far. Both are then compared with the algorithms that are shipped.

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
from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.channels import RingBuffer, channel_model
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.ccl.tuner import Tuner
from kernbench.config import default_ccl_path
from kernbench.runtime_api.collective import simulator
from kernbench.studies import CclStudy, milestone

# %% [markdown]
# ## 1. Hello: each PE passes its tile east
#
# A collective is a kernel that runs on every *participant*. It gets a pointer to its own shard, `program_id(2)` says
# which participant it is, `num_programs(2)` how many there are. Queues lead to neighbours by name: in a ring, `E` leads
# to the next participant and `W` to the one before. `send` never blocks; `recv` waits until the bytes are there.


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
# Participant 0 has what 4 had. A receive that nobody serves is found at once, and said in words:


# %%
def forgetful(t_ptr, n, world, *, tl):
    tl.store(t_ptr, tl.recv("W", shape=n))


try:
    run_kernel_in_mock(forgetful, [np.zeros(4, np.float16) for _ in range(3)])
except kb.errors.IpcqDeadlock as error:
    print(error)

# %% [markdown]
# ## 2. An all-reduce: keep passing, keep adding
#
# After n - 1 rounds every tile has been everywhere.


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
# **Time.** On a machine: six SIPs in a 3 x 2 torus, a tensor of 60 KiB on one PE of each. `torch.collective` takes one
# tensor of each device, and the algorithm: a kernel and what it talks over.

# %%
machine = kb.load("preset:six_sip_torus")
N = 30_720  # elements of f16: 60 KiB


def run(kernel, **settings):
    one_pe = DPPolicy(num_cubes=1, num_pes=1)
    values = [np.random.default_rng(sip).integers(-8, 9, N).astype(np.float16) for sip in range(6)]
    with kb.session(machine, data=True) as torch:
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
# First: what is possible? The lower bound says what no algorithm between these six PEs can beat, and what it is that
# stops it.

# %%
leaders = [(sip, 0, 0) for sip in range(6)]
bound = Bounds(machine, leaders).of("all_reduce", 2 * N)
print(f"{bound.ns:,.0f} ns, by {bound.by}")

# %% [markdown]
# *Traffic*: every byte has to be sent 2 (n - 1) / n times by each PE on average, over the one UCIe connection by which
# PE 0 of cube 0 leaves its cube. `passing` sends everything n - 1 times: three times as much. And it sends at another
# rate than the link's:

# %%
channel = channel_model(machine).channel((0, 0, 0), (1, 0, 0), RingBuffer("tcm", 4, 4096, 16))
print(f"slowest link   {channel.bw_gbs:.0f} GB/s")
print(f"round trip     {channel.round_trip_ns:.0f} ns, from a slot leaving to its credit being back")
print(f"window         {channel.window_gbs:.0f} GB/s: 4 slots of 4 KiB in a round trip")

# %% [markdown]
# A queue has four slots; a fifth part waits for a credit. So two things are wrong: too many bytes, and too few of them
# under way.
#
# Now ask the run. `why()` is about all of it, and half of it were copies, over PCIe from the host and back. With the
# name of a launch, as the result lists it, it is about that alone, from its first message to its last completion; for
# one SIP's share, pass one of `result.launches`.

# %%
first = result.why()[0]
print(f"whole run: {first.what}, {first.share:.0%}")
print(*(f"{x.name} on sip{x.sip}: {(x.end_ps - x.start_ps) / 1000:,.0f} ns" for x in result.launches), sep="\n")
result.why("all_reduce by passing")

# %% [markdown]
# Parts travel one behind the other, and again and again one leaves only when a credit has come back over the wire: so
# the wire's latency, which no byte has to pay more than once, is paid for every few of them.
#
# ## 4. Better: every participant sums a block of its own
#
# Cut the tile into n blocks. In n - 1 steps each block travels once round the ring, everybody adding their part
# (reduce-scatter); then the complete blocks travel round once more (all-gather). Each step moves an n-th.


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
# And the window: with twice the slots the parts of a block leave one behind the other.

# %%
result = run(blocks, n_slots=8)

# %% [markdown]
# What is left? Nothing waits for a credit any more:

# %%
result.why("all_reduce by blocks")

# %% [markdown]
# The way, ten steps one after the other, each with the latency of a hop between SIPs; and the bytes, over UCIe and
# between the SIPs.

# %%
print(f"10 hops of one element: {10 * channel.alpha_ns:,.0f} ns")

# %% [markdown]
# ## 5. Compared with the shipped algorithms
#
# The study behind the collectives report takes a Python file with algorithms of your own, and judges them as it does
# all others: by the lower bound, and in the same figure. Results are compared with numpy's.

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
# Rings win nothing at small sizes: a tree, or halving and doubling, has fewer steps. On a torus both dimensions and
# both directions work at the same time, and that is hard to beat.
#
# ## 6. Let the tuner choose
#
# `algorithm: auto` in ccl.yaml does what follows: it ranks what the machine admits by closed form, with as many slots
# as are worth their room, and simulates the best four.

# %%
config = load_ccl_config(default_ccl_path())
known = [resolve_algorithm_config(name, config) for name in names(config, "all_reduce", "rank")]
tuner = Tuner(machine, known, simulate=simulator(machine))
print(tuner.choose("all_reduce", 256))

# %%
tuner.choose("all_reduce", 2 * N)

# %% [markdown]
# ## 7. In the report
#
# `kernbench milestone ccl --param own=my_collectives.py` compares the algorithms of a file with the shipped ones on
# every system and at every size, in its table, its figures and its findings. Where a result is wrong, or a kernel does
# not fit its memory, the report says so under *Failed*. Here is that command, on this machine and without the other
# slices:

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
with contextlib.redirect_stderr(io.StringIO()):  # the bar of progress
    written = milestone.run("ccl", topology=machine, parameters=few, output=folder / "report").folder
sorted(path.name for path in written.iterdir() if path.suffix in {".csv", ".md", ".svg"})

# %%
for row in CclStudy().read(written):
    if row["algorithm"] in ("passing", "blocks, 8 slots", "torus_allreduce"):
        size, time = f"{row['bytes_per_pe']:,} B", f"{row['latency_ns']:,.0f} ns"
        print(f"{row['n_sips']} SIPs {row['algorithm']:20}{size:>10}{time:>12}, bound {row['bound_ns']:,.0f} ns")

# %% [markdown]
# To use an algorithm of your own by name, put its `kernel` and `kernel_args` into a module and add an entry to a
# ccl.yaml: then it can be what `torch.distributed` runs, and `kernbench milestone ccl --param ccl_file=...` compares
# the entries of that file.
