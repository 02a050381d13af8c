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
# What does this machine consist of, what does a transfer on it cost, and what becomes of that when many meet? Each
# number below is simulated here, and each is compared with the rule that it should follow.

# %%
import kernbench as kb
from kernbench.analysis.utilization import hottest, shares
from kernbench.studies import ProbeStudy, probe
from kernbench.viz.heatmap import link_heatmap

machine = kb.load("preset:default")
known = probe.cases(machine)
charts = {chart.name: chart for chart in ProbeStudy.charts}


def draw(name, rows):
    return charts[name].image(rows, ProbeStudy.columns, machine)


machine

# %% [markdown]
# A *SIP* is a package: a mesh of cubes and an IO chiplet on their west side. A *cube* is an HBM stack on a die with a
# mesh of routers. Each *PE* stands at a router, and so does the slice of HBM that belongs to it: the only way to that
# slice is that router.
#
# ## One read, link by link
#
# PE 0 reads 4 KiB of its own slice. A read is a command of no bytes, the memory's work, and 16 flits of 256 B on the
# way back.


# %%
def show_hops(name, nbytes=4096):
    for hop in probe.hops(machine, known[name], nbytes):
        times = f"{hop['first_arrival_ns']:7.2f} .. {hop['last_end_ns']:7.2f} ns"
        print(f"{hop['link']:>50}  {hop['flits']:2d} flits  {times}")


show_hops("own-slice-read")

# %% [markdown]
# The command reaches the router at once, which takes 1 ns to pass it on. From 1 ns to 9 ns the first burst is read: a
# pseudo channel needs 8 ns for 256 B at 32 GB/s, and the eight channels work side by side. So eight flits are ready at
# 9 ns and eight more at 17 ns, just as the link at 256 GB/s, 1 ns a flit, has carried the first eight. The last flit
# leaves the slice at 25 ns; one router and one link later, at 27 ns, the read is done.
#
# ## Zero-load table
#
# The same read over longer ways, with 256 B and with 4 KiB, nothing else in the machine.

# %%
near_to_far = ["own-slice", "same-half", "other-half", "next-cube", "farthest-cube", "other-sip"]
reads = [*(f"{name}-read" for name in near_to_far), "d2h-read"]


def time_ns(name, nbytes, machine=machine):
    return probe.run(machine, known[name], nbytes).parts[0].total / 1000


for name in reads:
    print(f"{name:>18}: {time_ns(name, 256):7.2f} ns {time_ns(name, 4096):7.2f} ns   {known[name].says}")

# %% [markdown]
# Inside a cube every hop costs 1.03 ns each way (1 ns in the router, 0.03 ns for 3 mm of wire) and 1 ns more for the
# first flit, which each link passes on whole. Another cube costs two UCIe ports of 8 ns, there and back, on each
# crossing. Between 256 B and 4 KiB lie 15 flits: 15 ns in the cube, at 256 GB/s; 30 ns over UCIe, at 128 GB/s; 60 ns
# over PCIe, at 64 GB/s. The rest of the way does not matter for them: flits follow one another like cars of a train.
#
# ## What the time is made of
#
# These are the parts of the closed form for an idle machine; they sum to the simulated time to the picosecond.

# %%
rows = [probe.row(probe.run(machine, known[name], 4096)) for name in reads]
columns = ["wire", "nodes", "fill", "serialization", "memory", "queueing"]
print(f"{'ns':>18}" + "".join(f"{name:>15}" for name in columns) + f"{'sum':>10}")
for r in rows:
    print(f"{r['case']:>18}" + "".join(f"{r[f'{c}_ns']:15.2f}" for c in columns) + f"{r['last_end_ns']:10.2f}")
draw("probe_single_parts", rows)

# %% [markdown]
# *Nodes* grow with the number of routers and ports, and dominate the way to the farthest cube; *wire* is next to
# nothing on the die, but most of the way to the host and nearly half of that to another SIP; *memory* is the first
# burst's 8 ns, after which the channels keep up with the link; nothing queues.
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
# 4 KiB from the own slice run at 152 of 256 GB/s; from the farthest cube, at 10 of 128. With 1 MiB all come within a
# few percent of their slowest link. A kernel that has to read far away should ask for much at once, or for the next
# piece before it needs it.
#
# ## Change the machine, and predict
#
# If UCIe ports took 4 ns instead of 8, a read from the next cube would pass two ports there and two back: 16 ns less.
# If HBM needed 40 ns more before its first burst, every read would take those 40 ns more.

# %%
for path, value, name in (("cube.ucie.port_ns", 4, "next-cube-read"), ("cube.hbm.access_ns", 40, "own-slice-read")):
    before, after = time_ns(name, 4096), time_ns(name, 4096, machine.with_({path: value}))
    print(f"{path} = {value}: {name} {before:.2f} -> {after:.2f} ns ({after - before:+.2f})")

# %% [markdown]
# ## When many meet
#
# Patterns: all start at the same instant, 4 KiB each. *Alone* is the mean of the closed forms; what is beyond is
# queueing.

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
# PEs that stay at their own slices never meet: 128 take as long as one, and together move 19 TB/s. All at one slice
# have to share its 256 GB/s, and all to another SIP the 128 GB/s of the one link between the two: queueing is nearly
# all of their time.
#
# The last number compares with *fair* streams: the same bytes, without latency, sharing every link max-min fairly.
# Reads of the slice of PE 0 by all PEs fall short of that, and stay so with size, while writes do not:

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
# Two limits follow one another there: the slice, which serves reads whole and in the order in which their commands
# arrive, and the link between the SIPs, which carries half of all data at half of the slice's rate. Near askers come
# first, and the link stands idle meanwhile. Writes meet on their way, flit by flit, and keep both busy.
#
# ## Hot spots of the mesh
#
# The share of the time that each link was busy, drawn where the links are. First: all PEs of SIP 0 read one slice in
# its middle.


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
# The data leave the slice by one link at its full rate. Behind it the tree of routes divides: each branch carries what
# the PEs behind it asked for. Next: the eight PEs of cube 0 write to cube 1.

# %%
heat("eastbound-write", 65536)

# %% [markdown]
# A PE's number picks its UCIe connection (modulo 4), so two PEs share each of the four, and 8 x 256 GB/s of DMA go over
# 4 x 128 GB/s of UCIe. The routers' links before them are shared, too, but are twice as fast. Last: all of SIP 0 write
# to SIP 1.

# %%
heat("to-other-sip-write")

# %% [markdown]
# 128 PEs, one link: the rest of the machine is nearly idle. A collective that crosses SIPs had better reduce first.
#
# ## Can it be trusted?
#
# Every flit is simulated on every link, and a transfer that meets no other takes as long as its closed form says.

# %%
print(f"{len(rows + grown + met + far)} runs")
for finding in ProbeStudy().findings(grown):
    print(finding.text)

# %% [markdown]
# ## Where to go from here
#
# - `kernbench probe` prints this table for your machine file; `kernbench probe --case NAME` adds sizes and hops.
# - The probe milestone (`milestones/probe.ipynb`, its full report in `milestones/output/probe`) has all cases and
#   larger sizes.
# - `docs/model.md`, section 4, states the rules.
