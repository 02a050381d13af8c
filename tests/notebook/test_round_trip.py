"""Drag a slider, read the prediction, release it: the run that follows tells the error of the prediction."""

from __future__ import annotations

import re

import pytest

from kernbench.notebook import explore

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


@pytest.mark.parametrize("released", ["change", "set"])
def test_what_is_dragged_is_predicted_and_what_is_released_is_run(kernel, released):
    before = kernel.latency_ns
    answer = kernel.ask(do="what_if", id=1, values={PCIE: 800}, latency_ns=before)
    assert answer["predicted"] > before
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
    assert answer["predicted"] == pytest.approx(kernel.latency_ns, rel=0.03)
    late = kernel.ask(do="what_if", id=2, values={PCIE: 800}, latency_ns=before)
    assert (late["id"], late["predicted"]) == (2, None)


@pytest.fixture
def page(web, driver):
    from tests.notebook.browser import Page

    page = Page(driver, "round-trip")
    page.open(web)
    page.one("button.kb-run")
    page.click(".kb-auto input")  # else the time that this computer takes decides what runs
    page.choose(".kb-work", "study gemm")
    for name in "mkn":
        page.type(f".kb-param-{name}", "64")
    page.until(lambda: page.one("button.kb-run").is_enabled(), "Run")
    page.click("button.kb-run")
    page.one(".kbp-why-row input")
    return page


def drag(page, slider, to):
    """Move a slider to its end, without releasing it."""
    page.driver.execute_script(
        "const s = arguments[0]; s.value = s[arguments[1]]; s.dispatchEvent(new Event('input'))", slider, to
    )


def release(page, slider):
    page.driver.execute_script("arguments[0].dispatchEvent(new Event('change'))", slider)


def number(text):
    return float(text.replace(",", ""))


def told(page, predicted):
    """Read the line about the run: its time is that of the run, the prediction the one that was shown."""
    line = page.one(".kbp-outcome").text.replace("\u2212", "-")
    found = re.fullmatch(
        r"Simulated: ([\d,.]+) ns instead of ([\d,.]+) ns\. Predicted: ([\d,.]+) ns, an error of ([+-]?[\d.]+) %\.",
        line,
    )
    assert found, line
    simulated, before, said, error = found.groups()
    assert said == predicted
    assert f"{simulated} ns" in page.text(".kb-stage .kb-subject")
    assert simulated != before
    assert number(error) == pytest.approx(100 * (number(said) / number(simulated) - 1), abs=0.06)


def prediction(said):
    """Wait for the prediction in an element, and return its time."""
    return lambda: re.match(r"Prediction: ([\d,.]+) ns \(", said.text)[1]


@pytest.mark.slow
def test_a_reason_is_dragged_beyond_the_table(page):
    slider = page.one(".kbp-why-row input")
    drag(page, slider, "max")
    predicted = page.until(prediction(page.one(".kbp-why-said")), "the prediction")
    assert not page.all(".kbp-outcome")
    release(page, slider)
    told(page, predicted)
    page.shot("1-reason")


@pytest.mark.slow
def test_a_field_of_a_component_is_dragged_set_and_run(page):
    page.click(".kbp-why-name")
    field = page.until(lambda: next(x for x in page.all(".kbp-field") if "HBM bandwidth" in x.text), "the field")
    slider, said = (field.find_element("css selector", css) for css in ("input", ".kbp-field-said"))
    drag(page, slider, "min")
    predicted = page.until(prediction(said), "the prediction")
    release(page, slider)
    page.until(lambda: "former settings" in page.text(".kb-subject"), "an outdated result")
    assert not page.all(".kbp-outcome")
    page.click("button.kb-run")
    told(page, predicted)
    page.shot("2-field")
