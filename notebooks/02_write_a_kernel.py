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
# Fifteen minutes, three kernels: a copy, a row-wise softmax, and a matrix product with an epilogue. Each kernel first
# runs on plain numpy arrays, to check its values, and then on a simulated machine, to measure its time. The result
# explains that time, and the kernel is improved.

# %%
import numpy as np
from IPython.display import display

import kernbench as kb
from kernbench.analysis.breakdown import breakdown
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import pe_window
from kernbench.triton_emu import run_kernel
from kernbench.viz.figures import tile_timeline

rng = np.random.default_rng(0)

# %% [markdown]
# ## 1. A copy
#
# A kernel is a Python function. Tensors arrive as typed pointers, other arguments are passed unchanged, and `tl`
# provides the kernel language. Every processing element (PE) runs the whole function; `program_id(0)` is the number of
# the PE in its cube. Adding a number to a pointer advances it by that many elements.


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
# **Values.** `run_kernel` runs the kernel on numpy arrays, without a machine and without simulated time; it writes
# arrays in place. The grid is the number of PEs per cube and the number of cubes. 16,384 elements do not divide evenly
# among 3 PEs; this tests the remainder.

# %%
x = rng.standard_normal(16_384).astype(np.float16)
for grid in ((1, 1), (3, 1)):
    out = np.zeros_like(x)
    run_kernel(copy, x, out, x.size, 1000, grid=grid)
    print(f"{grid[0]} PE(s): {np.count_nonzero(out != x)} elements differ")

# %% [markdown]
# **Time.** The same function runs on a machine. `dp` selects where tensors are stored: here, in the memory (HBM slice)
# of one PE. The helper launches a kernel and returns the result, the values of the last tensor, and the time that the
# PE worked, from the start of its first transfer to the end of its last. Host copies and the latency of the launch are
# not included.

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
# **Why.** The table shows two limits.
#
# - Blocks of 128 elements need 256 commands, and the PE's CPU issues one every 2 ns: 512 of the 532 ns. Doubling the
#   block halves the number of commands; then the limit of four outstanding transfers in each direction becomes visible.
# - From 512 elements up, the time stays close to 256 ns. The kernel reads 32 KiB and writes 32 KiB, and the HBM slice
#   has 8 channels of 32 GB/s, 256 GB/s for reads and writes together: 64 KiB take 256 ns. No block size can be faster.
#
# A single block for all elements is slower again: its store cannot begin before its load has ended, so the latencies of
# both are exposed.

# %%
result, _, ns = run(copy, x, np.zeros_like(x), args=(x.size, 2048))
slice_ns = 2 * x.nbytes / (machine.config.cube.hbm.channels * machine.config.cube.hbm.channel_bw_gbs)
print(f"bytes over the slice's rate: {slice_ns:.2f} ns; the PE worked {ns:.2f} ns")
print(result)

# %% [markdown]
# The PE worked during a small part of the whole run. The rest is the host's copies to the device and back, and
# the launch's path through the CPUs, which the result lists apart from the device. They are not what we study here.
#
# ## 2. Softmax of rows, unfused
#
# The softmax of a row is exp(x - max) divided by its sum. If it is written as a sequence of library operations, each
# step reads its input from memory and writes its output to memory. `tl.sum` and `tl.max` reduce an axis; the column of
# row sums, in f32, also goes to memory.


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
# A block of rows fits in the PE's own memory (TCM), so one pass is enough: read once, write once, and keep all
# intermediate values in TCM.


# %%
def softmax_fused(x_ptr, out_ptr, rows, cols, block, *, tl):
    for row in range(0, rows, block):
        x = tl.load(x_ptr + row * cols, shape=(block, cols)).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
        total = tl.sum(e, axis=1, keep_dims=True)
        tl.store(out_ptr + row * cols, (e / total).to(tl.float16))


# %% [markdown]
# **Values.** The reference is numpy in f32. The kernel rounds to f16 at the end, which may cost at most half a unit in
# the last place of f16. Large inputs check that the maximum is really subtracted: exp(90) overflows f32.

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
# **Time.** The bytes that the PE's DMA moves, and the time:


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
# The fused kernel moves a quarter of the bytes in exactly the same time, to the picosecond, so memory is not the limit
# here. **Why?** Look at the busy time of each engine while the PE worked.


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
# The vector engine (PE_MATH) is busy nearly all the time; loads run ahead of it, and stores are hidden behind it. The
# machine file determines the time of each operation: an f32 operation takes elements / 128 cycles (one per row of 128
# lanes), and exp and division take four times as long. The time of each operation:


# %%
def vector_time(result):
    math = result.records.of_kind("math")
    total = {}
    for op in math:
        total[op.command.name] = total.get(op.command.name, 0.0) + (op.end_ps - op.start_ps) / 1000
    return dict(sorted(total.items(), key=lambda item: -item[1]))


