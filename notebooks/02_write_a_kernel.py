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
# # Write a kernel: values first, then time, then why
#
# Fifteen minutes, three kernels: a copy, a softmax of rows, a matrix product with an epilogue. Each is first run on
# plain numpy arrays, where only its values count; then on a simulated machine, which says how long it takes; then
# its result says why, and the kernel changes.

# %%
import numpy as np
from IPython.display import display

import kernbench as kb
from kernbench.analysis.breakdown import breakdown
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import pe_window
from kernbench.triton_emu.testing import run_kernel
from kernbench.viz.figures import tile_timeline

rng = np.random.default_rng(0)

# %% [markdown]
# ## 1. A copy
#
# A kernel is a Python function. Tensors arrive as typed pointers, everything else as it was passed, and `tl` holds the
# language. Every processing element (PE) runs the whole function, and asks `tl` which one it is: `program_id(0)` is
# the PE in its cube. A pointer plus a number moves on by that many elements.


# %%
def copy(x_ptr, out_ptr, n, block, *, tl):
    share = tl.cdiv(n, tl.num_programs(0))
    start = tl.program_id(0) * share
    end = min(start + share, n)
    for at in range(start, end, block):
        size = min(block, end - at)
        x = tl.load(x_ptr + at, shape=(size,))
        tl.store(out_ptr + at, x)


# %% [markdown]
# **Values.** `run_kernel` runs it on numpy arrays, without a machine and without time; arrays are written in place.
# The grid says how many PEs per cube and how many cubes there are. 16,384 elements over 3 PEs do not divide evenly, on
# purpose.

# %%
x = rng.standard_normal(16_384).astype(np.float16)
for grid in ((1, 1), (3, 1)):
    out = np.zeros_like(x)
    run_kernel(copy, x, out, x.size, 1000, grid=grid)
    print(f"{grid[0]} PE(s): {np.count_nonzero(out != x)} elements differ")

# %% [markdown]
# **Time.** The same function, on a machine. `dp` says where tensors live: here, in the memory (HBM slice) of one PE.
# The helper launches a kernel and returns what happened, the values of the last tensor, and how long the PE worked,
# from the start of its first transfer to the end of its last: host copies and the way of the launch do not count.

# %%
machine = kb.load("preset:default")
one_pe = kb.DPPolicy(num_cubes=1, num_pes=1)


def run(kernel, *tensors, args=(), on=machine):
    with kb.session(on, data=True, log="tile") as torch:
        on_device = [torch.from_numpy(array).to("ahbm", dp=one_pe) for array in tensors]
        torch.launch(kernel.__name__, kernel, *on_device, *args)
        values = on_device[-1].numpy()
    start, end = pe_window(torch.result.records)
    return torch.result, values, (end - start) / 1000


for block in (128, 256, 512, 2048, 8192, 16_384):
    result, values, ns = run(copy, x, np.zeros_like(x), args=(x.size, block))
    assert (values == x).all()
    print(f"block {block:6d}: {2 * x.size // block:4d} commands, {ns:7.2f} ns, {2 * x.nbytes / ns:6.1f} GB/s")

# %% [markdown]
# **Why.** Two limits stand in this table.
#
# - Blocks of 128 elements make 256 commands, and the PE's CPU issues one every 2 ns: 512 of the 532 ns. Twice the
#   block, half the commands; but only four transfers each way may be under way at a time, and that shows next.
# - From 512 on the time stays close to 256 ns. 32 KiB are read and 32 KiB written, and the HBM slice serves 8 channels
#   of 32 GB/s, 256 GB/s for both together: 64 KiB take 256 ns. No block size gets below that.
#
# One block of everything is slower again: its store cannot begin before its load has ended, so the latency of both
# shows, with nothing else to hide it.

# %%
result, _, ns = run(copy, x, np.zeros_like(x), args=(x.size, 2048))
slice_ns = 2 * x.nbytes / (machine.config.cube.hbm.channels * machine.config.cube.hbm.channel_bw_gbs)
print(f"bytes over the slice's rate: {slice_ns:.2f} ns; the PE worked {ns:.2f} ns")
print(result)

