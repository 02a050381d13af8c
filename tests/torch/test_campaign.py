"""The short form of the campaign of models: 60 cases, the same every time; `make fuzz` has other ones."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.fuzz import models  # noqa: E402
from tests.slow import slow_after  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.mark.parametrize("first", slow_after(1, range(0, 60, 10)))
def test_models_agree_with_eager(first, tmp_path):
    report = models.run(range(first, first + 10), Path(tmp_path))
    assert not report.failures, "\n".join(report.failures)


def test_a_difference_is_found_and_printed_as_a_small_program(monkeypatch, tmp_path):
    case = models.Case(3, "float32", ("x = torch.ones(2, 3)",), ("n = 3", "x = x + 1", "x = torch.relu(x)"), "x")
    monkeypatch.setattr(models, "drawn", lambda seed: case)
    monkeypatch.setattr(models, "difference", lambda found, *_: "no" if found[0, 0] > 1 else "")
    report = models.run(range(3, 4), Path(tmp_path))
    [failure] = report.failures
    assert failure.startswith("models, seed 3: output 0: no\nimport torch")
    assert "x = x + 1" in failure
    assert "relu" not in failure
