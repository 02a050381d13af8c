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
# # The hardware model, by probes
#
# What are the parts of this machine, what does a transfer cost, and how does that change when many transfers compete?
# This notebook simulates each number below and compares it with the rule that it should follow.

# %%
import kernbench as kb
from kernbench.analysis.utilization import hottest, shares
from kernbench.studies import ProbeStudy, probe
from kernbench.viz.still import link_heatmap

machine = kb.load("preset:default")
known = probe.cases(machine)
charts = {chart.name: chart for chart in ProbeStudy.charts}


def draw(name, rows):
    return charts[name].image(rows, ProbeStudy.columns, machine)


machine

# %% [markdown]
# A *SIP* is a package: a mesh of cubes, with an IO chiplet on its west side. A *cube* is an HBM stack on a die with a
# mesh of routers. Each *PE* is attached to a router, and so is its slice of the HBM: that slice can be reached only
# through that router.
#
# ## One read, link by link
#
# PE 0 reads 4 KiB of its own slice. A read consists of a command of 0 bytes, the memory access, and the reply: 16 flits
# of 256 B.


# %%
def show_hops(name, nbytes=4096):
    for hop in probe.hops(machine, known[name], nbytes):
        times = f"{hop['first_arrival_ns']:7.2f} .. {hop['last_end_ns']:7.2f} ns"
        print(f"{hop['link']:>50}  {hop['flits']:2d} flits  {times}")


show_hops("own-slice-read")

# %% [markdown]
# The command reaches the router immediately, and the router takes 1 ns to forward it. The first bursts are read from 1
# ns to 9 ns: a pseudo channel needs 8 ns for 256 B at 32 GB/s, and the eight channels work in parallel. So eight flits
# are ready at 9 ns and eight more at 17 ns. At that time the link, which takes 1 ns per flit at 256 GB/s, has just
# carried the first eight. The last flit leaves the slice at 25 ns; one router and one link later, at 27 ns, the read is
# complete.
#
# ## Zero-load table
#
# The same read over longer routes, with 256 B and with 4 KiB, on an otherwise idle machine.

# %%
near_to_far = ["own-slice", "same-half", "other-half", "next-cube", "farthest-cube", "other-sip"]
reads = [*(f"{name}-read" for name in near_to_far), "d2h-read"]


def time_ns(name, nbytes, machine=machine):
    return probe.run(machine, known[name], nbytes).parts[0].total / 1000


for name in reads:
    print(f"{name:>18}: {time_ns(name, 256):7.2f} ns {time_ns(name, 4096):7.2f} ns   {known[name].says}")

# %% [markdown]
# Inside a cube, every hop costs 1.03 ns each way (1 ns in the router, 0.03 ns for 3 mm of wire), and 1 ns more for the
# first flit, because each link forwards whole flits. Each crossing to another cube adds two UCIe ports of 8 ns, in each
# direction. A read of 4 KiB has 15 flits more than a read of 256 B: they add 15 ns in the cube, at 256 GB/s; 30 ns over
# UCIe, at 128 GB/s; 60 ns over PCIe, at 64 GB/s. The rest of the route adds nothing for them, because flits are
# pipelined.
#
# ## What the time is made of
#
# These are the terms of the closed form for an idle machine; their sum equals the simulated time to the picosecond.

# %%
rows = [probe.row(probe.run(machine, known[name], 4096)) for name in reads]
columns = ["wire", "nodes", "fill", "serialization", "memory", "queueing"]
print(f"{'ns':>18}" + "".join(f"{name:>15}" for name in columns) + f"{'sum':>10}")
for r in rows:
    print(f"{r['case']:>18}" + "".join(f"{r[f'{c}_ns']:15.2f}" for c in columns) + f"{r['last_end_ns']:10.2f}")
draw("probe_single_parts", rows)

# %% [markdown]
# *Nodes* grows with the number of routers and ports, and dominates the time to the farthest cube. *Wire* is negligible
# on the die, but it is most of the time to the host and nearly half of the time to another SIP. *Memory* is the 8 ns of
# the first burst; after it, the channels keep up with the link. *Queueing* is zero.
#
# ## Size hides latency

# %%
sizes = [4096, 16384, 65536, 262144, 1048576]
grown = [probe.row(probe.run(machine, known[name], nbytes)) for name in reads for nbytes in sizes]
for name in reads:
    mine = [r for r in grown if r["case"] == name]
    print(f"{name:>18}: " + " ".join(f"{r['bandwidth_gbs']:6.1f}" for r in mine) + f" of {mine[0]['path_gbs']:g} GB/s")