# %% [markdown]
# The PE worked for a small part of the whole run: most of it is the host's copy of the data to the device and back
# (`host`) and the way of the launch through the CPUs (`launch`). Both are in the result and outside of our question.
#
# ## 2. Softmax of rows, unfused
#
# Softmax of a row is exp(x - max) divided by its sum. Written as a library of single operations, each step reads
# memory and writes memory. `tl.sum` and `tl.max` reduce an axis; a short f32 column of row sums goes to memory, too.


# %%
def softmax_steps(x_ptr, e_ptr, sum_ptr, out_ptr, rows, cols, block, *, tl):
    for row in range(0, rows, block):
        x = tl.load(x_ptr + row * cols, shape=(block, cols)).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
        tl.store(e_ptr + row * cols, e)
    for row in range(0, rows, block):
        e = tl.load(e_ptr + row * cols, shape=(block, cols))
        tl.store(sum_ptr + row, tl.sum(e, axis=1))
    for row in range(0, rows, block):
        e = tl.load(e_ptr + row * cols, shape=(block, cols))
        total = tl.load(sum_ptr + row, shape=(block, 1))
        tl.store(out_ptr + row * cols, (e / total).to(tl.float16))


# %% [markdown]
# ## 3. Softmax, fused
#
# A block of rows fits in the PE's own memory (TCM), so one pass will do: read once, write once, and keep everything
# between in TCM.


# %%
def softmax_fused(x_ptr, out_ptr, rows, cols, block, *, tl):
    for row in range(0, rows, block):
        x = tl.load(x_ptr + row * cols, shape=(block, cols)).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
        total = tl.sum(e, axis=1, keep_dims=True)
        tl.store(out_ptr + row * cols, (e / total).to(tl.float16))


# %% [markdown]
# **Values.** Against numpy in f32, rounded to f16 at the end: half a unit in the last place of f16 is the most that
# rounding may cost. Large inputs check that the maximum is really subtracted: exp(90) overflows f32.

# %%
ROWS, COLS = 64, 512
x = (rng.standard_normal((ROWS, COLS)) * 3 + 90).astype(np.float16)
e = np.exp(x.astype(np.float32) - x.max(axis=1, keepdims=True).astype(np.float32))
expected = e / e.sum(axis=1, keepdims=True)
steps = (x, np.zeros((ROWS, COLS), np.float32), np.zeros(ROWS, np.float32), np.zeros_like(x))
fused = (x, np.zeros_like(x))

for kernel, tensors in ((softmax_steps, steps), (softmax_fused, fused)):
    run_kernel(kernel, *tensors, ROWS, COLS, 8)
    worst = np.abs(tensors[-1].astype(np.float32) - expected).max()
    print(f"{kernel.__name__:14}: largest difference {worst:.1e}, rows sum to 1 within ", end="")
    print(f"{np.abs(tensors[-1].astype(np.float32).sum(axis=1) - 1).max():.1e}")

# %% [markdown]
# **Time.** Bytes moved by the PE's DMA, and time.


# %%
def traffic(result):
    links = result.records.links
    own = [i for i, name in enumerate(links.names) if "pe0.pe_dma" in name]
    return int(links.nbytes[own].sum())


for kernel, tensors in ((softmax_steps, steps), (softmax_fused, fused)):
    result, values, ns = run(kernel, *tensors, args=(ROWS, COLS, 8))
    assert (values == tensors[-1]).all()
    print(f"{kernel.__name__:14}: {traffic(result):9,d} B, {ns:9.2f} ns")

# %% [markdown]
# A quarter of the bytes, and the very same time, to the picosecond: so bytes are not what limits here. **Why?** Ask
# for the busy time of each engine while the PE worked, and look at it.


