"""The namespace, from opening to closing."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.analysis.result import Result
from kernbench.errors import KernelError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.runtime_api.tensor import Tensor, TensorHandle, TensorShard, deploy_tensor
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.engine import GraphEngine
from tests.runtime_api.machines import small


def nop(x, *, tl):
    pass


def bad(x, *, tl):
    raise ValueError("no such luck")


def test_the_result_survives():
    with session(small()) as torch:
        torch.launch("nop", nop, torch.zeros(4, device="ahbm"))
    assert isinstance(torch.result, Result)
    assert torch.result is torch.result
    assert [x.name for x in torch.result.launches] == ["nop"]
    assert torch.result.records.complete
    assert torch.result.latency_ns == torch.engine.now_ns > 0
    assert "closed" in repr(torch)


def test_the_end_waits_for_what_was_asked():
    seen = []
    with session(small()) as torch:
        torch.launch("note", lambda x, *, tl: seen.append(1), torch.zeros(4, device="ahbm"))
        assert not seen
    assert seen == [1]


def test_the_result_so_far(torch):
    assert torch.result.launches == ()
    torch.launch("nop", nop, torch.zeros(4, device="ahbm"))
    torch.ahbm.synchronize()
    assert len(torch.result.launches) == 1


def test_an_exception_leaves_a_partial_result():
    torch = session(small())
    with pytest.raises(ZeroDivisionError), torch:  # noqa: PT012 : the block is what is tested
        x = torch.zeros(4, device="ahbm")
        torch.launch("nop", nop, x)
        torch.ahbm.synchronize()
        torch.launch("nop", nop, x)
        1 / 0  # noqa: B018
    assert torch.result.launches[0].end_ps > torch.result.launches[0].start_ps
    assert not torch.result.records.complete
    assert torch.accelerator.memory_allocated() == 0
    with pytest.raises(RuntimeError, match="session is closed"):
        x.numpy()


def test_an_exception_with_nothing_pending_is_incomplete_too():
    torch = session(small())
    with pytest.raises(ZeroDivisionError), torch:
        1 / 0  # noqa: B018
    assert not torch.result.records.complete


def test_a_kernel_that_fails_at_the_end_is_raised_there():
    torch = session(small())
    with pytest.raises(KernelError, match="no such luck"), torch:
        torch.launch("bad", bad, torch.zeros(4, device="ahbm"))
    assert not torch.result.records.complete
    assert torch.accelerator.memory_allocated() == 0


def test_a_failure_that_was_caught_is_still_in_the_result():
    with session(small()) as torch:
        x = torch.zeros(4, device="ahbm")
        torch.launch("bad", bad, x)
        with pytest.raises(KernelError):
            torch.ahbm.synchronize()
        del x
    assert not torch.result.records.complete


def test_sessions_do_not_share_anything():
    with session(small()) as one, session(small()) as other:
        one.zeros(4, device="ahbm")
        one.ahbm.set_device(1)
        assert other.ahbm.current_device() == 0
        assert other.accelerator.memory_allocated() == 0


def test_context_as_existing_programs_open_it():
    machine = small()
    engine = GraphEngine(machine, enable_data=True)
    with RuntimeContext(
        engine=engine, target_device=DeviceSelector(1), correlation_id="mine", spec=machine.spec
    ) as torch:
        assert torch.ahbm.current_device() == 1
        assert torch.spec["sip"]["cube_mesh"]["w"] == 2
        x = deploy_tensor(torch, (4, 4), "f16", dp=DPPolicy(pe="row_wise", num_cubes=1), name="x")
        assert isinstance(x, Tensor)
        assert isinstance(x.shards[0], TensorShard)
        assert isinstance(x._handle, TensorHandle)
        assert (x.device.index, len(x.shards)) == (1, 4)
    assert torch.result.name == "mine"


def test_device_of_a_session():
    with session(small(), device="sip:1") as torch:
        assert torch.zeros(2, device="ahbm").device.index == 1
    with pytest.raises(ValueError, match="sip:0 to sip:1"):
        session(small(), device="sip:2")


@pytest.mark.parametrize("call", [session, RuntimeContext, GraphEngine])
def test_mode_is_an_unknown_argument(call):
    with pytest.raises(TypeError, match="unexpected keyword argument 'mode'"):
        call(small(), mode="exact")


def test_log_level_reaches_the_engine():
    def rows(log):
        with session(small(), log=log) as torch:
            torch.zeros(4, device="ahbm").fill_(1)
        return len(torch.result.records)

    assert rows("off") == 0
    assert rows("operation") > 0


def test_unknown_names_get_a_hint(torch):
    with pytest.raises(AttributeError, match="has no 'zeroes'; did you mean zeros"):
        torch.zeroes  # noqa: B018
    with pytest.raises(AttributeError, match="known: "):
        torch.qqqqqq  # noqa: B018
    assert not hasattr(torch, "qqqqqq")


def test_without_data_values_are_unknown():
    with session(small()) as torch:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            values = torch.ones(2, dtype=dtype, device="ahbm").numpy()
            assert values.dtype == dtype.numpy
            assert np.isnan(values.astype(np.float32)).all()
        assert torch.ones(2, dtype=torch.int32, device="ahbm").tolist() == [0, 0]
        assert torch.ones(2).tolist() == [1, 1]