draw("probe_single_bandwidth", grown)

# %% [markdown]
# A read of 4 KiB from the PE's own slice reaches 152 of 256 GB/s; from the farthest cube, 10 of 128 GB/s. Reads of 1
# MiB all come within a few percent of the bandwidth of their slowest link. A kernel that reads remote data should read
# large pieces, or prefetch the next piece.
#
# ## Change the machine, and predict
#
# A read from the next cube passes two UCIe ports in each direction. If a port took 4 ns instead of 8, the read would
# take 16 ns less. If the HBM had an access time of 40 ns, every read would take 40 ns more.

# %%
for path, value, name in (("cube.ucie.port_ns", 4, "next-cube-read"), ("cube.hbm.access_ns", 40, "own-slice-read")):
    before, after = time_ns(name, 4096), time_ns(name, 4096, machine.with_({path: value}))
    print(f"{path} = {value}: {name} {before:.2f} -> {after:.2f} ns ({after - before:+.2f})")

# %% [markdown]
# ## Many transfers at once
#
# In a pattern, all transfers start at the same time, 4 KiB each. *Alone* is the mean of their closed forms; the rest of
# the time is queueing.

# %%
patterns = [name for name, case in known.items() if case.pattern]
met = [probe.row(probe.run(machine, known[name], 4096)) for name in patterns]
for r in met:
    print(
        f"{r['case']:>18}: {r['transfers']:3d} transfers, alone {r['alone_ns']:6.1f} ns, mean {r['mean_ns']:7.1f} ns, "
        f"last {r['last_end_ns']:7.1f} ns, {r['bandwidth_gbs']:8.1f} of {r['fair_gbs']:g} GB/s"
    )
for r in met:
    queueing = r["queueing_ns"] / r["mean_ns"]
    print(f"{r['case']:>18}: {queueing:6.1%} of the mean time of {r['mean_ns']:,.1f} ns is queueing")

# %% [markdown]
# PEs that access only their own slices do not compete: 128 PEs take as long as one, and together move 19 TB/s. PEs that
# access the same slice share its 256 GB/s, and PEs that write to another SIP share the 128 GB/s of the only link
# between the two SIPs: nearly all of their time is queueing.
#
# The last number compares with *fair* streams: the same bytes without latency, with every link shared by max-min
# fairness. When all PEs read the slice of PE 0, they do not reach this rate, even with larger reads; when they write,
# they do:

# %%
far = [
    probe.row(probe.run(machine, known[f"all-pe0-{kind}"], nbytes))
    for kind in ("read", "write")
    for nbytes in sizes[:2]
]
for r in far:
    print(f"{r['case']:>18}, {r['nbytes']:5d} B each: {r['fair_utilization']:.1%} of fair streams")
draw("probe_pattern_bandwidth", met + [r for r in far if r["nbytes"] > 4096])

# %% [markdown]
# Two limits act one after the other for these reads. The slice serves whole reads in the order in which their commands
# arrive, and the link between the SIPs carries half of all data at half of the slice's rate. The commands of nearby PEs
# arrive first, and the link is idle while the slice serves them. Writes interleave flit by flit on their routes, and
# keep both the slice and the link busy.
#
# ## Hot spots of the mesh
#
# The share of the time that each link was busy, drawn on the machine's geometry. First, all PEs of SIP 0 read one slice
# in the middle of the SIP.


# %%
def heat(name, nbytes=4096):
    found = probe.run(machine, known[name], nbytes)
    share = shares(found.result.records.links, found.result.records.makespan_ps)
    for link in sorted(share, key=lambda link: (-share[link], link))[:5]:
        print(f"{share[link]:6.1%}  {link}")
    print(f"hottest: {hottest(share)}; {sum(s > 0.5 for s in share.values())} of {len(share)} links busy over half")
    return link_heatmap(share, machine, title=f"{name}, {nbytes} B each")


heat("all-one-read")

# %% [markdown]
# The data leaves the slice over one link at its full rate. Beyond it, the routes branch as a tree, and each branch
# carries the data that the PEs beyond it requested. Next, the eight PEs of cube 0 write to cube 1.

# %%
heat("eastbound-write", 65536)

# %% [markdown]
# A PE's number modulo 4 selects its UCIe connection, so two PEs share each of the four connections, and 8 x 256 GB/s of
# DMA bandwidth share 4 x 128 GB/s of UCIe bandwidth. The links between routers are also shared, but they are twice as
# fast. Last, all PEs of SIP 0 write to SIP 1.

# %%
heat("to-other-sip-write")