# %%
def busy(result):
    parts = breakdown(result.records, pe=(0, 0, 0), window=pe_window(result.records))
    shares = {name: ps / parts.window_ps for name, ps in parts.busy_ps.items() if ps}
    print(", ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    return parts


result, _, ns = run(softmax_fused, *fused, args=(ROWS, COLS, 8))
busy(result)
tile_timeline(
    timeline(result.records, (0, 0, 0)), machine=machine.hash, title="Fused softmax, 64 x 512, 8 rows at a time"
)

# %% [markdown]
# The vector engine (PE_MATH) is busy nearly always: the loads are early and the stores are hidden. How long each
# function takes follows from the machine file: an f32 operation takes elements over 128 lanes, and four times that for
# exp and for division. A table of what it did:


# %%
def vector_time(result):
    math = result.records.of_kind("math")
    total = {}
    for op in math:
        total[op.command.name] = total.get(op.command.name, 0.0) + (op.end_ps - op.start_ps) / 1000
    return dict(sorted(total.items(), key=lambda item: -item[1]))


print("  ".join(f"{name} {ns:,.0f} ns" for name, ns in vector_time(result).items()))

# %% [markdown]
# The division is as expensive as exp, and unnecessary: every element of a row is divided by the same number. One
# reciprocal a row, and a multiplication a quarter as long, do the same.


# %%
def softmax_better(x_ptr, out_ptr, rows, cols, block, *, tl):
    for row in range(0, rows, block):
        x = tl.load(x_ptr + row * cols, shape=(block, cols)).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
        scale = 1.0 / tl.sum(e, axis=1, keep_dims=True)
        tl.store(out_ptr + row * cols, e * scale)


run_kernel(softmax_better, *fused, ROWS, COLS, 8)
print(f"largest difference {np.abs(fused[-1].astype(np.float32) - expected).max():.1e}")
better, values, better_ns = run(softmax_better, *fused, args=(ROWS, COLS, 8))
print(f"{ns:.2f} ns before, {better_ns:.2f} ns now: {ns / better_ns:.2f} x as fast")
print("  ".join(f"{name} {time:,.0f} ns" for name, time in vector_time(better).items()))

# %% [markdown]
# And fusion? It pays where memory limits. On a machine whose vector engine is wide enough, the three kernels part:

# %%
for lanes in (128, 512, 2048):
    wide = machine.with_({"cube.pe.pe_math.lanes_32bit": lanes})
    times = [run(softmax_steps, *steps, args=(ROWS, COLS, 8), on=wide)[2]]
    times += [run(kernel, *fused, args=(ROWS, COLS, 8), on=wide)[2] for kernel in (softmax_fused, softmax_better)]
    print(
        f"{lanes:5d} lanes: unfused {times[0]:7.1f} ns, fused {times[1]:7.1f} ns, without division {times[2]:7.1f} ns"
    )
print(f"{traffic(result) / 256:.1f} ns: the fused kernel's bytes over the rate of the slice")

# %% [markdown]
# With 2048 lanes the fused kernels stand at the rate of their memory, and the unfused one moves four times as much.
# Fuse first, then count vector operations; which of the two matters depends on the machine, so ask it.
#
# ## 4. A matrix product with an epilogue
#
# out = gelu(a b + bias), in two ways. First as Triton's tutorial writes it: pointer tiles, a loop over k, and the
# accumulator in the PE. Offsets and masks are made of `arange` and numbers alone, so they cost nothing; masked elements
# are not read. Then as one command: `tl.ref` names an operand that stays in memory, and the composite streams tiles
# of it through the DMA, the fetch stage and the matrix engine, applies the epilogue to each, and writes it back.


# %%
def linear_tiles(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, BM, BN, BK, *, tl):
    for m in range(0, M, BM):
        for n in range(0, N, BN):
            rm = m + tl.arange(0, BM)[:, None]
            rn = n + tl.arange(0, BN)[None, :]
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                a = tl.load(a_ptr + (rm * K + rk[None, :]), mask=(rm < M) & (rk[None, :] < K), other=0.0)
                b = tl.load(b_ptr + (rk[:, None] * N + rn), mask=(rk[:, None] < K) & (rn < N), other=0.0)
                acc = tl.dot(a, b, acc)
            bias = tl.load(bias_ptr + rn, mask=rn < N, other=0.0).to(tl.float32)
            y = acc + bias
            inner = 1.5957691216057308 * (y + 0.044715 * y * y * y)
            tl.store(out_ptr + (rm * N + rn), y * tl.sigmoid(inner), mask=(rm < M) & (rn < N))


def linear_composite(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, *, tl):
    a, b = tl.ref(a_ptr, (M, K)), tl.ref(b_ptr, (K, N))
    tl.wait(tl.composite("gemm", a, b, out_ptr, epilogue=[("bias", bias_ptr), "gelu"]))


# %% [markdown]
# **Values**, on a shape that no tile divides.


# %%
def reference(a, b, bias):
    y = a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32)
    return y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))


