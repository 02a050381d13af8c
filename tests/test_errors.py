"""Errors are also instances of the builtin that has their meaning."""

from __future__ import annotations

import builtins
import inspect

import pytest

import kernbench as kb
from kernbench import errors
from kernbench.errors import KernbenchError
from kernbench.tp import rank_groups


def test_every_error_has_the_meaning_of_a_builtin():
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, KernbenchError)]
    assert len(found) > 10
    known = {cls for _, cls in inspect.getmembers(builtins, inspect.isclass)}
    for cls in found:
        if cls is not KernbenchError:
            assert (set(cls.__mro__) & known) - {object, BaseException, Exception}, cls


def test_the_table_in_the_docstring_is_the_tree():
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        if cls is not KernbenchError:
            line = next(line for line in errors.__doc__.splitlines() if f"+-- {cls.__name__}" in line)
            own = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
            assert all(name in line for name in own), line


def test_an_indivisible_size_is_a_value_error():
    with pytest.raises(ValueError, match="world of 6 ranks is not divisible by 4"):
        kb.tp.parallel_state.data_size(6, {"tp": 4})


def test_a_bad_order_is_a_value_error():
    with pytest.raises(ValueError, match="'xp' is unknown"):
        rank_groups.check_order("tp-xp", {"tp": 2})


def test_a_kernels_error_is_a_runtime_error():
    def kernel(x, *, tl):
        tl.load(x + 4096, shape=(4,))

    with kb.session("preset:small") as torch:
        x = torch.zeros(4, dtype=torch.float16, device="ahbm")
        torch.launch("outside", kernel, x)
        with pytest.raises(IndexError) as caught:
            torch.ahbm.synchronize()
    assert isinstance(caught.value, RuntimeError)
