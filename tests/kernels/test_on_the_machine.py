"""What a kernel writes on the simulated machine is what the harness writes, and its times do not depend on data."""

import numpy as np
import pytest

from kernbench.kernels import attention, elementwise, gemm, llama, norm, ring_attention
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology
from kernbench.triton_emu.testing import run_kernel

rng = np.random.default_rng(3)
MACHINE = resolve_topology("preset:small")
ONE = DPPolicy(cube="replicate", pe="replicate", num_cubes=1, num_pes=1)


def f16(*shape):
    return rng.normal(size=shape).astype(np.float16)


def fused(a_ptr, b_ptr, bias_ptr, out_ptr, M, K, N, tl):
    """Views as pinned operands, an accumulator, an epilogue with operands, and a tile that is dropped early."""
    a = tl.load(a_ptr, shape=(M * K,)).reshape(M, K)
    b = tl.load(b_ptr, shape=(K * N,)).reshape(K, N)
    acc = tl.dot(a, b)
    doubled = acc * 2
    del acc
    epilogue = [("bias", bias_ptr), "gelu", ("add", tl.ref(out_ptr, (M, N)))]
    tl.wait(tl.composite("gemm", a, b, out_ptr, epilogue=epilogue, acc=doubled))
    tl.composite("math", tl.ref(out_ptr, (M, N)), tl.load(out_ptr, shape=(M, N)), out_ptr, epilogue=[("scale", 0.25)])


def gather(index_ptr, x_ptr, out_ptr, n, tl):
    """Addresses and a branch that depend on values."""
    i = tl.arange(0, 64)
    index = tl.load(index_ptr + i, mask=i < n)
    x = tl.load(x_ptr + index, mask=index >= 0, other=-1.0)
    if tl.max(x) > 0:
        tl.store(out_ptr + (n - 1 - i), x * 2, mask=i < n)


CASES = {
    "gemm": (gemm.gemm, [f16(33, 70), f16(70, 40), f16(33, 40), 33, 70, 40, "load_ref", ["relu"]]),
    "tiled_gemm": (gemm.tiled_gemm, [f16(40, 70), f16(70, 33), f16(40, 33), 40, 33, 70, 32, 32, 64, "silu"]),
    "fused": (fused, [f16(33, 70), f16(70, 40), f16(40), f16(33, 40), 33, 70, 40]),
    "gather": (gather, [rng.integers(-1, 300, 64).astype(np.int32), f16(300), f16(64), 50]),
    "swiglu": (elementwise.swiglu, [f16(1000), f16(1000), f16(1000), 1000, 300]),
    "add": (elementwise.add, [f16(1000), f16(1000), f16(1000), 1000, 128]),
    "rmsnorm": (llama.rmsnorm, [f16(11, 64), f16(64), f16(11, 64), 11, 64, 1e-6]),
    "layernorm": (norm.layernorm, [f16(11, 64), f16(64), f16(64), f16(11, 64), 11, 64]),
    "attention": (
        attention.attention,
        [f16(2, 30, 8, 64), *f16(2, 2, 300, 64), f16(2, 30, 8, 64), 2, 8, 30, 300, 64, True],
    ),
    "decode": (
        ring_attention.attend,
        [f16(1, 8, 64), *f16(2, 1, 700, 64), np.zeros((8, 66), np.float32), 1, 8, 1, 700, 64],
    ),
    "softmax": (norm.softmax, [f16(11, 64), f16(11, 64), 11, 64]),
}


def launch(kernel, args, data):
    """Run on one PE of the machine; return the arrays afterwards (with data) and the time taken."""
    engine = GraphEngine(MACHINE, enable_data=data)
    with RuntimeContext(engine=engine) as torch:
        passed = []
        for x in args:
            if isinstance(x, np.ndarray):
                tensor = torch.empty(*x.shape, dtype=getattr(torch, x.dtype.name), device="ahbm:0", dp=ONE)
                tensor.copy_(torch.from_numpy(x.copy()))
                x = tensor
            passed.append(x)
        torch.ahbm.synchronize()
        start = engine.now_ns
        torch.launch("kernel", kernel, *passed)
        torch.ahbm.synchronize()
        taken = engine.now_ns - start
        arrays = [t.numpy() for t, x in zip(passed, args, strict=True) if data and isinstance(x, np.ndarray)]
    return arrays, taken


@pytest.mark.parametrize("name", CASES)
def test_the_machine_computes_what_the_harness_computes(name):
    kernel, args = CASES[name]
    expected = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
    run_kernel(kernel, *expected)
    arrays, _ = launch(kernel, args, data=True)
    for got, want in zip(arrays, (x for x in expected if isinstance(x, np.ndarray)), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not np.array_equal(arrays[-1], [x for x in args if isinstance(x, np.ndarray)][-1])


@pytest.mark.parametrize("name", [name for name in CASES if name != "gather"])
def test_times_do_not_depend_on_data(name):
    kernel, args = CASES[name]
    assert launch(kernel, args, data=True)[1] == launch(kernel, args, data=False)[1]
