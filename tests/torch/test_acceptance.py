"""The smallest models of the acceptance; `python -m tests.torch.acceptance` runs all of them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.torch.conftest import REQUIRED

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.skipif(find_spec("transformers") is None and not REQUIRED, reason="transformers is not installed"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT", "GPT-2", "Mixtral"])
def test_a_model_of_transformers(name):
    from tests.torch import acceptance

    assert acceptance.measure(name)[0] == name


def test_a_model_that_needs_the_host_fails(monkeypatch):
    import torch

    from tests.torch import acceptance

    class Sorted(torch.nn.Module):
        def forward(self, x):
            return torch.sort(x).values

    monkeypatch.setitem(acceptance.CASES, "sorted", lambda: (Sorted(), {"x": torch.randn(2, 3000)}))
    with pytest.raises(AssertionError, match="on the host: sort"):
        acceptance.measure("sorted")


def test_a_model_with_wrong_values_fails(monkeypatch):
    import torch

    from tests.torch import acceptance

    monkeypatch.setitem(acceptance.CASES, "linear", lambda: (torch.nn.Linear(16, 16), {"input": torch.randn(4, 16)}))
    monkeypatch.setattr(acceptance, "ROOM", 0.0)
    with pytest.raises(AssertionError, match="the error is"):
        acceptance.measure("linear")