def problem(M, K, N):
    a, b, bias = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, K), (K, N), (N,)))
    return a, (b / np.sqrt(K)).astype(np.float16), bias, np.zeros((M, N), np.float16)


M, K, N = 50, 70, 40
tensors = problem(M, K, N)
for kernel, sizes in ((linear_tiles, (M, N, K, 32, 32, 64)), (linear_composite, (M, N, K))):
    tensors[-1][:] = 0
    run_kernel(kernel, *tensors, *sizes)
    difference = np.abs(tensors[-1].astype(np.float32) - reference(*tensors[:3])).max()
    print(f"{kernel.__name__:17}: largest difference {difference:.4f}")

# %% [markdown]
# **Time**, at 128 x 256 x 128. The matrix engine does 4096 multiplications a ns: with nothing else in the way, this
# product takes 1024 ns.

# %%
M, K, N = 128, 256, 128
tensors = problem(M, K, N)
runs = {}
for kernel, sizes in ((linear_tiles, (M, N, K, 32, 32, 64)), (linear_composite, (M, N, K))):
    result, values, ns = runs[kernel.__name__] = run(kernel, *tensors, args=sizes)
    assert np.abs(values.astype(np.float32) - reference(*tensors[:3])).max() < 0.02
    print(f"{kernel.__name__:17}: {ns:8.1f} ns, matrix engine used {M * K * N / 4096 / ns:.1%}; busy: ", end="")
    busy(result)

# %% [markdown]
# **Why.** The two do the same arithmetic. Look at the first 500 ns of both.

# %%
for name, (result, _, _) in runs.items():
    boxes = timeline(result.records, (0, 0, 0))
    print(f"{name}: {len(boxes)} boxes, {sum(box['stage'] == 'gemm' for box in boxes)} of them in the matrix engine")
    display(tile_timeline(boxes, machine=machine.hash, title=name, zoom_ns=500))

# %% [markdown]
# Both wait for *DMA in*, and the first one longer. A pointer tile of b is 32 elements wide, 64 bytes of a row of 256;
# memory serves whole lines of 256 bytes, so three quarters of what it serves are thrown away. The composite's operands
# are taken to lie tile by tile (`cube.hbm.gather: packed`, an assumption about layout). The pointer form can do better:
# a tile as wide as a row uses every line that it touches.

# %%
for sizes in ((32, 32, 64), (32, 128, 64), (32, 128, 128), (128, 128, 128)):
    result, _, ns = run(linear_tiles, *tensors, args=(M, N, K, *sizes))
    print(f"tiles of {sizes[0]:3d} x {sizes[1]:3d} x {sizes[2]:3d}: {ns:7.1f} ns; ", end="")
    busy(result)

# %% [markdown]
# Twice as fast and more; then larger tiles lose again, as there are too few of them to overlap loads, products and
# vector operations. For the composite, loading b into TCM before leaves only a to be streamed:


# %%
def linear_pinned(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, activation, *, tl):
    b = tl.load(b_ptr, shape=(K, N))
    tl.wait(tl.composite("gemm", tl.ref(a_ptr, (M, K)), b, out_ptr, epilogue=[("bias", bias_ptr), activation]))


for activation in ("gelu", "relu"):
    result, _, ns = run(linear_pinned, *tensors, args=(M, N, K, activation))
    print(f"{activation}: {ns:7.1f} ns, matrix engine used {M * K * N / 4096 / ns:.1%}; busy: ", end="")
    busy(result)

# %% [markdown]
# Now the vector engine is the busiest: gelu is many operations for each element, exp and a division among them. With
# relu instead the same product takes a quarter less, and memory limits again: 64 KiB of b once, 64 KiB of a four times
# (once for each column of tiles) and 32 KiB of output take 1408 ns at 256 GB/s.
#
# ## What to take with you
#
# - `run_kernel` for values: no machine, numpy arrays in place, any grid; odd sizes find wrong masks.
# - `kb.session(..., log="tile")` for time; `torch.result`, `breakdown` and `timeline` for the reason.
# - First find the engine that is busy all the time. Doing less for another one changes nothing.
# - The shipped kernels (`kernbench/kernels`) are written like these; `docs/model.md` has the rules behind each number.