print("  ".join(f"{name} {ns:,.0f} ns" for name, ns in vector_time(result).items()))

# %% [markdown]
# The division is as expensive as exp, and it is unnecessary: every element of a row is divided by the same number. One
# reciprocal per row and a multiplication, which takes a quarter of the time of a division, give the same result.
#
# **Predict, then drag.** The picture below shows the improved run, in which the PE works 2,790 ns. The vector engine
# has 128 lanes of 32 bits. How long does the PE work with 512? And with 2048? Write down both numbers, select the
# vector engine in PE 0 of cube 0, and drag its lanes. The cell after the picture prints the times.


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

# %%
kb.picture(better, lambda changed: run(softmax_better, *fused, args=(ROWS, COLS, 8), on=changed)[0])

# %% [markdown]
# Fusion pays off where memory is the limit. On a machine with a wide enough vector engine, the times of the three
# kernels differ:

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
# With 2048 lanes, memory bandwidth limits the fused kernels, and the unfused kernel moves four times as many bytes.
# Fuse first, then reduce the number of vector operations. Which of the two matters more depends on the machine, so
# measure it.
#
# ## 4. A matrix product with an epilogue
#
# Here is out = gelu(a b + bias) in two versions. The first follows Triton's tutorial: pointer tiles, a loop over k, and
# the accumulator in the PE. Offsets and masks are computed only from `arange` and numbers, so they cost nothing; masked
# elements are not read. The second is one command: `tl.ref` names an operand that stays in memory. The composite
# streams tiles of the operands through the DMA, the fetch stage and the matrix engine, applies the epilogue to each
# output tile, and writes it back.


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
# **Values**, for a shape that no tile size divides evenly:


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
# **Time**, for 128 x 256 x 128. The matrix engine performs 4096 multiplications per ns, so this product takes at least
# 1024 ns.

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
# **Why.** Both versions do the same arithmetic. Compare their first 500 ns:

# %%
for name, (result, _, _) in runs.items():
    boxes = timeline(result.records, (0, 0, 0))
    print(f"{name}: {len(boxes)} boxes, {sum(box['stage'] == 'gemm' for box in boxes)} of them in the matrix engine")
    display(tile_timeline(boxes, machine=machine.hash, title=name, zoom_ns=500))

# %% [markdown]
# Both wait for *DMA in*, the first version longer. A pointer tile of b is 32 elements wide, 64 bytes of a row of 256
# bytes. The memory serves whole lines of 256 bytes, so three quarters of the bytes that it serves are discarded. The
# composite's operands are assumed to be stored tile by tile (`cube.hbm.gather: packed`, an assumption about layout).
# The pointer version can do better: a tile as wide as a row uses all of every line that it touches.

# %%
for sizes in ((32, 32, 64), (32, 128, 64), (32, 128, 128), (128, 128, 128)):
    result, _, ns = run(linear_tiles, *tensors, args=(M, N, K, *sizes))
    print(f"tiles of {sizes[0]:3d} x {sizes[1]:3d} x {sizes[2]:3d}: {ns:7.1f} ns; ", end="")
    busy(result)

# %% [markdown]
# Wider tiles are more than twice as fast. Still larger tiles are slower again, because there are too few of them to
# overlap loads, products and vector operations. For the composite, b can be loaded into TCM first, so that only a is
# streamed:


# %%
def linear_pinned(a_ptr, b_ptr, bias_ptr, out_ptr, M, N, K, activation, *, tl):
    b = tl.load(b_ptr, shape=(K, N))
    tl.wait(tl.composite("gemm", tl.ref(a_ptr, (M, K)), b, out_ptr, epilogue=[("bias", bias_ptr), activation]))


for activation in ("gelu", "relu"):
    result, _, ns = run(linear_pinned, *tensors, args=(M, N, K, activation))
    print(f"{activation}: {ns:7.1f} ns, matrix engine used {M * K * N / 4096 / ns:.1%}; busy: ", end="")
    busy(result)

# %% [markdown]
# Now the vector engine is the busiest: gelu needs many operations for each element, including exp and a division. With
# relu instead, the same product takes a quarter less time, and memory is the limit again: 64 KiB of b once, 64 KiB of a
# four times (once for each column of tiles) and 32 KiB of output take 1408 ns at 256 GB/s.
#
# ## Summary
#
# - `run_kernel` checks values: no machine, numpy arrays written in place, any grid; odd sizes reveal wrong masks.
# - `kb.session(..., log="tile")` measures time; `torch.result`, `breakdown` and `timeline` explain it.
# - First find the engine that is busy all the time. Reducing the work of another engine changes nothing.
# - The shipped kernels (`kernbench/kernels`) are written in the same way; `docs/model.md` states the rules behind each
#   number.
