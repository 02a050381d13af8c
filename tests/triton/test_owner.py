"""`placement="owner"`: programs run on the PE that holds what they store, whatever comes before the store."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import KernelError, OutOfBoundsError

FOUR = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)
ONE = kb.DPPolicy(num_cubes=1, num_pes=1)


def launched(machine, placement, launch):
    """Return a session after a launch on tensors that four PEs hold, and the output's values."""
    with kb.session(machine, data=True) as torch:
        with kb.triton.on(torch, placement=placement):
            out = launch(torch)
        return torch, out.numpy()


def stores(session):
    """Return (elements, PE) of each store of f32."""
    records = session.result.records
    rows = records.of_kind("store")
    return sorted((n // 4, records.commands[i].pe) for n, i in zip(rows.nbytes.tolist(), rows.command, strict=True))


@pytest.mark.parametrize("given", [False, True], ids=["device", "queue"])
def test_masks_that_are_loaded(given, kernels, machine):
    def launch(torch):
        wanted = np.arange(16) <= np.arange(16)[::-1, None]  # program p stores 16 - p values
        x, out = torch.ones(256, dp=FOUR), torch.zeros(256, dp=FOUR)
        mask = torch.tensor(wanted.astype(np.float32).reshape(-1), dp=FOUR)
        if given:  # the mask is made by a launch that is queued before
            source, mask = mask, torch.zeros(256, dp=FOUR)
            kernels.add[(4,)](source, torch.zeros(256, dp=FOUR), mask, 256, BLOCK=64)
        kernels.masked_copy[(16,)](x, mask, out, B=16)
        return out

    session, out = launched(machine, "owner", launch)
    assert out.reshape(16, 16).sum(1).tolist() == list(range(16, 0, -1))
    assert [row for row in stores(session) if row[0] <= 16] == [(16 - p, p // 4) for p in reversed(range(16))]


@pytest.mark.parametrize("wide", [1, 64])
def test_control_flow_that_depends_on_values(wide, kernels, machine):
    lengths = [3, 0, 40, 7, 1, 25, 0, 9]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    values = np.arange(starts[-1], dtype=np.float32)

    def launch(torch):
        x, at = torch.tensor(values, dp=ONE), torch.tensor(starts, dp=ONE)
        out = torch.zeros(8 * 64, dp=FOUR)
        kernels.ragged_sums[(8,)](x, at, out, B=64)
        return out

    session, out = launched(machine, "owner", launch)
    expected = [values[a:b].sum() for a, b in pairwise(starts)]
    assert out.reshape(8, 64)[:, :wide].tolist() == [[e] * wide for e in expected]
    assert [pe for _, pe in stores(session)] == [0, 1, 1, 2, 2, 3]
    other, same = launched(machine, "round-robin", launch)
    assert (out == same).all()
    assert session.result.latency_ns < other.result.latency_ns


def test_atomic_operations_before_the_store(kernels, machine, capsys):
    def launch(torch):
        out = torch.zeros(8 * 16, dp=FOUR)
        kernels.queued[(8,)](torch.zeros(1, dtype=torch.int32, dp=ONE), out, B=16)
        return out

    session, out = launched(machine, "owner", launch)
    assert out.reshape(8, 16).tolist() == [[i + 1.0] * 16 for i in range(8)]
    assert sorted(pe for n, pe in stores(session) if n == 16) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert capsys.readouterr().out.count("number") == 8


def test_host_tensors(kernels, machine):
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    mask = (np.arange(64) % 3 == 0).astype(np.int32)
    with kb.session(machine, data=True) as torch, kb.triton.on(torch, placement="owner", dp=FOUR):
        kernels.masked_copy[(4,)](x, mask, out, B=16)
    assert out.tolist() == mask.tolist()
    assert {pe for _, pe in stores(torch)} == {0, 1, 2, 3}


def test_without_values_a_store_that_depends_on_them_is_refused(kernels, machine):
    x = np.zeros(64, np.float32)
    said = r'placement "owner" of masked_copy.*times only.*use "round-robin"'
    with kb.session(machine) as torch, kb.triton.on(torch, placement="owner"):
        kernels.add[(4,)](x, x, x, 64, BLOCK=16)
        with pytest.raises(KernelError, match=said):
            kernels.masked_copy[(4,)](x, x, x, B=16)


def test_a_program_that_waits_for_a_later_one_is_refused(kernels, machine):
    flag, out = np.zeros(1, np.int32), np.zeros(4, np.int32)
    with (
        kb.session(machine, data=True) as torch,
        kb.triton.on(torch, placement="owner"),
        pytest.raises(KernelError, match=r"of waits_for_later.*one waits, or has too many commands"),
    ):
        kernels.waits_for_later[(4,)](flag, out)


def test_what_is_wrong_with_the_kernel_is_told_by_the_launch(kernels, machine):
    x = np.ones(4, np.float32)
    for n, said, kind in ((0, "static_assert failed", KernelError), (1, "is not mapped", OutOfBoundsError)):
        with (
            kb.session(machine, data=True) as torch,
            kb.triton.on(torch, placement="owner"),
            pytest.raises(kind, match=rf"kernels.py:\d+: kernel failing.*{said}"),
        ):
            kernels.failing[(1,)](x, x, n)
