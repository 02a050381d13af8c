"""Operations of one device run in order while the host goes on; devices run side by side."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


def add_one(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) + 1)


def test_asking_takes_no_time(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    x.copy_(torch.ones(64))
    torch.launch("add", add_one, x, 64)
    torch.launch("add", add_one, x, 64)
    x.fill_(3)
    assert torch.engine.now_ns == 0
    assert not torch.ahbm.current_stream().query()
    torch.ahbm.synchronize()
    assert torch.engine.now_ns > 0
    assert torch.ahbm.current_stream().query()


def test_operations_run_in_the_order_of_the_program(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    torch.launch("add", add_one, x, 64)
    early = x.clone()
    x.copy_(torch.full((64,), 10))
    torch.launch("add", add_one, x, 64)
    middle = x.clone()
    x.zero_()
    assert [t.tolist() for t in (early, middle, x)] == [[1] * 64, [11] * 64, [0] * 64]
    starts, ends = zip(*sorted((x.start_ps, x.end_ps) for x in torch.result.launches), strict=True)
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_a_copy_takes_the_values_of_the_moment(torch):
    a = np.zeros(4, np.float32)
    x = torch.from_numpy(a).to("ahbm")
    a[:] = 9
    assert x.tolist() == [0, 0, 0, 0]


def test_a_read_costs_what_the_route_costs():
    # docs/model.md: host -> cube 0 pe 0 reads 256 B in 277.06 ns, 4 KiB in 337.06 ns.
    with session("preset:default", data=True) as torch:
        for n, expected in ((64, 277.06), (1024, 337.06)):
            x = torch.zeros(n, device="ahbm")
            torch.ahbm.synchronize()
            before = torch.engine.now_ns
            x.numpy()
            assert torch.engine.now_ns - before == pytest.approx(expected, abs=1e-6)


def test_two_copies_in_one_stream_take_twice_as_long_as_one():
    def took(n):
        with session(small()) as torch:
            x = torch.empty(1024, device="ahbm")
            torch.ahbm.synchronize()
            before = torch.engine.now_ns
            for _ in range(n):
                x.copy_(torch.zeros(1024))
            torch.ahbm.synchronize()
            return torch.engine.now_ns - before

    assert took(3) == pytest.approx(3 * took(1))


def test_two_devices_work_side_by_side():
    def took(devices):
        with session(small()) as torch:
            for device in devices:
                torch.empty(64, device=device, name="x").fill_(1)
            for sip in (0, 1):
                torch.ahbm.synchronize(sip)
            return torch.engine.now_ns

    one = took(["ahbm:0"])
    assert took(["ahbm:0", "ahbm:1"]) < 1.2 * one
    assert took(["ahbm:0", "ahbm:0"]) > 1.8 * one


def test_synchronize_waits_for_one_device_only(torch):
    x, y = torch.zeros(64, device="ahbm:0"), torch.zeros(4096, device="ahbm:1")
    x.fill_(1)
    for _ in range(5):
        y.fill_(1)
    torch.ahbm.synchronize(0)
    assert torch.ahbm.current_stream(0).query()
    assert not torch.ahbm.current_stream(1).query()


def test_events_tell_simulated_milliseconds(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    torch.ahbm.synchronize()
    start, end = torch.ahbm.Event(enable_timing=True), torch.ahbm.Event(enable_timing=True)
    start.record()
    torch.launch("add", add_one, x, 64)
    end.record(torch.ahbm.current_stream())
    assert not end.query()
    with pytest.raises(RuntimeError, match="synchronize"):
        start.elapsed_time(end)
    end.synchronize()
    assert end.query()
    (launch,) = torch.result.launches
    assert start.elapsed_time(end) == pytest.approx((launch.end_ps - launch.start_ps) / 1e9, rel=1e-9)
    assert start.elapsed_time(start) == 0


def test_events_refuse_what_they_cannot_tell(torch):
    timed, plain = torch.ahbm.Event(enable_timing=True), torch.ahbm.Event()
    with pytest.raises(RuntimeError, match="recorded"):
        timed.elapsed_time(timed)
    plain.record()
    with pytest.raises(RuntimeError, match="enable_timing=True"):
        plain.elapsed_time(timed)
    assert [repr(e) for e in (timed, plain)] == ["<Event, not recorded>", "<Event, pending>"]
    assert timed.query()
    timed.synchronize()


def test_streams_show_themselves(torch):
    torch.zeros(4, device="ahbm")
    assert repr(torch.ahbm.current_stream()) == "<Stream of ahbm:0, busy>"
    torch.ahbm.current_stream().synchronize()
    assert repr(torch.ahbm.current_stream()) == "<Stream of ahbm:0, idle>"
    assert isinstance(torch.ahbm.current_stream(1), torch.ahbm.Stream)


def test_times_are_the_same_with_and_without_data():
    def program(data):
        with session(small(), data=data) as torch:
            x = torch.from_numpy(np.ones((8, 8), np.float32)).to("ahbm", dp=DPPolicy(cube="row_wise"))
            torch.launch("add", lambda x, *, tl: add_one(x + 16 * tl.program_id(1), 16, tl=tl), x)
            y = x.T.contiguous().clone()
            y.tolist()
            y.fill_(2)
        return torch.result.records.digest()

    assert program(True) == program(False)
