"""What a Python module defines, without running it: to check a file that names one must not run somebody's code."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from inspect import Parameter, signature

from kernbench.registry import locate

_OURS = "kernbench."
_LONGEST_CHAIN = 8  # of modules that import a name from one another

Takes = tuple[tuple[str, ...], bool]  # names of parameters, and whether any other name is taken


class MissingModuleError(Exception):
    """There is no such module, or its source cannot be read; the text says why."""


@dataclass(frozen=True)
class Outline:
    """The names at the top level of one module, or those of an object in it, such as `pkg.mod.name`.

    A module of kernbench is imported, one that has been imported already is looked at; of any other, the source is
    read. What is decided only when it runs, such as a star import, is taken to be right.
    """

    name: str

    def has(self, name: str) -> bool:
        """Return whether the module may define a function `name`."""
        if self._module is not None:
            return callable(getattr(self._module, name, None))
        return self._tree is None or self._is_dynamic or name in self._bound

    def takes(self, name: str, depth: int = 0) -> Takes | None:
        """Return what the function `name` takes; None where the source does not tell."""
        if self._module is not None:
            found = signature(getattr(self._module, name)).parameters
            return tuple(found), any(p.kind is Parameter.VAR_KEYWORD for p in found.values())
        node = self._bound.get(name)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            args = node.args
            names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            return tuple(names), args.kwarg is not None
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and depth < _LONGEST_CHAIN:
            (origin,) = (alias.name for alias in node.names if (alias.asname or alias.name) == name)
            try:
                return Outline(node.module).takes(origin, depth + 1)
            except (MissingModuleError, AttributeError):
                return None
        return None

    @cached_property
    def _module(self) -> object:
        if not self.name.startswith(_OURS):
            parent, _, name = self.name.rpartition(".")
            return sys.modules.get(self.name) or getattr(sys.modules.get(parent), name, None)
        try:
            return locate(self.name)
        except ImportError as error:
            raise MissingModuleError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _tree(self) -> ast.Module | None:
        """The source; None of a compiled module, and of an object in a module."""
        spec, path = None, None
        parts = self.name.split(".")
        for i in range(len(parts)):
            here = ".".join(parts[: i + 1])
            spec = _spec(here, path)
            if spec is None:
                if i and i == len(parts) - 1 and parts[i] in Outline(".".join(parts[:i]))._bound:
                    return None  # what the object has, running its module decides
                raise MissingModuleError(f"ModuleNotFoundError: No module named {here!r}")
            path = list(spec.submodule_search_locations or ())
        source = getattr(spec.loader, "get_source", None) if spec is not None else None
        try:
            text = source(self.name) if source is not None else None
            return None if text is None else ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError, ImportError) as error:
            raise MissingModuleError(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _bound(self) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for node in self._statements():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[node.name] = node
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.update({(alias.asname or alias.name.partition(".")[0]): node for alias in node.names})
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [x for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
                found.update({x.id: node for x in names})
        return found

    @cached_property
    def _is_dynamic(self) -> bool:
        return "*" in self._bound or "__getattr__" in self._bound

    def _statements(self) -> list[ast.stmt]:
        """Return the statements of the module, those in its branches included."""
        found: list[ast.stmt] = []
        left: list[ast.AST] = [self._tree] if self._tree is not None else []
        while left:
            node = left.pop()
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    found.append(child)
                if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
                    left.append(child)
        return found


def _spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    """Return where a module is, which its parents, that would run, are not imported for."""
    module = sys.modules.get(name)
    if module is not None and module.__spec__ is not None:
        return module.__spec__
    return PathFinder.find_spec(name, path)
