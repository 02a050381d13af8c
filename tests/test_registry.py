"""Names are imported on first use, dotted paths are taken wherever names are, unknown ones list the known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernbench import _registry as registry
from kernbench._registry import COMPONENTS, FORMATTERS, RUNNERS, Registry
from kernbench.errors import ConfigError


@pytest.fixture
def fruits() -> Registry:
    return Registry("fruit", {"apple": "fractions:Fraction", "pear": "decimal:Decimal"})


def test_a_name_stands_for_what_its_path_says(fruits):
    from fractions import Fraction

    assert fruits.resolve("apple") is Fraction
    assert fruits.resolve("apple") is fruits.resolve("fractions:Fraction")
    assert fruits.names == ["apple", "pear"]


@pytest.mark.parametrize("path", ["decimal:Context", "os.path:join"])
def test_a_dotted_path_is_taken_where_a_name_is(fruits, path):
    assert fruits.fault(path) is None
    assert fruits.resolve(path).__name__ == path.partition(":")[2]


def test_an_unknown_name_lists_the_known(fruits):
    with pytest.raises(ConfigError) as caught:
        fruits.resolve("appel")
    assert str(caught.value) == (
        "'appel' is not a fruit; did you mean apple? known: apple, pear; or a dotted path pkg.mod:name"
    )
    assert "did you mean" not in fruits.fault("zzz")


@pytest.mark.parametrize("path", ["", ":", "a:", ":b", "a b:c", "a:b.c", "1a:b", "a..b:c", "a:b:c"])
def test_what_is_no_dotted_path(fruits, path):
    assert fruits.fault(path).startswith("is not a fruit; ")


@pytest.mark.parametrize(
    ("path", "said"), [("no_such_module:X", "No module named 'no_such_module'"), ("decimal:Decimale", "no attribute")]
)
def test_a_path_that_leads_nowhere(fruits, path, said):
    assert fruits.fault(path) is None
    with pytest.raises(ConfigError, match=rf"fruit '{path}': .*{said}.*; expected an importable pkg\.mod:name"):
        fruits.resolve(path)


@pytest.mark.parametrize("name", COMPONENTS.names)
def test_every_built_in_component_is_a_class(name):
    # The controller of HBM is one of two classes, by `cube.hbm.timing`.
    assert isinstance(COMPONENTS.resolve(name), type) or name == "hbm_ctrl"


@pytest.mark.parametrize("name", RUNNERS.names)
def test_every_runner_can_be_called(name):
    assert callable(RUNNERS.resolve(name))


@pytest.mark.parametrize("name", FORMATTERS.names)
def test_every_formatter_can_be_called(name):
    assert callable(FORMATTERS.resolve(name))


def test_nothing_is_imported_before_its_use():
    code = """
import sys
from kernbench._registry import COMPONENTS
assert COMPONENTS.fault("router") is None
print([m for m in sys.modules if "builtin" in m and "kernbench" in m])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_hint_names_the_nearest():
    assert registry.hint(3, ["a", "b"]) == "known: a, b"
