from __future__ import annotations

import warnings

import greenlet
import pytest

from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


def test_devices(torch):
    assert torch.ahbm.is_available()
    assert torch.accelerator.is_available()
    assert torch.ahbm.device_count() == torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator() == torch.device("ahbm")


def test_current_device(torch):
    current = torch.ahbm.current_device, torch.accelerator.current_device_index
    assert [f() for f in current] == [0, 0]
    torch.ahbm.set_device(1)
    assert [f() for f in current] == [1, 1]
    torch.accelerator.set_device_index("ahbm:0")
    assert [f() for f in current] == [0, 0]
    with torch.ahbm.device("ahbm:1"):
        assert torch.zeros(2, device="ahbm").device.index == 1
        with torch.accelerator.device_index(0):
            assert torch.ahbm.current_device() == 0
        assert torch.ahbm.current_device() == 1
    assert torch.ahbm.current_device() == 0


def test_the_old_device_comes_back_after_an_exception(torch):
    with pytest.raises(ZeroDivisionError), torch.ahbm.device(1):
        1 / 0  # noqa: B018
    assert torch.ahbm.current_device() == 0


def test_every_rank_has_its_own(torch):
    def rank(index):
        torch.ahbm.set_device(index)
        greenlet.getcurrent().parent.switch()
        return torch.ahbm.current_device()

    ranks = [greenlet.greenlet(rank) for _ in range(2)]
    for i, r in enumerate(ranks):
        r.switch(i)
    assert [r.switch() for r in ranks] == [0, 1]
    torch.ahbm.set_device(1)
    assert greenlet.greenlet(torch.ahbm.current_device).switch() == 0


@pytest.mark.parametrize("device", [2, "ahbm:7", "cpu", "gpu"])
def test_refusals(torch, device):
    with pytest.raises(RuntimeError, match=r"ahbm:0 to ahbm:1|expected an ahbm device|expected one of"):
        torch.ahbm.set_device(device)
    assert torch.ahbm.current_device() == 0


def warned(program, sips=2):
    with warnings.catch_warnings(record=True) as caught, session(small(sips)) as torch:
        warnings.simplefilter("always")
        program(torch)
    return [w for w in caught if "no device was chosen" in str(w.message)]


def test_debug_warns_of_a_device_that_nobody_chose(monkeypatch):
    def allocate(torch):
        torch.zeros(4, device="ahbm")
        torch.zeros(4).to("ahbm")

    def chosen(torch):
        torch.ahbm.set_device(0)
        allocate(torch)

    def named(torch):
        torch.zeros(4, device="ahbm:0")
        torch.zeros(4)

    assert not warned(allocate)
    monkeypatch.setenv("KERNBENCH_DEBUG", "1")
    (warning,) = warned(allocate)
    assert "torch.ahbm.set_device" in str(warning.message)
    assert warning.filename == __file__
    assert not warned(chosen)
    assert not warned(named)
    assert not warned(allocate, sips=1)
