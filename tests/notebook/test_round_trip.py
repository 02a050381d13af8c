"""Drag a slider, read the prediction, release it: the run that follows tells the error of the prediction."""

from __future__ import annotations

import pytest

from kernbench.notebook import explore
from tests.slow import slow_after

LONG_S = 60
PCIE = "system.pcie.latency_ns"


class Kernel:
    """The explorer, and what it sends to the page."""

    def __init__(self, view, monkeypatch):
        self.view, self.sent = view, []
        monkeypatch.setattr(view.stage.picture, "send", lambda message, _=None: self.sent.append(message))

    def ask(self, **message):
        self.view.stage.picture._handle_custom_msg(message, [])
        return self.sent[-1] if self.sent else None

    @property
    def latency_ns(self):
        return self.view.stage.picture.header["why"]["latency_ns"]


@pytest.fixture
def kernel(monkeypatch):
    view = explore("preset:small")
    view.bar.auto.value = False
    view.workload.workload.value = "study gemm"
    for name in "mkn":
        view.workload.inputs[name].control.value = "64"
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    yield Kernel(view, monkeypatch)
    view.explorer.cancel()
    assert view.explorer.wait(LONG_S)


@pytest.mark.parametrize("released", slow_after(1, ["change", "set"]))
def test_what_is_dragged_is_predicted_and_what_is_released_is_run(kernel, released):
    before = kernel.latency_ns
    answer = kernel.ask(do="what_if", id=1, values={PCIE: 800}, latency_ns=before)
    assert answer["predicted"][0] > before
    if released == "change":
        kernel.ask(do="change", values={PCIE: 800})
    else:
        kernel.ask(do="set", field=PCIE, value=800)
        assert kernel.view.explorer.status == "outdated"
        kernel.view.bar.run.click()
    assert kernel.view.explorer.wait(LONG_S)
    header = kernel.view.stage.picture.header
    assert header["machine"]["fields"][PCIE]["value"] == 800
    assert kernel.latency_ns == kernel.view.result.latency_ns
    assert answer["predicted"][0] == pytest.approx(kernel.latency_ns, rel=0.03)
    late = kernel.ask(do="what_if", id=2, values={PCIE: 800}, latency_ns=before)
    assert (late["id"], late["predicted"]) == (2, None)
