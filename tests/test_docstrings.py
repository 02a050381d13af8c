"""What a docstring says of parameters is what the signature says."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from importlib.util import find_spec

import pytest
from numpydoc.docscrape import NumpyDocString

import kernbench

# The core's own module has no signatures: its names and their docstrings are those of `sim_engine.python_core`.
_SKIPPED = ("__main__", "core")
# The front end of PyTorch imports it.
_ABSENT = () if find_spec("torch") and find_spec("transformers") else ("kernbench.torch.",)
MODULES = [
    m.name
    for m in pkgutil.walk_packages(kernbench.__path__, "kernbench.")
    if not m.name.endswith(_SKIPPED) and not m.name.startswith(_ABSENT)
]


def documented_objects(module):
    """Functions and classes of `module`, and the functions of the classes, that have words."""
    own = [o for o in vars(module).values() if getattr(o, "__module__", None) == module.__name__]
    for thing in own:
        if inspect.isfunction(thing):
            yield thing
        elif inspect.isclass(thing):
            yield thing
            yield from (f for f in vars(thing).values() if inspect.isfunction(f))


def names_in_signature(thing) -> list[str]:
    # A function on a program is a method of `tl`, which Python binds as `self`.
    given = [n for n, p in inspect.signature(thing).parameters.items() if p.annotation != "Program"]
    return [n for n in given if n not in {"self", "cls"} and not n.startswith("_")]


@pytest.mark.parametrize("name", MODULES)
def test_parameters_agree_with_the_signature(name):
    wrong = []
    for thing in documented_objects(importlib.import_module(name)):
        text = inspect.cleandoc(thing.__doc__ or "")
        if "\nParameters\n---" in text:
            said = [n.strip(" *") for p in NumpyDocString(text)["Parameters"] for n in p.name.split(",")]
            if said != names_in_signature(thing):
                wrong.append(f"{thing.__qualname__}: {said} is not {names_in_signature(thing)}")
    assert not wrong, "\n".join(wrong)
