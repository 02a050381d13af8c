"""Kernels in Triton, as users write them: what the tests run with `kb.triton.load`, and in Triton's interpreter."""

import triton
import triton.language as tl
from triton.language.extra import libdevice

SHIFT = tl.constexpr(3)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)


@triton.jit
def softmax(x, out, rows, columns, stride, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 8, "BLOCK is at least 8")
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        i = tl.arange(0, BLOCK)
        values = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf"))
        e = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * stride + i, e / tl.sum(e, axis=0), mask=i < columns)


@triton.jit
def leaky(x, slope: tl.constexpr):
    return tl.where(x >= 0, x, slope * x)


@triton.autotune(
    configs=[triton.Config({"BM": m, "BN": n, "BK": k}) for m, n, k in ((16, 16, 16), (32, 32, 16), (32, 16, 32))],
    key=["M", "N", "K"],
)
@triton.jit
def matmul(
    a, b, c, M, N, K, am, ak, bk, bn, cm, cn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr = 2, ACTIVATION: tl.constexpr = "",
):  # fmt: skip
    m, n = tl.swizzle2d(
        tl.program_id(0) // tl.cdiv(N, BN), tl.program_id(0) % tl.cdiv(N, BN), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP
    )
    rows, columns, inner = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    at_a = a + (rows % M)[:, None] * am + inner[None, :] * ak
    at_b = b + inner[:, None] * bk + (columns % N)[None, :] * bn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = tl.load(at_a, mask=inner[None, :] < K - k * BK, other=0.0)
        right = tl.load(at_b, mask=inner[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(left, right, acc)
        at_a += BK * ak
        at_b += BK * bk
    if ACTIVATION == "leaky":
        acc = leaky(acc, 0.01)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + cm * rows[:, None] + cn * columns[None, :], acc.to(c.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm(x, y, w, b, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    center = tl.sum(values, axis=0) / n
    apart = tl.where(i < n, values - center, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, axis=0) / n + eps)
    tl.store(mean + row, center)
    tl.store(rstd + row, scale)
    weight, bias = tl.load(w + i, mask=i < n), tl.load(b + i, mask=i < n)
    tl.store(y + i, apart * scale * weight + bias, mask=i < n)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, w, mean, rstd, lock, stride, n, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < n
    values = tl.load(x + row * stride + i, mask=inside, other=0).to(tl.float32)
    given = tl.load(dy + row * stride + i, mask=inside, other=0).to(tl.float32)
    weight = tl.load(w + i, mask=inside).to(tl.float32)
    scale = tl.load(rstd + row)
    normal = tl.where(inside, (values - tl.load(mean + row)) * scale, 0.0)
    weighted = tl.where(inside, weight * given, 0.0)
    c1 = tl.sum(normal * weighted, axis=0) / n
    c2 = tl.sum(weighted, axis=0) / n
    tl.store(dx + row * stride + i, (weighted - (normal * c1 + c2)) * scale, mask=inside)
    group = row % GROUPS
    held, count = lock + group, lock + GROUPS + group
    while tl.atomic_cas(held, 0, 1) == 1:
        pass
    part_w, part_b = given * normal, given
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        part_w += tl.load(dw + group * n + i, mask=inside)
        part_b += tl.load(db + group * n + i, mask=inside)
    tl.store(dw + group * n + i, part_w, mask=inside)
    tl.store(db + group * n + i, part_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(held, 0)


@triton.heuristics({"EVEN": lambda args: args["T"] % args["BQ"] == 0})
@triton.jit
def attention(q, k, v, out, T, scale, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr,
              EVEN: tl.constexpr):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * T * D
    at_q = tl.make_block_ptr(q + base, (T, D), (D, 1), (block * BQ, 0), (BQ, D), (1, 0))
    at_k = tl.make_block_ptr(k + base, (D, T), (1, D), (0, 0), (D, BK), (0, 1))
    at_v = tl.make_block_ptr(v + base, (T, D), (D, 1), (0, 0), (BK, D), (1, 0))
    query = tl.load(at_q) if EVEN else tl.load(at_q, boundary_check=(0,), padding_option="zero")
    top = tl.full((BQ,), float("-inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    acc = tl.zeros((BQ, D), tl.float32)
    rows = block * BQ + tl.arange(0, BQ)
    end = tl.minimum((block + 1) * BQ, T) if CAUSAL else T
    for start in range(0, end, BK):
        columns = start + tl.arange(0, BK)
        score = tl.dot(query, tl.load(at_k, boundary_check=(1,))) * (scale * 1.44269504)
        seen = (columns[None, :] < T) & ((rows[:, None] >= columns[None, :]) | (not CAUSAL))
        score = tl.where(seen, score, float("-inf"))
        new = tl.maximum(top, tl.max(score, 1))
        p = tl.math.exp2(score - new[:, None])
        alpha = tl.math.exp2(top - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(v.type.element_ty), tl.load(at_v, boundary_check=(0,)), acc * alpha[:, None])
        top = new
        at_k = tl.advance(at_k, (0, BK))
        at_v = tl.advance(at_v, (BK, 0))
    at_out = tl.make_block_ptr(out + base, (T, D), (D, 1), (block * BQ, 0), (BQ, D), (1, 0))
    tl.store(at_out, (acc / total[:, None]).to(out.type.element_ty), boundary_check=(0,))


@triton.jit
def grouped_gemm(a_ptrs, b_ptrs, c_ptrs, sizes, groups, PROGRAMS: tl.constexpr, B: tl.constexpr):
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m, n, k = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        across = tl.cdiv(n, B)
        tiles = tl.cdiv(m, B) * across
        while tile >= last and tile < last + tiles:
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            rows = (tile - last) // across * B + tl.arange(0, B)
            columns = (tile - last) % across * B + tl.arange(0, B)
            acc = tl.zeros((B, B), tl.float32)
            for start in range(tl.cdiv(k, B)):
                inner = start * B + tl.arange(0, B)
                tl.multiple_of(a, [16, 16])
                left = tl.load(
                    a + rows[:, None] * k + inner[None, :], (rows[:, None] < m) & (inner[None, :] < k), other=0.0
                )
                right = tl.load(
                    b + inner[:, None] * n + columns[None, :], (inner[:, None] < k) & (columns[None, :] < n), other=0.0
                )
                acc += tl.dot(left, right)
            tl.store(
                c + rows[:, None] * n + columns[None, :], acc.to(tl.float16),
                (rows[:, None] < m) & (columns[None, :] < n),
            )  # fmt: skip
            tile += PROGRAMS
        last += tiles


@triton.jit
def descriptors(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    target.store(at, source.load(at) * 2 + 1)


@triton.jit
def host_descriptors(source, target, BM: tl.constexpr, BN: tl.constexpr):
    at = [tl.program_id(0) * BM, tl.program_id(1) * BN]
    target.store(at, source.load(at) * 2 + 1)


@triton.jit
def total_of(a, b):
    return a + b


@triton.jit
def larger_of(value, place, other, at):
    later = other > value
    return tl.where(later, other, value), tl.where(later, at, place)


@triton.jit
def scans(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    value, place = tl.associative_scan((a, i), 0, larger_of)
    sums = tl.associative_scan(a, 0, total_of, reverse=True) + tl.cumsum(a) * 2 + tl.reduce(a, 0, total_of)
    best, at = tl.max(a, 0, return_indices=True)
    tl.store(out + i, sums + value * 3 + place + best * 5 + at + tl.argmin(a, 0) + tl.xor_sum(a, 0))
    tl.store(out + B + i, tl.sort(a, descending=True) + tl.flip(a) + tl.gather(a, (i * 5) % B, 0))
    low, high = tl.split(tl.reshape(tl.interleave(a, -a), (B, 2)))
    tl.store(out + 2 * B + i, low * 7 + high + tl.histogram(i % 4, B))


@triton.jit
def functions(x, out, n, eps, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, i < n, other=1.0)
    z = tl.erf(a) + tl.floor(a) - tl.ceil(a * 0.5) + tl.sigmoid(a) + tl.fma(a, a, eps) + tl.clamp(a, -0.5, 0.5)
    z += tl.abs(a) + tl.exp(-tl.abs(a)) + tl.log(tl.abs(a) + eps) + tl.rsqrt(tl.abs(a) + 1) + tl.fdiv(a, a * a + 1)
    z += tl.cos(a) * tl.sin(a) + tl.sqrt(tl.abs(a)) + tl.exp2(a) + tl.log2(tl.abs(a) + 2)
    tl.store(out + i, z, i < n)


@triton.jit
def library(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    z = libdevice.tanh(a) + libdevice.log1p(tl.abs(a)) + libdevice.pow(tl.abs(a), 1.5) + libdevice.atan2(a, a + 2)
    tl.store(out + i, z + libdevice.round(a) + libdevice.expm1(a) + tl.where(libdevice.isnan(a), 1.0, 0.0))


@triton.jit
def random(out, seed, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.rand(seed, i), mask=i < n)
    tl.store(out + n + i, tl.randn(seed, i), mask=i < n)
    tl.store(out + 2 * n + i, (tl.randint(seed, i) >> 8).to(tl.float32), mask=i < n)
    a, b, c, d = tl.rand4x(seed, i)
    tl.store(out + 3 * n + i, a + b * 2 + c * 3 + d * 4, mask=i < n)


@triton.jit
def shapes(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    cube = tl.reshape(a, (2, B // 8, 4))
    turned = tl.permute(cube, (2, 0, 1)) + tl.trans(cube, (2, 0, 1))
    both = tl.cat(a, a)
    first, _ = tl.split(tl.permute(tl.reshape(both, (2, B)), (1, 0)))
    wide = tl.broadcast_to(tl.expand_dims(tl.sum(cube, 2), 2), (2, B // 8, 4))
    tl.store(out + i, tl.ravel(turned) + first + tl.ravel(wide) + tl.reshape(tl.zeros_like(cube), (B,)))


@triton.jit
def integers(x, out, n, m, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    big = (a.to(tl.int64) << 33) + n
    u = a.to(tl.uint32, bitcast=True)
    z = a // n + a % n + (-a) // n + n // (0 - m) + n % (0 - m) + (a << SHIFT) + (a >> 1) + (a ^ 5) + (~a & n)
    z += (big >> 31).to(tl.int32) + (u >> 4).to(tl.int32) + (u // 7).to(tl.int32) + tl.umulhi(u, u).to(tl.int32)
    z += (
        tl.where((a > n) and (m > 0) if False else (a > n), m, n) + (a == n).to(tl.int32) + min(n, m) + tl.maximum(a, n)
    )
    z += (n * 1073741824).to(tl.int32) + tl.cdiv(n, 4) + (n > m)
    tl.store(out + i, z)


@triton.jit
def atomics(x, found, B: tl.constexpr):
    i = tl.arange(0, B)
    old = tl.atomic_add(x + i % 4, i)
    old += tl.atomic_max(x + i, 3 * i) + tl.atomic_min(x + i, 20) + tl.atomic_xor(x + (i ^ 1), 9)
    old += tl.atomic_and(x + i, 63) + tl.atomic_or(x + i, 64) + tl.atomic_xchg(x + B - 1 - i, i)
    old += tl.atomic_cas(x + i, B - 1 - i, 7 * i)
    tl.store(found + i, old)


@triton.jit
def count(total, n):
    tl.atomic_add(total, n)


@triton.jit
def booleans(x, out, n, B: tl.constexpr):
    """Count six conditions on blocks, with Python's operators, which Triton takes element by element."""
    i = tl.arange(0, B)
    a = tl.load(x + i)
    assert a < 1000, "more than a block's truth"
    big, odd = a > 3, a % 2 == 1
    found = tl.where(not odd, 1, 0) + tl.where(not a, 2, 0)
    found += tl.where(big and odd, 4, 0) + tl.where(big or odd or a == 0, 8, 0)
    found += tl.where(0 < a < 6, 16, 0) + (32 if n > 2 and not n > 5 else 0)
    tl.store(out + i, found)


@triton.jit
def signs(x, y, bit, out, B: tl.constexpr):
    """One bit wraps, a signed number keeps its sign when it is shifted, and bools are summed without sign."""
    i = tl.arange(0, B)
    a, b, one = tl.load(x + i), tl.load(y + i), tl.load(bit + i)
    tl.store(out + i, (a >> b).to(tl.int32))
    tl.store(out + B + i, (one + one).to(tl.int32) + 2 * (one - ~one).to(tl.int32) + 4 * (-one).to(tl.int32))
    tl.store(out + 2 * B + i, tl.sum(one, 0) - 100 > 0)


@triton.jit
def pair_of(pair, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(pair.source + i) * pair.factor)


@triton.jit
def assembly(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tl.load(x + i)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + i, y)


@triton.jit
def helper_with_assembly(x):
    return tl.extra.cuda.globaltimer() + x


@triton.jit
def nested_assembly(out):
    tl.store(out, helper_with_assembly(1))


@triton.jit
def tile_to_scalar(out, B: tl.constexpr):
    tl.store(out, tl.arange(0, B))


@triton.jit
def failing(x, out, n):
    tl.static_assert(n > 0)
    tl.store(out + tl.arange(0, 4), tl.load(x))
    tl.store(out + 1_000_000_000, 1)


@triton.jit
def eight_bits(x, out, B: tl.constexpr, ON_ROCM: tl.constexpr):
    kind = tl.float8e4b8 if ON_ROCM else tl.float8e4nv
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i).to(kind).to(tl.float32))


@triton.jit
def to_integers(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(out + i, libdevice.ilogb(a))
    tl.store(out + B + i, libdevice.float2int_rn(a))
    tl.store(out + 2 * B + i, libdevice.float2uint_rd(a))
    tl.store(out + 3 * B + i, libdevice.llround(a))
    tl.store(out + 4 * B + i, libdevice.float2ll_ru(a))


@triton.jit
def exponents(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(out + i, libdevice.logb(a))
    tl.store(out + B + i, libdevice.ldexp(a, i - 2))
    tl.store(out + 2 * B + i, libdevice.sinpi(a))
    tl.store(out + 3 * B + i, libdevice.int2float_rn(i))


@triton.jit
def converted(a, kind: tl.constexpr):
    tl.static_assert(isinstance(kind, tl.constexpr))
    if kind.value == tl.float16:
        return a.to(kind.value) + 1
    return a.to(kind)


@triton.jit
def constants(x, out, B: tl.constexpr, kind: tl.constexpr, how: tl.constexpr):
    wanted: tl.constexpr = kind.value
    i = tl.arange(0, B.value)
    a = converted(tl.load(x + i), kind)
    tl.static_assert(a.dtype == wanted and not isinstance(a, tl.constexpr))
    if how.value == "twice" and wanted.is_floating():
        a *= 2
    tl.store(out + i, a)


@triton.jit
def i0(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, libdevice.cyl_bessel_i0(tl.load(x + i)))


@triton.jit
def inverses(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, i < n, other=0.5)
    tl.store(out + i, libdevice.erfinv(a), i < n)
    tl.store(out + n + i, libdevice.erfcinv(a), i < n)
    tl.store(out + 2 * n + i, libdevice.normcdfinv(a), i < n)
    tl.store(out + 3 * n + i, libdevice.normcdf(a), i < n)
    tl.store(out + 4 * n + i, libdevice.erfcx(a), i < n)
    tl.store(out + 5 * n + i, libdevice.cyl_bessel_i1(a), i < n)


@triton.jit
def ieee_remainders(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, libdevice.remainder(tl.load(x + i, i < n), tl.load(y + i, i < n)), i < n)


@triton.jit
def rounded(x, y, z, out, B: tl.constexpr):
    """Store seven operations, each rounded towards zero, down and up."""
    i = tl.arange(0, B)
    a, b, c = tl.load(x + i), tl.load(y + i), tl.load(z + i)
    at = out + i
    tl.store(at, libdevice.add_rz(a, b))
    tl.store(at + B, libdevice.add_rd(a, b))
    tl.store(at + 2 * B, libdevice.add_ru(a, b))
    tl.store(at + 3 * B, libdevice.sub_rz(a, b))
    tl.store(at + 4 * B, libdevice.sub_rd(a, b))
    tl.store(at + 5 * B, libdevice.sub_ru(a, b))
    tl.store(at + 6 * B, libdevice.mul_rz(a, b))
    tl.store(at + 7 * B, libdevice.mul_rd(a, b))
    tl.store(at + 8 * B, libdevice.mul_ru(a, b))
    tl.store(at + 9 * B, libdevice.div_rz(a, b))
    tl.store(at + 10 * B, libdevice.div_rd(a, b))
    tl.store(at + 11 * B, libdevice.div_ru(a, b))
    tl.store(at + 12 * B, libdevice.fma_rz(a, b, c))
    tl.store(at + 13 * B, libdevice.fma_rd(a, b, c))
    tl.store(at + 14 * B, libdevice.fma_ru(a, b, c))
    tl.store(at + 15 * B, libdevice.rcp_rz(b))
    tl.store(at + 16 * B, libdevice.rcp_rd(b))
    tl.store(at + 17 * B, libdevice.rcp_ru(b))
    tl.store(at + 18 * B, libdevice.sqrt_rz(tl.abs(a)))
    tl.store(at + 19 * B, libdevice.sqrt_rd(tl.abs(a)))
    tl.store(at + 20 * B, libdevice.sqrt_ru(tl.abs(a)))


@triton.jit
def bits(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, libdevice.clz(a))
    tl.store(out + B + i, libdevice.brev(a))
    tl.store(out + 2 * B + i, libdevice.ffs(a))
    tl.store(out + 3 * B + i, libdevice.mulhi(a, b))
    tl.store(out + 4 * B + i, libdevice.hadd(a, b))
    tl.store(out + 5 * B + i, libdevice.sad(a, b, b))


@triton.jit
def words(x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, libdevice.mul24(a, b))
    tl.store(out + B + i, libdevice.byte_perm(a, b, 0x3614))
    whole = libdevice.hiloint2double(a, b)
    tl.store(out + 2 * B + i, libdevice.double2hiint(whole))
    tl.store(out + 3 * B + i, libdevice.double2loint(whole))
    tl.store(out + 4 * B + i, libdevice.float2int_rz(libdevice.int2float_rz(a)))


@triton.jit
def bessel(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, libdevice.j0(tl.load(x + i)))


@triton.jit
def ragged_sums(x, starts, out, B: tl.constexpr):
    """Sum a part of x, whose place and length are in memory; where the sum is stored is not."""
    row = tl.program_id(0)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.zeros((B,), tl.float32)
    for at in range(start, end, B):
        i = at + tl.arange(0, B)
        total += tl.load(x + i, mask=i < end, other=0.0)
    if end > start:
        tl.store(out + row * B + tl.arange(0, B), tl.sum(total, 0))


@triton.jit
def masked_copy(x, mask, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i), mask=tl.load(mask + i) > 0)


@triton.jit
def queued(counter, out, B: tl.constexpr):
    """Take a number from a counter in memory, and fill the block of that number."""
    number = tl.atomic_add(counter, 1)
    tl.device_print("number", number)
    tl.store(out + number * B + tl.arange(0, B), number + 1)


@triton.jit
def waits_for_later(flag, out):
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.atomic_xchg(flag, 1)
    while tl.atomic_cas(flag, 1, 1) == 0:
        pass
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def shifted(x, out, by, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) << by)
    tl.store(out + B + i, tl.load(x + i) >> tl.load(x + i))


@triton.jit
def drawn(out, B: tl.constexpr, ROUNDS: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.rand(7, tl.arange(0, B), ROUNDS))


@triton.jit
def words_of_philox(out, B: tl.constexpr, ROUNDS: tl.constexpr):
    i = tl.arange(0, B)
    first, _, _, _ = tl.philox(7, i, i, i, i, ROUNDS)
    tl.store(out + i, first)


@triton.jit
def falling(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.sort(tl.load(x + i), descending=True))


@triton.jit
def remainders(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i, i < n), tl.load(y + i, i < n)
    tl.store(out + i, a % b + (a // b.to(tl.int64)), i < n)


@triton.jit
def of_checked_size(x, B: tl.constexpr):
    tl.static_assert(B <= 8, "at most 8")
    return tl.load(x + tl.arange(0, B))


@triton.jit
def copied_if_small(x, out, B: tl.constexpr):
    tl.static_print("size", B)
    tl.store(out + tl.arange(0, B), of_checked_size(x, B))
