"""Public names of packages, imported when first used, so that importing a package costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def found(package: str, where: Mapping[str, str], name: str) -> Any:
    """Import a public name of a package from its place in `where`: "module", or "module:other name".

    A name whose place is "" is a module of the package.
    """
    if name not in where:
        raise AttributeError(f"module {package!r} has no attribute {name!r}; known: {', '.join(where)}")
    module, _, attribute = where[name].partition(":")
    return getattr(import_module(module), attribute or name) if module else import_module(f"{package}.{name}")
