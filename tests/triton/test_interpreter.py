"""The same launches in Triton's own interpreter, where torch and triton are installed: values, to the bit or an ulp."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from math import inf

import pytest

import kernbench as kb
from kernbench.triton._language import StaticAssertError
from kernbench.triton._session import on
from tests.triton.conftest import KERNELS

os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import triton
except ImportError:
    if os.environ.get("KERNBENCH_TORCH") == "required":
        raise
    pytest.skip("torch and triton are not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def own():
    spec = spec_from_file_location("interpreted_kernels", KERNELS)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values(*shape, dtype=torch.float32, seed=0):
    made = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=made).to(dtype)
    return torch.randint(-40, 40, shape, generator=made, dtype=torch.int64).to(dtype)


def launches(k):
    """Return kernel, grid, arguments and constants of each launch, with the number of ulps that are allowed."""
    f16, i32 = torch.float16, torch.int32
    x, w = values(9, 50), values(50, seed=4)
    yield k.add, (4,), (values(100), values(100, seed=1), torch.zeros(100), 100), {"BLOCK": 32}, 0
    for kind in (f16, i32, torch.int8, torch.int16, torch.uint8):
        out = torch.zeros(100, dtype=kind)
        yield k.add, (4,), (values(100, dtype=kind), values(100, dtype=kind, seed=1), out, 100), {"BLOCK": 32}, 0
    yield k.softmax, (3,), (x, torch.zeros_like(x), 9, 50, 50), {"BLOCK": 64}, 2
    a, b = values(45, 50, dtype=f16), values(50, 37, dtype=f16, seed=1)
    given = (a, b, torch.zeros(45, 37, dtype=f16), 45, 37, 50, 50, 1, 37, 1, 37, 1)
    yield k.matmul.fn, (6,), given, {"BM": 16, "BN": 32, "BK": 16, "ACTIVATION": "leaky"}, 1
    mean, rstd = torch.zeros(9), torch.zeros(9)
    yield k.layer_norm, (9,), (x, torch.zeros_like(x), w, w, mean, rstd, 50, 50, 1e-5), {"BLOCK": 64}, 4
    yield k.descriptors, (4, 3), (values(13, 20), torch.zeros(13, 20), 13, 20), {"BM": 4, "BN": 8}, 0
    yield k.scans, (1,), (values(16, dtype=i32), torch.zeros(3, 16, dtype=i32)), {"B": 16}, 0
    yield k.functions, (1,), (values(29), torch.zeros(29), 29, 1e-3), {"B": 32}, 4
    yield k.random, (2,), (torch.zeros(400), 7, 100), {"B": 64}, 1
    yield k.shapes, (1,), (values(32, dtype=i32), torch.zeros(32, dtype=i32)), {"B": 32}, 0
    yield k.integers, (1,), (values(32, dtype=i32), torch.zeros(32, dtype=i32), 5, 3), {"B": 32}, 0
    yield k.atomics, (1,), (values(16, dtype=i32), torch.zeros(16, dtype=i32)), {"B": 16}, 0


NAMES = [
    "add", "add f16", "add i32", "add i8", "add i16", "add u8", "softmax", "matmul", "layer_norm", "descriptors",
    "scans", "functions", "random", "shapes", "integers", "atomics",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_values_are_those_of_the_interpreter(number, own, machine):
    kernel, grid, args, constants, ulps = list(launches(own))[number]
    ours = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
    kernel[grid](*args, **constants)
    with kb.session(machine, data=True) as session, on(session):
        kernel[grid](*ours, **constants)
    for a, b in zip(ours, args, strict=True):
        if isinstance(a, torch.Tensor):
            unit = torch.finfo(a.dtype).eps if a.dtype.is_floating_point else 0
            limit = ulps * unit * b.abs().max().item()
            assert (a.double() - b.double()).abs().max().item() <= limit


def test_nothing_is_left_behind(own, machine):
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    owners = (Autotuner, InterpretedFunction, JITFunction)
    before = [owner.run for owner in owners]
    session = kb.session(machine)
    with session, suppress(ZeroDivisionError), on(session):
        assert [owner.run for owner in owners] != before
        raise ZeroDivisionError
    assert [owner.run for owner in owners] == before


def test_autotune_of_the_installed_triton(own, machine):
    a, b = values(45, 50, dtype=torch.float16), values(50, 37, dtype=torch.float16, seed=1)
    c = torch.zeros(45, 37, dtype=torch.float16)

    def grid(meta):
        return (triton.cdiv(45, meta["BM"]) * triton.cdiv(37, meta["BN"]),)

    with kb.session(machine, data=True) as session, on(session):
        own.matmul[grid](a, b, c, 45, 37, 50, 50, 1, 37, 1, 37, 1)
    assert (c.float() - a.float() @ b.float()).abs().max() < 0.02


@pytest.mark.parametrize("on_device", [False, True])
def test_a_failed_static_assert_is_an_error_of_the_installed_triton(on_device, own, machine):
    from triton.compiler.errors import CompileTimeAssertionFailure

    with kb.session(machine, data=True) as session, on(session):
        x = session.ones(4) if on_device else torch.ones(4)
        with pytest.raises(CompileTimeAssertionFailure) as found:
            own.softmax[(1,)](x, x, 1, 4, 4, BLOCK=4)
    assert isinstance(found.value, StaticAssertError)
    said = str(found.value)
    assert re.search(r"^\S+kernels\.py:\d+: kernel softmax, .*static_assert failed: BLOCK is at least 8$", said)
    assert found.value.message == found.value.error_message == said
    copy = pickle.loads(pickle.dumps(found.value))
    assert (type(copy), str(copy)) == (type(found.value), said)


def test_a_tuner_of_a_package_goes_on_after_a_failed_static_assert(own, machine):
    # Such tuners have a `run` of their own around Triton's `_bench`, which counts what cannot be compiled as infinite.
    configs = [triton.Config({"BLOCK": n}) for n in (4, 8)]
    tuner = triton.runtime.Autotuner(own.softmax, own.softmax.arg_names, configs, [], None, None)
    x, out = values(4, 7), torch.zeros(4, 7)
    with kb.session(machine, data=True) as session, on(session):
        tuner.nargs = dict(zip(tuner.arg_names, (x, out, 4, 7, 7), strict=False))
        times = [tuner._bench(x, out, 4, 7, 7, config=config, grid=(4,))[0] for config in configs]
    assert times[0] == inf > times[1] > 0
    assert torch.allclose(out, x.softmax(1))


def test_strided_tensors_and_shared_storages(own, machine):
    whole = torch.arange(120.0)
    x, y, out = whole[10:50], whole[60:100], torch.zeros(40)
    with kb.session(machine, data=True) as session, on(session):
        own.add[(3,)](x, y, out, 40, BLOCK=16)
    assert torch.equal(out, x + y)
    assert torch.equal(whole, torch.arange(120.0))


def test_addresses_of_torch_tensors_in_memory(own, machine):
    sizes = [(20, 18, 30), (16, 40, 16)]
    groups = [
        (values(m, k, dtype=torch.float16), values(k, n, dtype=torch.float16), torch.zeros(m, n, dtype=torch.float16))
        for m, n, k in sizes
    ]
    pointers = [torch.tensor([group[i].data_ptr() for group in groups]) for i in range(3)]
    before = [p.clone() for p in pointers]
    with torch._subclasses.FakeTensorMode():
        without_memory = torch.zeros(2)
    with kb.session(machine, data=True) as session, on(session):
        own.grouped_gemm[(4,)](*pointers, torch.tensor(sizes, dtype=torch.int32), 2, PROGRAMS=4, B=16)
    for a, b, c in groups:
        assert (c.float() - a.float() @ b.float()).abs().max() < 0.02
    assert all(torch.equal(p, q) for p, q in zip(pointers, before, strict=True))
    assert without_memory.shape == (2,)


def test_bf16_is_rounded_as_torch_does(own, machine):
    # The interpreter adds the bits of bf16, and has no block pointers.
    x, y, out = (values(100, dtype=torch.bfloat16, seed=s) for s in range(3))
    q, k, v = (values(2, 50, 16, dtype=torch.bfloat16, seed=s) for s in range(3))
    found = torch.zeros_like(q)
    with kb.session(machine, data=True) as session, on(session):
        own.add[(4,)](x, y, out, 100, BLOCK=32)
        own.attention[(4, 2)](q, k, v, found, 50, 0.25, D=16, BQ=16, BK=32, CAUSAL=True)
    assert torch.equal(out, x + y)
    wide = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, scale=0.25)
    assert (found.float() - wide).abs().max() < 0.03


def test_the_installed_triton_and_torch_are_asked_about_the_simulated_device(own):
    x, y, out = values(40), values(40, seed=1), torch.zeros(40)
    with pytest.raises(RuntimeError, match="active drivers"):
        triton.runtime.driver.active.get_current_target()
    with kb.session("preset:small", data=True) as session, on(session):
        n_pes = session.engine.machine.config.n_pes
        device = triton.runtime.driver.active.utils.get_device_properties(0)
        assert device["multiprocessor_count"] == torch.cuda.get_device_properties("cuda").multi_processor_count == n_pes
        with torch.cuda.device(x.device.index):  # as launchers choose the device of their tensors
            own.add[(3,)](x, y, out, 40, BLOCK=16)
        assert torch.equal(out, x + y)
        ms, least, most = triton.testing.do_bench(
            lambda: own.add[(3,)](x, y, out, 40, BLOCK=16), quantiles=[0.5, 0.2, 0.8]
        )
        assert triton.testing.do_bench(lambda: None) == 0
    assert 0 < ms == least == most < 1
    with pytest.raises(RuntimeError, match="active drivers"):
        triton.runtime.driver.active.get_current_target()


@pytest.mark.parametrize("interpret", ["0", "1"])
def test_triton_may_be_imported_inside_of_the_block(interpret):
    program = f"""
import sys
import numpy as np
import kernbench as kb

x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
assert "triton" not in sys.modules
with kb.session("preset:small", data=True) as session, kb.triton.on(session):
    sys.path.append({str(KERNELS.parent)!r})
    import kernels
    kernels.add[(1,)](x, x, out, 8, BLOCK=8)
assert (out == 2).all()
assert [launch.name for launch in session.result.launches] == ["add"]
"""
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, env=environment)
