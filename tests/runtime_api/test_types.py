from __future__ import annotations

import pytest

from kernbench.runtime_api.types import Device, DeviceSelector, resolve_device


def test_device_takes_what_torch_takes():
    assert Device("ahbm:1") == Device("ahbm", 1) == Device(1) == Device(Device(1))
    assert (Device("ahbm").type, Device("ahbm").index) == ("ahbm", None)
    assert Device("ahbm") != Device("ahbm:0")
    assert {Device(0): "x"}[Device("ahbm:0")] == "x"
    assert repr(Device("cpu")) == "device(type='cpu')"


@pytest.mark.parametrize("text", ["cuda", "ahbm:", "ahbm:x", "ahbm:-1", "", "sip:0", "cpu:0:1"])
def test_device_refuses_what_is_none(text):
    with pytest.raises(RuntimeError, match="expected one of: ahbm, ahbm:<index>, cpu"):
        Device(text)


def test_device_refuses_two_indices_and_other_types():
    with pytest.raises(RuntimeError, match="is not a device"):
        Device("ahbm:1", 1)
    with pytest.raises(RuntimeError, match="must be >= 0"):
        Device(-1)
    with pytest.raises(TypeError, match=r"device = 1\.5"):
        Device(1.5)
    with pytest.raises(AttributeError, match="cannot assign to field"):
        Device(0).index = 1


def test_selector():
    assert resolve_device("all") == resolve_device(None) == DeviceSelector()
    assert resolve_device("sip:3").first == 3
    assert resolve_device(DeviceSelector(1), n_sips=2).first == 1
    assert [str(resolve_device(x)) for x in ("all", "sip:1")] == ["all", "sip:1"]


def test_selector_takes_the_words_of_a_run():
    assert DeviceSelector("all") == DeviceSelector() == resolve_device("all")
    assert DeviceSelector("sip:1") == DeviceSelector(1)
    assert DeviceSelector("all").first == 0


@pytest.mark.parametrize("sip", ["some", "sip:", "ahbm:1", -1, 1.0, True])
def test_a_selector_of_nothing_is_refused(sip):
    with pytest.raises(ValueError, match="selects nothing; expected all or sip:N"):
        DeviceSelector(sip)


@pytest.mark.parametrize("text", ["sip", "sip:", "sip:x", "0", "ahbm:0", "sip:-1"])
def test_selector_refuses_the_rest(text):
    with pytest.raises(ValueError, match="expected all or sip:N"):
        resolve_device(text)


def test_selector_knows_how_many_there_are():
    with pytest.raises(ValueError, match=r"2 SIPs, sip:0 to sip:1"):
        resolve_device("sip:2", n_sips=2)