# %% [markdown]
# 128 PEs share one link, and the rest of the machine is nearly idle. A collective between SIPs should therefore reduce
# inside each SIP first.
#
# ## Predict, then drag
#
# All eight PEs of a cube load the same 16 KiB from the slice of PE 0, and each stores a copy in its own slice. The
# picture shows this run: press play, zoom into cube 0 of SIP 0, and watch the loads. **Predict**: which takes longer,
# HBM that delivers half as much (16 GB/s per channel instead of 32), or links between routers that carry half as much
# (128 GB/s instead of 256)? Then select an HBM slice or a link between routers, drag its field, and compare.


# %%
def share(a, b, *, tl):
    tl.store(b + tl.program_id(0) * 8192, tl.load(a, shape=(8192,)))


def run_share(machine):
    with kb.session(machine) as torch:
        one, all_eight = kb.DPPolicy(num_cubes=1, num_pes=1), kb.DPPolicy(num_cubes=1, pe="row_wise")
        a = torch.empty(8192, dtype=torch.float16, device="ahbm", dp=one)
        b = torch.empty(8 * 8192, dtype=torch.float16, device="ahbm", dp=all_eight)
        torch.launch("share", share, a, b)
    return torch.result


shared = run_share(machine)
kb.picture(shared, run_share)

# %%
for path, value in (("cube.hbm.channel_bw_gbs", 16), ("cube.noc.link_bw_gbs", 128)):
    changed = run_share(machine.with_({path: value}))
    print(f"{path} = {value}: {shared.latency_ns:,.1f} -> {changed.latency_ns:,.1f} ns")

# %% [markdown]
# The slice serves the eight loads, 128 KiB at 256 GB/s, in 512 ns, and one store in 64 ns; at half its rate, both take
# twice as long. The links between routers are as fast as the slice. At half their rate they are the limit, because
# nearly all of the data leaves PE 0's router over the same link.
#
# ## Processes of your own
#
# `torch.engine.env` is a SimPy environment that counts picoseconds. A process on it runs next to the machine, and may
# change the components that you provide. Here, a slice of HBM accepts no read before `ready_ps`: one process refreshes
# it, 100 ns every 500 ns, and another makes it fail for 1.5 us. **Predict**: how much longer does a program take that
# reads 64 rows of 2 KiB, one after the other?

# %%
from kernbench.components import HbmCtrl


class PausedHbm(HbmCtrl):
    """A slice of HBM that accepts no read before `ready_ps`."""

    ready_ps = 0

    def on_read(self, txn):
        self.core.call_at(max(self.core.now, self.ready_ps), super().on_read, txn)


def refresh(env, memory):
    while True:
        yield env.timeout(500_000)
        memory.ready_ps = max(memory.ready_ps, env.now + 100_000)


def fail(env, memory):
    yield env.timeout(1_000_000)
    memory.ready_ps = env.now + 1_500_000


# %%
def read(a, *, tl):
    for row in range(64):
        tl.wait(tl.load(a + row * 1024, shape=(1024,)))


def run_read(machine, *processes):
    with kb.session(machine) as torch:
        env, memory = torch.engine.env, torch.engine.memory_at("sip0.cube0.hbm_ctrl.pe0")
        for process in processes:
            env.process(process(env, memory))
        one = kb.DPPolicy(num_cubes=1, num_pes=1)
        torch.launch("read", read, torch.empty(64 * 1024, dtype=torch.float16, device="ahbm", dp=one))
    return torch.result


paused = machine.with_({"cube.hbm.impl": f"{__name__}:PausedHbm"})
for name, processes in {"alone": (), "refresh": (refresh,), "refresh and failure": (refresh, fail)}.items():
    print(f"{name}: {run_read(paused, *processes).latency_ns:,.1f} ns")

# %% [markdown]
# A refresh holds up the read that arrives during it; a refresh during the failure costs nothing more. `refresh` never
# ends, but the run ends with the program.
#
# ## Can it be trusted?
#
# Every flit is simulated on every link. A transfer that does not compete with others takes exactly the time of its
# closed form.

# %%
print(f"{len(rows + grown + met + far)} runs")
for finding in ProbeStudy().findings(grown):
    print(finding)

# %% [markdown]
# ## Where to go from here
#
# - `kernbench probe` prints this table for your machine file; `kernbench probe --case NAME` adds sizes and hops.
# - The probe milestone (`milestones/probe.ipynb`; full report in `milestones/output/probe`) covers all cases and larger
#   sizes.
# - `docs/model.md`, section 4, states the rules.
